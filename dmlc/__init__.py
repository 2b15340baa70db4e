"""dmlc: a compiler for distributed machine learning."""

__version__ = "0.1.0"

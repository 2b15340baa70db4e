"""Hand-written Triton kernels, each with its PyTorch reference beside it."""

if __name__ != "dmlc.kernels":
    raise ImportError("import this package as dmlc.kernels: under its bare name everything in it would exist twice")

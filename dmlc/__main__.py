"""`python -m dmlc` is the command `dmlc`, for a tree that is not installed."""

from dmlc.cli.main import main

main()

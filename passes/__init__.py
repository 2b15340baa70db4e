"""The passes, one file each, found by name."""

if __name__ != "dmlc.passes":
    raise ImportError("import this package as dmlc.passes: under its bare name everything in it would exist twice")

"""Model builders without downloads: they serve examples, tests and benchmarks."""

if __name__ != "dmlc.models":
    raise ImportError("import this package as dmlc.models: under its bare name everything in it would exist twice")

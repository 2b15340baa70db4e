"""Programs for people who work on dmlc: quickstart, checks, benchmarks."""

if __name__ != "dmlc.tools":
    raise ImportError("import this package as dmlc.tools: under its bare name everything in it would exist twice")

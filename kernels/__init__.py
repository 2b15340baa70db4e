"""Hand-written Triton kernels, each with its PyTorch reference beside it."""

if __name__ != "dmlc.kernels":
    # Nothing can be imported through the bare name, so nothing exists twice. It does not raise, unlike its three siblings: transformers
    # imports any package called `kernels` it can find, and takes one without a file and a version for absent.
    __path__, __file__ = [], None  # type: ignore[reportAssignmentType]

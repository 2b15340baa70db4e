"""Code generation: Triton kernels, the PyTorch program, its launcher, the weights."""

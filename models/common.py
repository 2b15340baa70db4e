"""What the builders share: seeded random weights that make every parameter matter, and a quiet transformers library."""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator

import torch


def seeded(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Fill all parameters and running statistics from `seed` and return the module in evaluation mode.

    Fresh modules have zero biases, unit norm weights and tiny matrices: a compiler that loses one of them would still agree.
    Matrices are normal with standard deviation 1/sqrt(fan in); vectors spread by 0.1 around 1 (norm weights) or 0 (biases).
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(_draw(name, parameter, generator))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
            elif name.endswith("running_var"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    return module.eval()


def _draw(name: str, parameter: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(parameter.shape, generator=generator)
    if parameter.dim() < 2:
        center = 1.0 if name.endswith("weight") else 0.0
        return center + 0.1 * noise
    fan_in = math.prod(parameter.shape[1:])
    return noise / math.sqrt(fan_in)


def token_ids(batch: int, sequence: int, vocabulary: int, seed: int = 1) -> torch.Tensor:
    """Seeded token ids, i64 [batch, sequence]."""
    return torch.randint(0, vocabulary, (batch, sequence), generator=torch.Generator().manual_seed(seed))


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    """Seeded normal values, f32."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def quiet_transformers():
    """The transformers package without its notices about configurations that no download ever had."""
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


@contextlib.contextmanager
def without_notices() -> Iterator[None]:
    """Silences what PyTorch's exporters say about packages that no builder uses."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)

"""Runs in a process of its own under Triton's interpreter: every generated kernel of a folder on given inputs, dense and not.

TRITON_INTERPRET=1 python kernel_runner.py FOLDER        reads FOLDER/inputs.pt, writes FOLDER/outputs.pt
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch


def scattered(x: torch.Tensor) -> torch.Tensor:
    """The same values in another storage: dims in reverse order, every second element, not at the start."""
    order = list(reversed(range(x.dim())))
    reversed_x = x.permute(order)
    room = torch.zeros((*reversed_x.shape[:-1], 2 * reversed_x.shape[-1] + 1), dtype=x.dtype) if x.dim() else torch.zeros(3, dtype=x.dtype)
    view = room[..., 1::2] if x.dim() else room[1]
    view.copy_(reversed_x)
    return view.permute(order)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    sys.path.insert(0, str(folder))
    import kernels

    assert vars(kernels)["INTERPRET"]
    outputs = {}
    for name, operands in torch.load(folder / "inputs.pt").items():
        kernel = getattr(kernels, name)
        for variant, inputs in (("dense", operands), ("strided", [scattered(x) for x in operands])):
            try:
                results = kernel(*inputs)
            except Exception as error:  # the test of this kernel reports it
                outputs[name, variant] = f"{type(error).__name__}: {error}"
                continue
            outputs[name, variant] = list(results) if isinstance(results, tuple) else [results]
    torch.save(outputs, folder / "outputs.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

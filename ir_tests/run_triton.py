"""Runs generated kernels in a process of its own: `run_triton.py KERNELS.py INPUTS.pt OUTPUTS.pt`.

INPUTS holds [(kernel name, flat operands, flat result to fill)]. On a machine without a GPU the kernels are interpreted; Triton's interpreter
and its compiler cannot share a process.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback

import torch

BLOCK = 64


def main(kernels: str, inputs: str, outputs: str) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
        from dmlc.codegen import bf16_interpreter

        bf16_interpreter.install()
    spec = importlib.util.spec_from_file_location("kernels_under_test", kernels)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = []
    for name, operands, result in torch.load(inputs):
        result = result.to(device)
        try:
            if result.numel():
                grid = ((result.numel() + BLOCK - 1) // BLOCK,)
                getattr(module, name)[grid](*(x.to(device) for x in operands), result, result.numel(), BLOCK=BLOCK)
            found.append(result.cpu())
        except Exception:
            found.append(traceback.format_exc())
    torch.save(found, outputs)


if __name__ == "__main__":
    main(*sys.argv[1:])

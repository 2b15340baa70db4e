"""The Triton text of every op that has one against its PyTorch text, on all samples, with NaN among the operands too: one kernel a sample,
all run in one other process (interpreted where there is no GPU)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from facets import Case, build, cases, operands, with_specials

from dmlc.codegen import aot
from dmlc.codegen.triton_text import POINTERS, pointwise
from dmlc.interpret.evaluate import DTYPES, evaluate
from dmlc.ir.core import Op
from dmlc.ops.kernel import KERNEL_DTYPES, triton_text
from dmlc.ops.pointwise import triton_dtype

HERE = Path(__file__).parent

KERNEL = """
@triton.jit
def {name}({pointers}out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
{loads}    tl.store(out + i, ({text}), mask=inside)
"""

TOLERANCE = {"f64": 1e-6, "f32": 2e-6, "f16": 1e-3, "bf16": 8e-3}  # of the value; f64 text may hold fp32 constants
KINDS = ("plain", "nan")


def has_text(case: Case) -> bool:
    op = build(case)
    return triton_text(op) is not None and all(v.dtype in KERNEL_DTYPES for v in (*op.operands, *op.results))


def kernel_name(case: Case) -> str:
    return "k_" + case.id.replace("-", "_")


def kernel(case: Case) -> str:
    """The kernel of one sample: operands come flat and already broadcast, widened as in generated kernels."""
    op = build(case)
    names = [f"x{i}" for i in range(len(op.operands))]
    loads = "".join(f"    {x} = tl.load(p{i} + i, mask=inside, other=1).to({triton_dtype(v.dtype)})\n" for i, (x, v) in enumerate(zip(names, op.operands)))
    return KERNEL.format(name=kernel_name(case), pointers="".join(f"p{i}, " for i in range(len(names))), loads=loads, text=pointwise(op, names))


def launch(case: Case, xs: Sequence[torch.Tensor]) -> tuple[str, list[torch.Tensor], torch.Tensor]:
    result = build(case).result
    flat = [x.expand(result.shape).reshape(-1).contiguous() for x in xs]
    return kernel_name(case), flat, torch.zeros(result.tensor.numel, dtype=DTYPES[result.dtype])


def inputs(case: Case, kind: str) -> list[torch.Tensor]:
    return with_specials(case) if kind == "nan" else operands(case)


@pytest.fixture(scope="module")
def results(tmp_path_factory: Any) -> dict[tuple[str, str], Any]:
    """(case, kind) -> the kernel's flat result, or the traceback of what failed."""
    folder = tmp_path_factory.mktemp("kernels")
    chosen = [(c, kind) for c in cases(lambda d: d.triton is not None) if has_text(c) for kind in KINDS]
    (folder / "kernels.py").write_text("import triton\nimport triton.language as tl\n" + "".join(kernel(c) for c, kind in chosen if kind == KINDS[0]))
    torch.save([launch(c, inputs(c, kind)) for c, kind in chosen], folder / "in.pt")
    command = [sys.executable, str(HERE / "run_triton.py"), "kernels.py", "in.pt", "out.pt"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(HERE.parent)})
    assert done.returncode == 0, done.stderr
    return {(c.id, kind): r for (c, kind), r in zip(chosen, torch.load(folder / "out.pt"))}




@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [c for c in cases(lambda d: d.triton is not None) if has_text(c)], ids=lambda c: c.id)
def test_triton_text(case: Case, kind: str, results: Any) -> None:
    op: Op = build(case)
    actual = results[case.id, kind]
    assert isinstance(actual, torch.Tensor), actual
    expected = evaluate(op, inputs(case, kind))[0].expand(op.result.shape).reshape(-1)
    assert actual.dtype == expected.dtype
    if not op.result.tensor.is_float:
        assert torch.equal(actual, expected), f"{actual}\nexpected\n{expected}"
        return
    near = torch.isclose(actual.double(), expected.double(), rtol=TOLERANCE[op.result.dtype], atol=1e-7, equal_nan=True)
    assert bool(near.all()), f"{actual}\nexpected\n{expected}"


def compiled_cases() -> list[Case]:
    """One sample for each op, dtypes and attributes: shapes make no difference to a compiler."""
    found: dict[Any, Case] = {}
    for c in cases(lambda d: d.triton is not None):
        if has_text(c):
            op = build(c)
            found.setdefault((op.name, *(v.dtype for v in (*op.operands, *op.results)), c.sample.attrs), c)
    return list(found.values())


def test_triton_texts_build(tmp_path: Path) -> None:
    """Triton's compiler takes every text without a GPU: types that the interpreter is lenient about are checked there."""
    chosen = compiled_cases()
    entries = []
    for c in chosen:
        op = build(c)
        pointers = {f"p{i}": POINTERS[v.dtype] for i, v in enumerate(op.operands)} | {"out": POINTERS[op.result.dtype], "n": "i32"}
        name = kernel_name(c)
        entries.append(f"    {name!r}: {{'kernel': {name}, 'constants': {{'BLOCK': 64}}, 'pointers': {pointers!r}, 'num_warps': 1}},\n")
    table = "\nAHEAD_OF_TIME = {\n" + "".join(entries) + "}\n"
    (tmp_path / "kernels.py").write_text("import triton\nimport triton.language as tl\n" + "".join(map(kernel, chosen)) + table)
    report = aot.build(tmp_path / "kernels.py", ["sm_90"])
    assert len(report["kernels"]) == len(chosen)
    assert not aot.faults(report)

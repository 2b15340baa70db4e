"""What tools/gpu_check.py checks below whole models: generated kernels against float64, and the runtime's collectives among one rank."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dmlc.tools.environment import ROOT

CLOSE = {"f64": 1e-12, "f32": 1e-5, "f16": 1e-3, "bf16": 8e-3}  # absolute, and four times as much of an element
OWN = ("model", "table", "runtime", "prelude", "kernels", "launch", "bf16_interpreter")  # modules of a compiled folder


class Wrong(Exception):
    """A result that is not what it should be; one sentence."""


@contextlib.contextmanager
def modules_of(folder: Path) -> Iterator[None]:
    """A folder's modules can be imported; afterwards what had their names before is back, since every folder has some of the same."""
    before = {name: sys.modules.pop(name) for name in OWN if name in sys.modules}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in OWN:
            sys.modules.pop(name, None)
        sys.modules.update(before)


# ---------------------------------------------------------------- kernels


def cases_of_the_tests() -> list[Any]:
    sys.path.insert(0, str(ROOT / "ir_tests"))
    import kernel_cases

    import dmlc.ops  # noqa: F401  (registers the op set)
    from dmlc.ir.parser import parse_module

    return parse_module(kernel_cases.PROGRAM, "kernel_cases.py").functions


def generated(functions: Sequence[Any], device: str) -> str:
    """Emit kernels for `functions` into one folder and compare each, on dense and on strided inputs, with its ops in float64."""
    from dmlc.codegen.copied import prelude_text, source_of
    from dmlc.codegen.triton_source import emit_functions

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        texts = {"kernels.py": emit_functions(functions), "prelude.py": prelude_text(), "bf16_interpreter.py": source_of("dmlc.codegen", "bf16_interpreter.py")}
        for name, text in texts.items():
            (folder / name).write_text(text)
        with modules_of(folder):
            import kernels  # type: ignore[import-not-found]

            wrong = [w for f in functions for w in differences(f, getattr(kernels, f.name), device)]
    if wrong:
        raise Wrong(f"{len(wrong)} of {2 * len(functions)} cases:\n" + "\n".join(wrong))
    return f"{len(functions)} kernels equal float64 on dense and strided inputs"


def differences(function: Any, kernel: Callable[..., Any], device: str) -> list[str]:
    import torch

    given = inputs_of(function)
    expected = in_double(function, given)
    found = []
    for storage, arrange in (("dense", lambda x: x), ("strided", strided)):
        try:
            results = kernel(*(arrange(x.to(device)) for x in given))
        except Exception as e:
            found.append(f"{function.name} ({storage}): {type(e).__name__}: {e}")
            continue
        for value, got, want in zip(function.results, results if isinstance(results, tuple) else (results,), expected):
            close = CLOSE.get(value.dtype, 0.0)
            if not torch.allclose(got.cpu(), want.to(got.dtype), rtol=4 * close, atol=close, equal_nan=got.is_floating_point()):
                worst = (got.cpu().double() - want.double()).abs().nan_to_num().max()
                found.append(f"{function.name} ({storage}): off by {float(worst):.2e} in {value.dtype}")
    return found


def inputs_of(function: Any) -> list[Any]:
    """The tests' own inputs where a case needs care, else seeded ones."""
    import torch

    special = getattr(sys.modules.get("kernel_cases"), "SPECIAL", {})
    if function.name in special:
        return special[function.name]
    generator = torch.Generator().manual_seed(len(function.name))
    return [_random(a.tensor, generator) for a in function.args]


def _random(type_: Any, generator: Any) -> Any:
    import torch

    from dmlc.interpret.evaluate import DTYPES

    if type_.is_float:
        return torch.randn(type_.shape, generator=generator, dtype=torch.float64).to(DTYPES[type_.dtype])
    return torch.randint(0, 2 if type_.dtype == "i1" else 100, type_.shape, generator=generator).to(DTYPES[type_.dtype])


def in_double(function: Any, inputs: Sequence[Any]) -> list[Any]:
    """The ops' PyTorch texts, every float in float64, on the processor."""
    from dmlc.interpret.evaluate import evaluate, promoted

    values = dict(zip(function.args, [x.double() if x.is_floating_point() else x for x in inputs]))
    for op in function.body.ops[:-1]:
        values.update(zip(op.results, evaluate(op, [values[v] for v in op.operands], promoted)))
    return [values[v] for v in function.results]


def strided(x: Any) -> Any:
    """The same values where neighbours lie far apart: dims stored in reverse order, with gaps."""
    import torch

    if x.dim() == 0:
        return x
    order = tuple(reversed(range(x.dim())))
    shape = [x.shape[d] for d in order]
    room = torch.zeros([*shape[:-1], 3 * shape[-1]], dtype=x.dtype, device=x.device)[..., 1::3]
    room.copy_(x.permute(order))
    return room.permute(order)


# ---------------------------------------------------------------- collectives


@contextlib.contextmanager
def one_rank(device: str) -> Iterator[None]:
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as scratch:
        dist.init_process_group("gloo" if device == "cpu" else "nccl", init_method=f"file://{scratch}/store", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def collectives(device: str) -> str:
    """Each collective of the runtime among one rank gives back what it got, alone and as a bucket of two."""
    import torch

    from dmlc.codegen.copied import prelude_text, source_of

    done = 0
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "prelude.py").write_text(prelude_text())
        for name in ("runtime.py", "in_order.py"):
            (Path(scratch) / name).write_text(source_of("dmlc.codegen.output", name))
        with modules_of(Path(scratch)):
            import runtime  # type: ignore[import-not-found]

            with one_rank(device):
                comm = runtime.Collectives(runtime.Mesh({"model": 1}))
                for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
                    given = tuple((torch.arange(n, device=device) % 5).reshape(-1, 6).to(dtype) for n in (24, 42))
                    for tensors in (given[:1], given):
                        done += same_after(comm, tensors, "or" if dtype == torch.bool else "sum")
    return f"{done} calls give back what they got"


def same_after(comm: Any, tensors: tuple[Any, ...], combiner: str) -> int:
    import torch

    axes, n = ("model",), len(tensors)
    sizes, dims, grains = tuple(t.shape[0] for t in tensors), (0,) * n, (1,) * n
    calls = {
        "all_reduce": lambda: comm.all_reduce(tensors, axes, combiner),
        "all_gather": lambda: comm.all_gather(tensors, axes, dims, sizes, grains),
        "reduce_scatter": lambda: comm.reduce_scatter(tensors, axes, combiner, dims, sizes, grains),
        "all_to_all": lambda: comm.all_to_all(tensors, axes, dims, sizes, grains, dims, sizes, grains),
    }
    for name, call in calls.items():
        found = call()
        if len(found) != n or not all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, tensors)):
            raise Wrong(f"{name} of {n} × {tensors[0].dtype} gave {found}")
    return len(calls)

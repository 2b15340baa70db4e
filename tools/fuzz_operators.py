"""Random ONNX graphs over many operators: imported, they compute what onnxruntime computes; compiled, they still do, on any number of ranks.

    python tools/fuzz_operators.py                              500 graphs on 1, 2, 4 ranks
    python tools/fuzz_operators.py --seed 17 --show             one of them, made as small as it still fails

The import is compared with onnxruntime, node for node on its own (tools/random_onnx.py): integers equal, floats within 1e-4 of their scale (fp16: 1e-2).
The compiled program is compared with the import in float64, NaN in all padding, within 1e-9, as in tools/fuzz_graphs.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from dmlc.frontend.onnx import ImportResult, import_onnx
from dmlc.interpret.run import run
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
from dmlc.ir.verifier import verify
from dmlc.ir.weights import WeightStore
from dmlc.tools.fuzz_graphs import compiled, plans_for
from dmlc.tools.random_onnx import Graph, random_onnx

TOLERANCES = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-4}  # of a result's scale; doubles may come from floats
EXACT = 1e-9


def imported(graph: Graph, folder: Path) -> tuple[ImportResult, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The model read from a file, its inputs by argument, the expected outputs."""
    model, wanted = graph.whole()
    path = folder / "model.onnx"
    onnx.save(model, str(path))
    result = import_onnx(path)
    verify(result.module)
    inputs = {s.argument: graph.inputs[s.name] for s in result.inputs}
    return result, inputs, {name: v.array for name, v in wanted.items()}


def difference(expected: dict[str, np.ndarray], found: dict[str, Any]) -> str | None:
    """The first result that is not as expected."""
    for name, wanted in expected.items():
        actual = np.asarray(found[name])
        if actual.shape != wanted.shape:
            return f"{name} has shape {list(actual.shape)}, not {list(wanted.shape)}"
        if wanted.dtype.kind != "f":
            wrong = int((actual.astype(np.int64) != wanted.astype(np.int64)).sum())
            if wrong:
                return f"{name}: {wrong} of {wanted.size} {wanted.dtype} differ"
            continue
        error = float(np.abs(actual.astype(np.float64) - wanted).max()) / max(float(np.abs(wanted).max()), 1e-2)
        if not error < TOLERANCES[str(wanted.dtype)]:
            return f"{name} is off by {error:.1e} of its scale"
    return None


def compiled_difference(module: Module, store: WeightStore, inputs: dict[str, np.ndarray], exact: dict[str, Any], devices: int, plan: str) -> str | None:
    """What the program after the pipeline computes otherwise, in float64."""
    after, context = compiled(module, devices, plan, verify_each=False, weights=store)
    found = run(after, inputs, promote="f64", weights=context.weights, poison_pads=True)
    for name, wanted in exact.items():
        scale = max(float(np.abs(wanted.astype(np.float64)).max(initial=0)), 1e-3)
        if found[name].shape != wanted.shape or not np.abs(found[name].astype(np.float64) - wanted).max(initial=0) <= EXACT * scale:
            return f"{name} differs after the pipeline on {devices} rank{'s' if devices > 1 else ''}, {plan}"
    return None


def failure(graph: Graph, devices: list[int], seed: int, folder: Path) -> str | None:
    """What goes wrong with a graph, errors and crashes included; operators that are not supported are no failure."""
    try:
        result, inputs, expected = imported(graph, folder)
        wrong = difference(expected, run(result.module, inputs, weights=result.weights))
        if wrong or not devices:
            return wrong
        exact = run(result.module, inputs, promote="f64", weights=result.weights)
        return next((w for d in devices if (w := compiled_difference(result.module, result.weights, inputs, exact, d, plans_for(seed, d)))), None)
    except DmlcError as e:
        return None if e.message.startswith("unsupported") else f"error: {e}"
    except Exception as e:
        return f"{type(e).__name__}: {e}"


def smallest(seed: int, devices: list[int], folder: Path) -> tuple[int, str]:
    """The fewest nodes with which the graph of this seed still fails, and how."""
    for size in range(1, 40):
        what = failure(random_onnx(seed, size), devices, seed, folder)
        if what:
            return size, what
    return 0, "only the whole graph fails"


def text(graph: Graph) -> str:
    lines = [f"opset {graph.opset}", *(f"{n}: {a.dtype}{list(a.shape)}" for n, a in graph.inputs.items())]
    return "\n".join([*lines, *(onnx.printer.to_text(n) for n in graph.nodes)])


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--count", type=int, default=500, help="how many graphs")
    p.add_argument("--start", type=int, default=0, help="first seed")
    p.add_argument("--seed", type=int, help="this graph only")
    p.add_argument("--devices", type=int, nargs="*", default=[1, 2, 4], help="none: only the import is compared")
    p.add_argument("--show", action="store_true", help="print the graph")
    p.add_argument("--kinds", action="store_true", help="print how often each operator occurred, and was refused by onnxruntime")
    options = p.parse_args(argv)
    seeds = [options.seed] if options.seed is not None else range(options.start, options.start + options.count)
    failed, begun, made, refused = 0, time.perf_counter(), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for number, seed in enumerate(seeds, 1):
            graph = random_onnx(seed)
            made, refused = made + graph.made, refused + graph.refused
            what = failure(graph, options.devices, seed, folder)
            if options.show:
                print(text(graph))
            if what is not None:
                failed += 1
                size, said = smallest(seed, options.devices, folder)
                print(f"seed {seed}: {what}\nsmallest: {size} nodes, {said}\n{text(random_onnx(seed, size))}", flush=True)
            if number % 50 == 0:
                print(f"{number} graphs, {failed} failures, {time.perf_counter() - begun:.0f} s", flush=True)
    if options.kinds:
        print("made:", dict(made.most_common()), "\nrefused by onnxruntime:", dict(refused.most_common()))
    print(f"{len(seeds)} graphs, {len(made)} operators, {sum(made.values())} nodes, on {options.devices} ranks: {failed} failures")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

"""One node case of `onnx.backend.test` through the ONNX frontend and the interpreter, compared with the outputs the case itself gives.

Operands that a compiler of fixed shapes must know (target shapes, axes, counts) are graph inputs in these cases. Where the frontend says that one
must be known at import, the case is tried again with its integers and small operands as initializers, the first operand the last of them, since
without it nothing may be left to compute; such a case is counted as `frozen`.
"""

from __future__ import annotations

import functools
import importlib
import json
import pkgutil
import random
import warnings
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from dmlc.frontend.onnx.tensors import CARRIERS, ELEMENT_TYPES, NUMPY
from dmlc.ir.location import DmlcError

TENSORS = "tensor programs"
ROUNDED = "rounded otherwise"  # more than the case's tolerance, which is below what its dtype resolves, but no more than one unit in the last place of the largest value
UNIT = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
STRING = onnx.TensorProto.STRING
EIGHT_BITS_OR_MORE = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}  # dtypes that numpy lacks, and the form the weight store has


@dataclass
class Outcome:
    """`state` is passed, wrong, refused, crashed or slow; `ranks` says the same of two ranks ("" where no op of the case can use an axis)."""

    name: str
    category: str
    state: str
    why: str = ""
    frozen: bool = False
    ranks: str = ""
    ranks_why: str = ""


def all_cases() -> dict[str, Any]:
    """The node cases of the installed `onnx`, by name; making them takes some ten seconds."""
    return {case.name: case for cases in cases_by_module().values() for case in cases}


@functools.cache
def cases_by_module() -> dict[str, list[Any]]:
    """The same by the module of `onnx.backend.test.case.node` that makes them. A module makes its cases when it is imported first: nobody else may."""
    from onnx.backend.test.case import node

    found: dict[str, list[Any]] = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(node.__path__, f"{node.__name__}."):
            before = len(node._NodeTestCases)
            importlib.import_module(module.name)
            found[module.name.rsplit(".", 1)[-1]] = node._NodeTestCases[before:]
    return found


def known_failures() -> dict[str, str]:
    """Tensor programs that fail, with the reason, as of the version of `onnx` that `onnx_failing.json` names."""
    listed = json.loads((Path(__file__).parent / "onnx_failing.json").read_text())
    return {f"test_{name}": reason for reason, names in listed["cases"].items() for name in names}


def listed_for() -> str:
    return json.loads((Path(__file__).parent / "onnx_failing.json").read_text())["onnx"]


def sample(cases: Iterable[str], count: int) -> list[str]:
    """As many names, spread over all by their hashes, so that new cases hardly change the choice."""
    return sorted(sorted(cases, key=lambda name: zlib.crc32(name.encode()))[:count])


def category(case: Any) -> str:
    """What is not a tensor program is counted apart."""
    values = [*case.model.graph.input, *case.model.graph.output]
    domains, operators = {n.domain for n in case.model.graph.node}, {n.op_type for n in case.model.graph.node}
    if "ai.onnx.ml" in domains:
        return "ml"
    if "ai.onnx.preview.training" in domains:
        return "training only"
    if "ImageDecoder" in operators:
        return "image decoding"
    if case.name.startswith("test_training_dropout"):
        return "training only"
    if any(v.type.tensor_type.elem_type == STRING for v in values):
        return "strings"
    if any(not v.type.HasField("tensor_type") for v in case.model.graph.output):
        return "sequences as outputs"
    return TENSORS


def frozen(case: Any, kept: int | None) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The case's model and its inputs; `kept`: with integers and small operands (shapes, axes, counts, bounds) from this position on as initializers."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    inputs: dict[str, np.ndarray] = {}
    for position, (value, given) in enumerate(zip(list(model.graph.input), case.data_sets[0][0])):
        if given is None or isinstance(given, list):
            raise DmlcError(f"the case gives '{value.name}' as {type(given).__name__}, which is no tensor")
        x = array(given)
        if kept is not None and position >= kept and (x.ndim == 0 or (position and x.ndim == 1) or x.dtype.kind in "iub"):
            model.graph.initializer.append(numpy_helper.from_array(x, value.name))
            model.graph.input.remove(value)
        else:
            inputs[value.name] = x
    return model, inputs


def array(given: Any) -> np.ndarray:
    return numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else np.asarray(given)


def stored(x: np.ndarray, element: int) -> np.ndarray:
    """As the program takes it: the weight store's form, or the wider type that carries it."""
    if element in CARRIERS:
        return x.astype(NUMPY[CARRIERS[element]])
    form = EIGHT_BITS_OR_MORE.get(x.dtype.name)
    return x.view(form) if form else x


def outcome(case: Any, folder: Path, ranks: bool = True) -> Outcome:
    """What becomes of a case on one rank and, where its ops can be cut and if wanted, on two."""
    from dmlc.frontend.onnx import import_onnx
    from dmlc.ir.verifier import verify

    found = Outcome(case.name, category(case), "passed")
    try:
        for kept in (None, 1, 0):
            model, inputs = frozen(case, kept)
            onnx.save(model, str(folder / "case.onnx"))
            try:
                result = import_onnx(folder / "case.onnx", shapes={n: x.shape for n, x in inputs.items()})
            except DmlcError as e:
                if kept == 0 or "must be known" not in str(e):
                    raise
                continue
            found.frozen = kept is not None
            verify(result.module)
            _run(case, result, inputs, found, ranks)
            break
    except DmlcError as e:
        found.state, found.why = "refused", _reason(e)
    except Exception as e:
        found.state, found.why = "crashed", f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}"
    return found


def _reason(error: Any) -> str:
    return error.notes[0] if error.message.startswith("unsupported") and error.notes else error.message


def _run(case: Any, result: Any, inputs: Mapping[str, np.ndarray], found: Outcome, ranks: bool) -> None:
    names = {a.attrs.get("dmlc.name", a.name): a.name for a in result.module.main.args}
    elements = {v.name: v.type.tensor_type.elem_type for v in case.model.graph.input}
    given = {names[n]: stored(x, elements[n]) for n, x in inputs.items()}
    found.why = compared(case, result.module, given, result.weights)
    found.state = ("rounded" if found.why.startswith(ROUNDED) else "wrong") if found.why else "passed"
    if found.state == "passed" and ranks:
        found.ranks, found.ranks_why = on_two_ranks(case, result, given)


def compared(case: Any, module: Any, given: Mapping[str, np.ndarray], weights: Any, poison: bool = False) -> str:
    """What differs from the case's outputs; empty when nothing does. Types are compared too."""
    from dmlc.interpret.run import run

    outputs = list(run(module, given, weights=weights, poison_pads=poison).values())
    for i, (ours, wanted, value) in enumerate(zip(outputs, case.data_sets[0][1], case.model.graph.output, strict=True)):
        theirs, dtype = array(wanted), module.main.results[i].dtype
        if (ELEMENT_TYPES | CARRIERS).get(value.type.tensor_type.elem_type) != dtype:
            return f"result {value.name} has type {dtype}"
        if ours.shape != theirs.shape:
            return f"result {value.name} has shape {list(ours.shape)}, not {list(theirs.shape)}"
        if theirs.dtype == np.uint64:
            theirs = theirs.view(np.int64)
        if theirs.dtype.name not in np.sctypeDict:
            theirs = theirs.astype(np.float32)
        if not np.allclose(ours, theirs, case.rtol, case.atol, equal_nan=True):
            if dtype in UNIT and np.allclose(ours, theirs, 0, UNIT[dtype] * np.nanmax(np.abs(theirs), initial=0), equal_nan=True):
                return f"{ROUNDED}: by up to one unit in the last place of the largest value, in {dtype}"
            return f"result {value.name} differs: {_difference(ours, theirs)}"
    return ""


def _difference(ours: np.ndarray, theirs: np.ndarray) -> str:
    if ours.dtype.kind == "b":
        return f"{int((ours != theirs).sum())} of {ours.size} places"
    with np.errstate(all="ignore"):
        gap = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    return f"by up to {np.nanmax(gap, initial=0):.3g} of values up to {np.nanmax(np.abs(theirs.astype(np.float64)), initial=0):.3g}"


def on_two_ranks(case: Any, result: Any, given: Mapping[str, np.ndarray]) -> tuple[str, str]:
    """The same with every op that can be cut over two ranks cut, pads filled with NaN: ("", "") when no op can be."""
    from dmlc.ir.sharding import Mesh
    from dmlc.passes.mask_elim import MaskElim
    from dmlc.passes.partition import Partition
    from dmlc.passmanager.context import Context
    from dmlc.passmanager.manager import PassManager
    from dmlc.tools.random_plans import place_randomly

    try:
        module = result.module.clone()
        if not place_randomly(module, Mesh.make(a=2), random.Random(zlib.crc32(case.name.encode())), eager=1.0):
            return "", ""
        PassManager((Partition(), MaskElim())).run(module, Context(result.weights))
        why = compared(case, module, given, result.weights, poison=True)
        return ("wrong", why) if why else ("passed", "")
    except DmlcError as e:
        return "refused", e.message
    except Exception as e:
        return "crashed", f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}"

"""Damages ONNX files in many ways and imports them: each must give a module or one error, never a traceback.

    python -m dmlc.tools.fuzz_onnx [FILES] [--start N] [--numbers] [--keep FOLDER]        (default 2000 files)

The files are a model with a bit of everything and random graphs (tools/random_onnx.py); their bytes are damaged or their meaning (tools/onnx_damage.py).
With --numbers, what is still a model is computed and compared with onnxruntime, where that takes the file as well.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dmlc.frontend.onnx import import_onnx
from dmlc.interpret.run import run
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ir.verifier import verify
from dmlc.ir.weights import NUMPY
from dmlc.passmanager.check import seeded_inputs
from dmlc.tools.onnx_damage import DAMAGES, edited
from dmlc.tools.random_onnx import random_onnx, session_of

LARGEST = 1 << 20  # elements of a value that is computed
SECONDS, MEMORY = 20, 2 << 30  # that others' code may take for one file, memory beside what this process has
SUBJECTS = 60  # random graphs that are damaged

node = helper.make_node


def subject() -> onnx.ModelProto:
    """A bit of everything: convolution, norm, pool, resize, recurrent layer, branch, function, shape arithmetic, quantisation, gather."""
    rng = np.random.default_rng(0)
    then, other = (
        helper.make_graph([node(op, ["flat"], [name])], name, [], [helper.make_empty_tensor_value_info(name)]) for op, name in (("Neg", "t"), ("Abs", "e"))
    )
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]), node("BatchNormalization", ["c", "b", "b", "b", "v"], ["n"]), node("MaxPool", ["n"], ["p"], kernel_shape=[2, 2], ceil_mode=1),
        node("Resize", ["p", "", "scales"], ["r"], mode="linear"), node("Shape", ["r"], ["shape"]), node("Slice", ["shape", "zero", "one"], ["batch"]), node("Concat", ["batch", "rest"], ["target"], axis=0),
        node("Reshape", ["r", "target"], ["flat"]), node("Equal", ["batch", "one"], ["alone"]), node("If", ["alone"], ["chosen"], then_branch=then, else_branch=other),
        node("Unsqueeze", ["chosen", "zero"], ["steps"]), node("LSTM", ["steps", "lw", "lr"], ["l"], hidden_size=3), node("Squeeze", ["l"], ["s"]),
        node("QuantizeLinear", ["s", "scale", "point"], ["q"]), node("DequantizeLinear", ["q", "scale", "point"], ["d"]), node("Gather", ["table", "ids"], ["g"]),
        node("MyGelu", ["g"], ["h"], domain="own"), node("ReduceMean", ["h", "zero"], ["m"], keepdims=0), node("Tile", ["m", "two"], ["tiled"]), node("Softmax", ["d"], ["y"], axis=-1),
        node("Pad", ["tiled", "pads"], ["z"]),
    ]  # fmt: skip
    body = [node("Constant", [], ["half"], value_float=0.5), node("Mul", ["x", "half"], ["m"]), node("Erf", ["m"], ["e"]), node("Mul", ["x", "e"], ["y"])]
    constants = {
        "w": rng.standard_normal((4, 2, 3, 3), np.float32), "b": np.ones(4, np.float32), "v": np.ones(4, np.float32), "scales": np.array([1, 1, 2, 2], np.float32), "zero": np.array([0]), "one": np.array([1]),
        "rest": np.array([-1]), "lw": rng.standard_normal((1, 12, 144), np.float32), "lr": rng.standard_normal((1, 12, 3), np.float32), "scale": np.float32(0.1), "point": np.uint8(3),
        "table": rng.standard_normal((5, 6), np.float32), "two": np.array([2]), "pads": np.array([1, 2]),
    }  # fmt: skip
    function = helper.make_function("own", "MyGelu", ["x"], ["y"], body, [helper.make_opsetid("", 18)])
    return _model(nodes, constants, function)


def _model(nodes: Sequence[onnx.NodeProto], constants: dict[str, np.ndarray], function: onnx.FunctionProto) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", 2, 8, 8)), helper.make_tensor_value_info("ids", TensorProto.INT64, (3,))]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("y", "z")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("own", 1)], ir_version=9, functions=[function])


def outcome(path: Path) -> str:
    """`module` or `error`; whatever else the importer does is raised."""
    try:
        verify(import_onnx(path).module)
    except DmlcError as e:
        assert e.message and e.loc.known and "\n" not in e.message, f"not a message with a place: {e}"
        return "error"
    return "module"


# ---------------------------------------------------------------- what is still a model


def wrong_number(path: Path, counts: Counter[str] | None = None) -> str | None:
    """What a file that is still a model computes otherwise than onnxruntime, where that takes the file too: then it is one more of `compared`."""
    result = import_onnx(path)
    sizes = [r.tensor.numel for op in result.module.main.ops() for r in op.results if isinstance(r.type, TensorType) and r.type.is_static]
    if max([*sizes, *(a.tensor.numel for a in result.module.main.args)], default=0) > LARGEST:
        return None
    drawn = seeded_inputs(result.module)
    inputs = {s.argument: np.asarray(drawn[s.argument]).astype(NUMPY[s.dtype]) for s in result.inputs}
    given = {s.name: inputs[s.argument] for s in result.inputs}
    expected = in_a_child(lambda: _under_onnxruntime(path, given))
    if expected is None:
        return None
    if counts is not None:
        counts["compared"] += 1
    found = run(result.module, inputs, weights=result.weights)
    if len(found) < len(expected):
        return f"{len(found)} results, not {len(expected)}"
    return next((what for (name, mine), theirs in zip(found.items(), expected) if (what := _differs(name, mine, theirs))), None)


def _under_onnxruntime(path: Path, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = session_of(onnx.load(path))
    return list(session.run(None, {i.name: given[i.name] for i in session.get_inputs()}))  # type: ignore[reportReturnType]


def _differs(name: str, mine: np.ndarray, theirs: np.ndarray) -> str | None:
    if mine.shape != theirs.shape:
        return f"{name} has shape {list(mine.shape)}, onnxruntime's {list(theirs.shape)}"
    a, b = mine.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(np.isnan(a), np.isnan(b)) or not np.array_equal(a[~finite & ~np.isnan(b)], b[~finite & ~np.isnan(b)]):
        return f"{name} is not finite at other places"
    error = np.abs(a[finite] - b[finite]).max(initial=0) / max(np.abs(b[finite]).max(initial=0), 1e-2)
    return f"{name} is off by {error:.1e} of its scale" if error > (1e-2 if theirs.dtype == np.float16 else 1e-3) else None  # a damaged graph may divide by what nearly cancels


def in_a_child(work: Callable[[], Any]) -> Any:
    """The result of work in a forked process, None when it raises, dies, takes long or much memory: what others' code does with damaged files."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            signal.alarm(SECONDS)
            limit = MEMORY + resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with os.fdopen(writer, "wb") as file:
                pickle.dump(work(), file)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    try:
        return pickle.loads(data)
    except (EOFError, pickle.UnpicklingError):
        return None


# ---------------------------------------------------------------- many files


def damaged(number: int) -> tuple[str, bytes]:
    """The bytes of file `number`: every third subject is the one of many parts, the others random graphs."""
    damage = DAMAGES[number % len(DAMAGES)] if number % 2 else edited
    model = subject() if number % 3 == 0 else random_onnx(number % SUBJECTS).whole()[0]
    return damage.__name__, damage(model.SerializeToString(), random.Random(number))


def main(arguments: Sequence[str]) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", type=int, nargs="?", default=2000)
    p.add_argument("--start", type=int, default=0, help="number of the first file")
    p.add_argument("--numbers", action="store_true", help="compare what is still a model with onnxruntime")
    p.add_argument("--keep", type=Path, help="write files that fail here")
    options = p.parse_args(arguments)
    counts, failed = Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        for number in range(options.start, options.start + options.files):
            name, data = damaged(number)
            path.write_bytes(data)
            try:
                found = outcome(path)
                wrong = wrong_number(path, counts) if options.numbers and found == "module" else None
            except Exception as e:
                found, wrong = "traceback", f"{type(e).__name__}: {e}"
            counts[found] += 1
            if wrong:
                failed += 1
                print(f"file {number} ({name}): {wrong}", file=sys.stderr, flush=True)
                if options.keep:
                    (options.keep / f"{number}.onnx").write_bytes(data)
    checked = f" ({counts['compared']} compared with onnxruntime)" if options.numbers else ""
    wrongs = f"{failed} tracebacks or wrong numbers" if failed else "no traceback or wrong number" if options.numbers else "no traceback"
    print(f"{options.files} damaged files: {counts['error']} errors with a place, {counts['module']} still models{checked}, {wrongs}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

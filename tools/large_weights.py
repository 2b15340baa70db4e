"""Compiles models whose weights are larger than the memory that compiling them may take, and checks what is written.

    python tools/large_weights.py [KIND …] [--side 16384] [--devices 1 8] [--limit 1000] [--folder DIR]

A model is three products with square weights of `--side` (16384: 3.2 GB) in a sparse file with a few numbers in it. A kind says how the weights come:
`onnx` as external data; `transposed` as external data that Gemm takes transposed; `bf16` to be computed in bf16, `half` of an fp16 file, `halved` of an
fp32 file with casts to fp16 before use; `safetensors` beside a text module. `dmlc compile` runs in a process of its own, and its private memory (RssAnon) is
looked at all the time: its peak may lie `--limit` MB above that of a bare interpreter. The numbers must be at their places in the folder, the zeros take no
space on disk, and with more devices a rank holds its part.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PAUSE = 0.005  # seconds between two looks at the memory
NAMES = ("a", "b", "c")
KINDS = ("onnx", "transposed", "bf16", "half", "halved", "safetensors")
TEXT = """builtin.module attributes {{dmlc.weights = "weights.safetensors"}} {{
  func.func @main(%x: tensor<1x{n}xf32> {{dmlc.role = "input"}}, {weights}) -> tensor<1x{n}xf32> {{
    %t = dmlc.matmul %x, %a : (tensor<1x{n}xf32>, tensor<{n}x{n}xf32>) -> tensor<1x{n}xf32>
    %u = dmlc.matmul %t, %b : (tensor<1x{n}xf32>, tensor<{n}x{n}xf32>) -> tensor<1x{n}xf32>
    %y = dmlc.matmul %u, %c : (tensor<1x{n}xf32>, tensor<{n}x{n}xf32>) -> tensor<1x{n}xf32>
    func.return %y : tensor<1x{n}xf32>
  }}
}}
"""


@dataclass(frozen=True)
class Found:
    """What one compilation took: seconds, MB of private memory above a bare interpreter's, MB of weights (as numbers and on disk), what it printed."""

    seconds: float
    above: float
    weights: float
    on_disk: float
    text: str


# ---------------------------------------------------------------- the models


def places(side: int) -> list[tuple[int, int]]:
    """Where the weights are not zero: the corners, and some row and column inside."""
    return [(0, 0), (0, side - 1), (side // 3, side // 7), (side - 1, 0), (side - 1, side - 1)]


def number(weight: int, place: int) -> float:
    return 1.0 + weight + place / 8  # exact in fp16 and bf16 too


def write_model(kind: str, side: int, folder: Path) -> Path:
    """The model's file, its weights in a sparse file beside it."""
    if kind == "safetensors":
        return _write_text(side, folder)
    import onnx
    from onnx import TensorProto, helper

    element = TensorProto.FLOAT16 if kind == "half" else TensorProto.FLOAT
    _write_data(folder / "w.bin", "float16" if kind == "half" else "float32", side)
    size = side * side * (2 if kind == "half" else 4)
    inner = TensorProto.FLOAT16 if kind in ("half", "halved") else TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(name, inner, (1, side)) for name in ("x", "y")]
    graph = helper.make_graph(_nodes(kind), "large", ends[:1], ends[1:])
    for i, name in enumerate(NAMES):
        tensor = graph.initializer.add(name=name, data_type=element, dims=(side, side), data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "w.bin"), ("offset", str(i * size)), ("length", str(size))):
            tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=9), str(path))
    return path


def _nodes(kind: str) -> list:
    from onnx import TensorProto, helper

    nodes, operands = [], NAMES
    if kind == "halved":
        nodes, operands = [helper.make_node("Cast", [w], [f"{w}16"], to=TensorProto.FLOAT16) for w in NAMES], [f"{w}16" for w in NAMES]
    operator, attributes = ("Gemm", {"transB": 1}) if kind == "transposed" else ("MatMul", {})
    return nodes + [helper.make_node(operator, [x, w], [y], **attributes) for x, w, y in zip(("x", "t", "u"), operands, ("t", "u", "y"))]


def _write_text(side: int, folder: Path) -> Path:
    from dmlc.ir.types import TensorType
    from dmlc.ir.weights import _header

    type_ = TensorType((side, side), "f32")
    header = _header(list(NAMES), dict.fromkeys(NAMES, type_))
    _write_data(folder / "weights.safetensors", "float32", side, header)
    weights = ", ".join(f'%{w}: tensor<{side}x{side}xf32> {{dmlc.role = "param", dmlc.value = dense_resource<{w}> : tensor<{side}x{side}xf32>}}' for w in NAMES)
    path = folder / "model.mlir"
    path.write_text(TEXT.format(n=side, weights=weights))
    return path


def _write_data(path: Path, dtype: str, side: int, header: bytes = b"") -> None:
    import numpy

    size = numpy.dtype(dtype).itemsize
    with open(path, "wb") as file:
        file.write(header)
        for w in range(len(NAMES)):
            for p, (row, column) in enumerate(places(side)):
                file.seek(len(header) + ((w * side + row) * side + column) * size)
                file.write(numpy.array(number(w, p), dtype).tobytes())


# ---------------------------------------------------------------- compiling


def private_mb(process: int) -> float:
    """RssAnon of a process (Linux), 0 when it has ended."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"RssAnon:\s+(\d+) kB", text)
    return int(found[1]) / 1024 if found else 0.0


def peak_of(command: Sequence[str]) -> tuple[float, str]:
    """The most private memory of a command, in MB, and its output. Raises `ValueError` when it fails."""
    with tempfile.TemporaryFile("w+") as log:
        process, peak = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT), 0.0
        while process.poll() is None:
            peak = max(peak, private_mb(process.pid))
            time.sleep(PAUSE)
        log.seek(0)
        text = log.read()
    if process.returncode:
        raise ValueError(f"{' '.join(command)} ended with {process.returncode}: {text}")
    return peak, text


def bare_mb() -> float:
    """Private memory of an interpreter that has imported nothing."""
    return peak_of([sys.executable, "-c", "import time; time.sleep(0.1)"])[0]


def compiled(path: Path, kind: str, devices: int, out: Path) -> Found:
    plan = ["--plan", f"tp={devices}"] if devices > 1 else []
    precision = ["--precision", "bf16"] if kind == "bf16" else []
    command = [sys.executable, "-m", "dmlc", "compile", str(path), "-o", str(out), "--devices", str(devices), "--target", "h100", "--no-kernel-report"]
    begin = time.perf_counter()
    peak, text = peak_of([*command, *plan, *precision])
    seconds = time.perf_counter() - begin
    file = out / "weights" / "model.safetensors"
    return Found(seconds, peak - bare_mb(), file.stat().st_size / 1e6, file.stat().st_blocks * 512 / 1e6, text)


def check(kind: str, side: int, devices: int, out: Path, found: Found) -> None:
    """Raises `ValueError` for weights that are wrong, that lie on disk as zeros, or that each rank holds whole."""
    from safetensors import safe_open

    with safe_open(str(out / "weights" / "model.safetensors"), "np") as file:
        names = sorted(file.keys())
        if len(names) != len(NAMES):
            raise ValueError(f"the folder has {names}")
        for w, name in enumerate(names):
            _check_weight(file.get_slice(name), side, w, name)
    if found.on_disk > 0.1 * found.weights:
        raise ValueError(f"the weights take {found.on_disk:.0f} MB on disk, though nearly all are zero")
    held = re.search(r"held by a rank\s.*?([\d.]+)%", found.text)
    if held is None or float(held[1]) > 110 / devices:
        raise ValueError(f"a rank holds {held[1] if held else '?'} % of the weights")


def _check_weight(weight: object, side: int, w: int, name: str) -> None:
    """The planted numbers, at their places or at those of the transposed weight."""
    import numpy

    def at(row: int, column: int) -> float:
        value = weight[row : row + 1, column : column + 1]  # type: ignore[index]
        return float(value.astype(numpy.float32)[0, 0])

    wanted = [number(w, p) for p in range(len(places(side)))]
    ways = [[at(*place) for place in places(side)], [at(*reversed(place)) for place in places(side)]]
    if wanted not in ways or at(1, 1) != 0:
        raise ValueError(f"'{name}' is {ways[0]} where it should be {wanted}")


def run(kind: str, side: int, devices: int, folder: Path) -> Found:
    """Write, compile, check; nothing is left in `folder`."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        path, out = write_model(kind, side, Path(scratch)), Path(scratch) / "out"
        found = compiled(path, kind, devices, out)
        check(kind, side, devices, out, found)
        return found


def main(arguments: Sequence[str]) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("kinds", nargs="*", metavar="KIND", choices=[*KINDS, []], help=", ".join(KINDS))
    p.add_argument("--side", type=int, default=16384)
    p.add_argument("--devices", type=int, nargs="*", default=[1, 8])
    p.add_argument("--limit", type=float, default=1000, help="MB above a bare interpreter's")
    p.add_argument("--folder", type=Path, help="where the files are written meanwhile")
    options = p.parse_args(arguments)
    worst = 0.0
    for kind in options.kinds or KINDS:
        for devices in options.devices:
            found = run(kind, options.side, devices, options.folder or Path(tempfile.gettempdir()))
            worst = max(worst, found.above)
            said = f"{found.weights:.0f} MB of weights ({found.on_disk:.0f} on disk), {found.above:.0f} MB private memory above a bare interpreter's"
            print(f"{kind:12} {devices} devices: {said}, {found.seconds:.1f} s", flush=True)
    return int(worst > options.limit)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

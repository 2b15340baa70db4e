"""Writing an output folder: program, kernels, launcher, weights, plan. It is written beside its place and moved there whole,
so that a failed compile leaves no half-written folder."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dmlc import __version__
from dmlc.codegen.copied import prelude_text, source_of
from dmlc.codegen.lines import lines_text
from dmlc.codegen.output import FILES, TRAINING_FILES
from dmlc.codegen.pytorch import emit_model, emit_with_lines
from dmlc.codegen.table import TARGET, emit_table
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
from dmlc.ir.printer import print_module
from dmlc.ir.sharding import Mesh
from dmlc.ir.weights import WeightStore

MARK = ".dmlc"  # a file that says the folder is dmlc's own

LAUNCH_SH = """#!/bin/sh
# One process a rank on this machine. Several machines: run the same command on each with
# --nnodes N --node-rank I --rdzv-endpoint HOST:PORT instead of --standalone.
exec "${{PYTHON:-python3}}" -m torch.distributed.run --standalone --nproc-per-node {ranks} "$(dirname "$0")/launch.py" "$@"
"""

README = """# Compiled by dmlc {version}

{source} for {ranks} rank(s), {plan}.

    torchrun --standalone --nproc-per-node {ranks} launch.py --inputs x.npz --save y.npz

Needs torch, safetensors and numpy (and triton on a GPU), not dmlc. `model.py` is the program of one rank, `program.mlir` the IR it was
written from, `plan.json` the decisions and their reasons, `kernels.py` the fused kernels, `table.py` the shapes and shardings. With
--profile the program times its ops, which `lines.json` names by line, and writes `profile.json` and `trace.json`.
"""

TRAINING_README = """# Compiled by dmlc {version}

A training step of {source} for {ranks} rank(s), {plan}.

    ./launch.sh --data file.py:function --steps 1000 --lr 3e-4 --log metrics.jsonl --checkpoint-dir checkpoints
    ./launch.sh --resume auto --checkpoint-dir checkpoints --steps 2000 --export trained.safetensors

The function gives a dataset of samples (map-style or iterable); a sample is a dictionary by input name, or a tuple: {inputs}.
Without --data seeded random samples are used. Learning rate, weight decay, clipping (--max-norm), schedule, batch size, number of
microbatches, steps and seed are arguments of this program: changing them compiles nothing. `./launch.sh --help` lists all.
On several machines set NNODES, NODE_RANK and MASTER_ADDR; `slurm.sh` is an example for Slurm.

Needs torch, safetensors and numpy (and triton on a GPU), not dmlc. `model.py` is one step of one rank, `evaluation.py` the model as it is
evaluated (--eval-data), `program.mlir` and `evaluation.mlir` the IR they were written from, `plan.json` the decisions and their reasons,
`table.py` the shapes and shardings, `train.py` and the files it imports the loop around the step. With --profile the first steps time their
ops, which `lines.json` names by line, and write `profile.json` and `trace.json`.
"""


@dataclass(frozen=True)
class Evaluation:
    """The program that evaluates what a training folder trains, and the text of its kernels."""

    module: Module
    kernels: str | None = None


def write_folder(
    module: Module,
    out: Path,
    weights: WeightStore,
    plan: dict[str, Any],
    source: str,
    kernels: str | None = None,
    kernel_report: dict[str, Any] | None = None,
    dumps: dict[str, Path] | None = None,
    extra: dict[str, bytes] | None = None,
    force: bool = False,
    evaluation: Evaluation | None = None,
) -> None:
    """Write everything under `out` at once. `weights`: global arrays by argument name, of both programs where there is an `evaluation`."""
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        _write_files(module, staging, weights, plan, source, kernels, kernel_report, dumps or {}, extra or {}, evaluation)
        _move(staging, out, force)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def check_target(out: Path, force: bool, explicit: bool) -> None:
    """Refuse a place that holds a file, and a folder that exists, unless `force`, or it is dmlc's own and its name was not given by the user."""
    for place in (out, *out.parents):
        if place.exists() and not place.is_dir():
            raise DmlcError(f"{place} is a file; choose another folder with -o")
    if force or not out.exists() or ((out / MARK).exists() and not explicit):
        return
    raise DmlcError(f"the output folder {out} exists; give --force to replace it or another folder with -o")


def _move(staging: Path, out: Path, force: bool) -> None:
    """Put the finished folder in place. A folder that is not dmlc's own keeps its other files."""
    os.chmod(staging, 0o755)
    if not out.exists():
        os.rename(staging, out)
    elif (out / MARK).exists():
        old = staging.with_name(staging.name + "-old")
        os.rename(out, old)
        os.rename(staging, out)
        shutil.rmtree(old)
    elif force:
        shutil.copytree(staging, out, dirs_exist_ok=True)
        shutil.rmtree(staging)


def _write_files(
    module: Module,
    out: Path,
    weights: WeightStore,
    plan: dict[str, Any],
    source: str,
    kernels: str | None,
    kernel_report: dict[str, Any] | None,
    dumps: dict[str, Path],
    extra: dict[str, bytes],
    evaluation: Evaluation | None,
) -> None:
    ranks = Mesh.of(module).devices
    weights_file = None
    if len(weights):
        weights_file = "weights/model.safetensors"
        (out / "weights").mkdir()
        weights.save(out / weights_file)
    title = f"{source}, compiled by dmlc {__version__} for {ranks} rank(s): {plan.get('plan', '')}."
    model, lines = emit_with_lines(module, title)
    texts = {
        **{name: source_of("dmlc.codegen.output", name) for name in FILES},
        "model.py": model,
        "lines.json": lines_text(module.main, lines),
        "table.py": emit_table(module, weights_file, source),
        "prelude.py": prelude_text(),
        "launch.sh": LAUNCH_SH.format(ranks=ranks),
        "program.mlir": print_module(module),
        "plan.json": json.dumps(plan, indent=2) + "\n",
        "README.md": README.format(version=__version__, source=source, ranks=ranks, plan=plan.get("plan", "one rank")),
        MARK: f"{__version__}\n",
    }
    if module.attrs.get("dmlc.mode") == "train":
        texts |= training_texts(module, source, plan)
    if evaluation is not None:
        texts |= evaluation_texts(evaluation, title, weights_file, source)
    if kernels is not None:
        texts["kernels.py"] = kernels
    if kernels is not None or "evaluation_kernels.py" in texts:
        texts["bf16_interpreter.py"] = source_of("dmlc.codegen", "bf16_interpreter.py")
    if kernel_report is not None:
        texts["kernels.json"] = json.dumps(kernel_report, indent=2) + "\n"
    for name, text in texts.items():
        (out / name).write_text(text)
    for name, path in dumps.items():
        (out / "ir" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(str(path), out / "ir" / name)
    for name, data in extra.items():
        (out / name).write_bytes(data)
    for script in out.glob("*.sh"):
        script.chmod(0o755)


def training_texts(module: Module, source: str, plan: dict[str, Any]) -> dict[str, str]:
    """The trainer around the step, and a README that tells how to use it."""
    names = [a.name for a in module.main.args if a.attrs.get("dmlc.role", "input") == "input"]
    inputs = ", ".join(sorted(names, key=lambda name: name == TARGET))  # in the order of a sample that is a tuple
    said = {"version": __version__, "source": source, "ranks": Mesh.of(module).devices, "plan": plan.get("plan", "one rank"), "inputs": f"({inputs})"}
    files = {name: source_of("dmlc.codegen.output", name) for name in TRAINING_FILES}
    return {**files, "launch.sh": source_of("dmlc.codegen.output", "launch_train.sh"), "README.md": TRAINING_README.format(**said)}


def evaluation_texts(evaluation: Evaluation, title: str, weights_file: str | None, source: str) -> dict[str, str]:
    texts = {
        "evaluation.py": emit_model(evaluation.module, f"{title} As it is evaluated.", "evaluation_kernels"),
        "evaluation_table.py": emit_table(evaluation.module, weights_file, source),
        "evaluation.mlir": print_module(evaluation.module),
    }
    return {**texts, "evaluation_kernels.py": evaluation.kernels} if evaluation.kernels is not None else texts

"""compile a model for some devices into a folder

`dmlc compile MODEL --devices 8` imports the model, lets the pipeline decide and writes a folder that runs under torchrun.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmlc.cli._train_options import add_options, parse_compilation, training_of
from dmlc.cli.arguments import Parser, Usage
from dmlc.ir.location import DmlcError, Loc

if TYPE_CHECKING:
    from dmlc.cluster import Cluster
    from dmlc.driver import Compiled, Options

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def parser() -> Parser:
    p = Parser(prog="dmlc compile", description="Compile a model into a folder that runs under torchrun.")
    p.add_argument("model", metavar="MODEL", nargs="?", help="x.onnx, x.pt2, x.mlir, file.py:function or package.module:function")
    add_request(p)
    p.add_argument("--dump-ir", action="store_true", help="write the program after each pass to OUT/ir")
    p.add_argument("--check", action="store_true", help="compare the program before and after each pass, and with the original model")
    p.add_argument("--explain-import", action="store_true", help="write nothing; print what each operator of the model becomes, and what is not supported or slow")
    p.add_argument("--ablation", action="store_true", help="write nothing; print what each decision about fusion, buckets, chunks and order saves a step, as simulated")
    p.add_argument("--fixed-sizes", action="store_true", help="fix every size that the model leaves open: at --dim, --shape, --size-hint, or the default that is printed")
    p.add_argument("--no-kernel-report", action="store_true", help="do not build the kernels for sm_80 and sm_90 to read their registers and spills")
    p.add_argument("-o", "--output", metavar="OUT", help="output folder; default: the model's name with .dmlc")
    p.add_argument("--force", action="store_true", help="replace what is in the output folder")
    add_options(p)
    return p


def add_request(p: Parser) -> None:
    """The options that say what a program is compiled for."""
    p.add_argument("--devices", type=int, metavar="N", help="how many devices (ranks); default: those of the cluster file, else 1")
    p.add_argument("--target", default="", metavar="NAME", help="device to plan for (h100, a100, l4, cpu, ...); default: the visible GPU, else h100")
    p.add_argument("--cluster", default="", metavar="FILE", help="cluster.yaml: hosts, devices and links to plan for (dmlc simulate --print-cluster h100 prints one)")
    p.add_argument("--measured", default="", metavar="DB", help="measured times that prices are taken from first: a file of dmlc profile, or its hash")
    p.add_argument("--plan", default="auto", metavar="TEXT", help="auto, or degrees such as dp=2,tp=4")
    p.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32", help="of products and convolutions; fp16 is for training")
    p.add_argument("--dim", action="append", default=[], metavar="NAME=N", help="fix a size that the model leaves open; the others stay open: the folder takes any that fits")
    p.add_argument("--size-hint", action="append", default=[], metavar="NAME=N", help="plan for this value of an open size, which stays open")
    p.add_argument("--shape", action="append", default=[], metavar="INPUT=AxBxC", help="fix all sizes of an input")
    p.add_argument("--batch-dim", action="append", default=[], metavar="INPUT:DIM", help="which dim of an input is the batch")
    p.add_argument("--trainable", metavar="REGEX", help="which initializers training would change")
    p.add_argument("--memory", default="", metavar="SIZE", help="most a rank may hold, as in 80GB")
    p.add_argument("--slack", type=float, help="how far a rank's share may exceed an even one under an explicit plan; default 0.10")
    p.add_argument("--schedule", choices=("joint", "passes"), default="", help="decide fusion, buckets, chunks and order together, or pass by pass; default passes")
    p.add_argument("--pipeline", default="", metavar="TEXT", help="passes to run instead of the usual ones")


def main(argv: Sequence[str]) -> int:
    p = parser()
    args = parse_compilation(p, argv)
    if args.model is None:
        p.error("no MODEL given")
    options = options_of(args)
    out = Path(args.output) if args.output else default_output(args.model)
    from dmlc.codegen.folder import check_target

    if not (args.ablation or args.explain_import):
        check_target(out, args.force, explicit=args.output is not None)
    try:
        if args.explain_import:
            from dmlc.cli._explain import explain

            return explain(args.model, options)
        with tempfile.TemporaryDirectory() as scratch:
            return run(args, options, out, Path(scratch))
    except DmlcError as e:  # what is wrong with the model as a whole has the model for its place
        raise e if e.loc.known else DmlcError(e.message, Loc(args.model), e.notes, e.source_line, e.span) from e


def run(args: argparse.Namespace, options: Options, out: Path, scratch: Path) -> int:
    from dataclasses import replace

    from dmlc import driver
    from dmlc.cli._ablation import ablation, print_ablation
    from dmlc.cli._summary import print_sizes, print_summary, print_trained
    from dmlc.target import target_of

    begin = time.perf_counter()
    print(f"target {target_of(options)}: plans are for it; the folder runs on CPU with Gloo too", flush=True)
    options = replace(options, open_sizes=options.train is None and not args.fixed_sizes and not args.ablation)
    loaded = driver.load(args.model, options)
    driver.refuse_without_values(loaded)
    print_sizes(loaded)
    if options.train is not None and args.model.endswith(".onnx"):
        print_trained(loaded)
    if args.ablation:
        rows = ablation(loaded, options, _progress())
        _clear_progress()
        print_ablation(rows)
        return 0
    if args.dump_ir:
        options = replace(options, dump=scratch / "ir")
    compiled = driver.compile_model(loaded, options, progress=_progress())
    _clear_progress()
    extra = reference_check(compiled) if args.check else {}
    write(args, compiled, out, scratch, extra)
    print_summary(compiled, out, time.perf_counter() - begin)
    return 0


def write(args: argparse.Namespace, compiled: Compiled, out: Path, scratch: Path, extra: dict[str, bytes]) -> None:
    from dmlc import driver
    from dmlc.codegen.folder import Evaluation, write_folder
    from dmlc.cost.database import files_of

    kernels = kernels_of(compiled)
    report = kernel_report(kernels) if kernels is not None and not args.no_kernel_report else None
    folder = scratch / "ir"
    dumps = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file()} if args.dump_ir else {}
    weights, plan = driver.final_weights(compiled), driver.plan_record(compiled)
    evaluation = None
    if compiled.evaluation is not None:
        evaluation = Evaluation(compiled.evaluation.module, kernels_of(compiled.evaluation))
        extra = {**extra, **original_file(args.model)}
    extra = {**extra, **files_of(compiled.module)}
    for module in [compiled.module, *([evaluation.module] if evaluation else [])]:
        module.attrs.pop("dmlc.weights", None)  # the file beside the dumps; the program's own have other names
    try:
        write_folder(compiled.module, out, weights, plan, Path(args.model).name, kernels, report, dumps, extra, args.force, evaluation)
    except OSError as e:
        raise DmlcError(f"the output folder cannot be written ({e.strerror}); choose another with -o", Loc(str(out))) from None


def kernels_of(compiled: Compiled) -> str | None:
    """Text of `kernels.py`, where the program has kernels."""
    from dmlc.codegen.triton_source import emit_kernels

    return emit_kernels(compiled.module) if any(op.name == "kernel.call" for op in compiled.module.main.ops()) else None


def original_file(model: str) -> dict[str, bytes]:
    """The ONNX file that trained weights can be written back into, its external data inside it."""
    if not model.endswith(".onnx"):
        return {}
    from dmlc.frontend.onnx.loader import whole_file

    data = whole_file(model)
    if data is None:
        print("note: the model is too large for one file, so source.onnx is left out: trained weights come as a state dict only")
    return {} if data is None else {"source.onnx": data}


def kernel_report(kernels: str) -> dict[str, Any] | None:
    """Registers, shared memory and spills of every kernel on sm_80 and sm_90, where triton is installed."""
    import importlib.util

    if importlib.util.find_spec("triton") is None:
        print("note: triton is not installed, so kernels.json is left out")
        return None
    from dmlc.codegen.aot import kernels_report

    return kernels_report(kernels)


def reference_check(compiled: Compiled) -> dict[str, bytes]:
    """Run the compiled program's ranks in the interpreter and the original on equal inputs; refuse a comparison that cannot fail.

    Gives the files `check_inputs.npz` and `check_outputs.npz` for `dmlc run --check`.
    """
    from dmlc.cli._check import compare_with_original
    from dmlc.cli._check_training import compare_step

    if compiled.loaded.imported is not None:
        return compare_step(compiled)
    return compare_with_original(compiled)


# ---------------------------------------------------------------- arguments


def options_of(args: argparse.Namespace, command: str = "dmlc compile") -> Options:
    """The request. A value that no model could be compiled with is wrong usage of `command`; of the pipeline's text the place is told too."""
    from dmlc.cost.database import show
    from dmlc.driver import Options
    from dmlc.passmanager.pipeline import parse_pipeline
    from dmlc.pipelines import PIPELINES

    parse_pipeline(args.pipeline, PIPELINES)
    cluster = cluster_of(args, command)
    try:
        check_request(args)
        return Options(*values_of(args), cluster=cluster, measured=show(args.measured) if args.measured else "", schedule=args.schedule, like=pairs_of(args.size_hint, "--size-hint"))
    except DmlcError as e:
        raise Usage(f"{command}: {e}\n") from None


def cluster_of(args: argparse.Namespace, command: str) -> Cluster | None:
    """The cluster of --cluster, as many of its devices as --devices says; `args.devices` then is their number."""
    if not args.cluster:
        args.devices = 1 if args.devices is None else args.devices
        return None
    if args.target:
        raise Usage(f"{command}: --cluster says what the devices are; leave --target out\n")
    from dmlc.cluster.file import read_cluster

    cluster = read_cluster(args.cluster)
    if args.devices is None:
        args.devices = cluster.count
    return cluster if args.devices < 1 else cluster.take(args.devices)


def check_request(args: argparse.Namespace) -> None:
    from dmlc.cluster import device_named
    from dmlc.planner.request import parse_plan

    if args.devices < 1:
        raise DmlcError(f"--devices must be at least 1, not {args.devices}")
    if args.slack is not None and not args.slack >= 0:
        raise DmlcError(f"--slack must not be negative: {args.slack}")
    if args.target:
        device_named(args.target)
    if args.plan != "auto":
        parse_plan(args.plan, args.devices)


def values_of(args: argparse.Namespace) -> tuple[Any, ...]:
    return (
        args.devices, args.plan, args.precision, args.target, memory_of(args.memory), args.slack,
        pairs_of(args.dim, "--dim"),
        dict(_pair(s, "--shape", "x=8x3x48x192", _shape) for s in args.shape),
        tuple(args.batch_dim), args.trainable, args.pipeline, args.check, None, training_of(args), args.freeze, args.microbatches or 1,
    )  # fmt: skip


def pairs_of(texts: Sequence[str], option: str) -> dict[str, int]:
    return dict(_pair(text, option, "batch=32", int) for text in texts)


def memory_of(text: str) -> int:
    """`80GB`, `512MiB` or a number of bytes."""
    if not text:
        return 0  # the device's
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", text)
    size = int(float(match[1]) * UNITS.get(match[2].lower(), 0)) if match is not None else 0
    if size < 1:
        raise DmlcError(f"--memory takes a size such as 80GB or 512MiB, not '{text}'")
    return size


def _pair(text: str, option: str, example: str, convert: Any) -> tuple[str, Any]:
    name, _, value = text.rpartition("=")
    try:
        if not name:
            raise ValueError
        return name, convert(value)
    except ValueError:
        raise DmlcError(f"{option} takes for example {example}, not '{text}'") from None


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.replace(",", "x").split("x"))


def default_output(model: str) -> Path:
    """`resnet.dmlc` for `models/resnet.onnx`; `gpt2-build.dmlc` for `gpt2.py:build`."""
    place, _, function = model.partition(":")
    return Path(Path(place).stem + (f"-{function}" if function else "") + ".dmlc")


# ---------------------------------------------------------------- progress


def _progress() -> Any:
    if not sys.stderr.isatty():
        return lambda pass_: None
    return lambda pass_: print(f"\r\033[K{pass_.name} …", end="", file=sys.stderr, flush=True)


def _clear_progress() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)

"""What `dmlc simulate` is asked about: the program of a compiled folder, or of a model that goes through the pipeline here."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from dmlc.cli.arguments import Parser
from dmlc.cli.compile import add_request, options_of, pairs_of
from dmlc.cluster import Cluster
from dmlc.cost.database import look_in, show
from dmlc.ir.binding import at_usual_sizes
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError, Loc

ANYWHERE = ("cluster", "measured", "dim")  # options of a compilation that also make sense for a program that is compiled


@dataclass(frozen=True)
class Subject:
    """A per-rank program. `plan` as it was chosen, "" where nothing says so; `note` is what the reader should know of it. Of a deep model, `fewer` has
    one layer less than `module`, which itself leaves out `left_out` of them."""

    name: str
    module: Module
    plan: str = ""
    note: str = ""
    fewer: Module | None = None
    left_out: int = 0


def subject_of(args: argparse.Namespace) -> Subject:
    """The program of a folder, of a per-rank text, or of a model, compiled in memory without kernels and weights."""
    path = Path(args.model)
    if path.is_dir():
        return of_folder(path, args)
    if path.suffix == ".mlir" and path.is_file() and "dmlc.spmd" in (module := read_program(path)).attrs:
        refuse_request(args, "a text of a rank's program")
        return priced_on(Subject(path.name, at_usual_sizes(module, given_sizes(args)), plan_of(module)), args)
    return of_model(args)


def read_program(path: Path) -> Module:
    import dmlc.ops  # noqa: F401  (registers the op set)
    from dmlc.ir.parser import parse_module
    from dmlc.ir.verifier import verify

    try:
        module = parse_module(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError:
        raise DmlcError("not a text file (a module is UTF-8 text)", Loc(str(path))) from None
    verify(module)
    look_in(path.parent)
    return module


def of_folder(folder: Path, args: argparse.Namespace) -> Subject:
    program = folder / "program.mlir"
    if not program.is_file():
        raise DmlcError(f"{folder} is not a compiled folder (it has no program.mlir); make one with dmlc compile")
    refuse_request(args, "a compiled folder")
    module = read_program(program)
    try:
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DmlcError(f"{folder / 'plan.json'} is missing or damaged; compile again") from None
    return priced_on(Subject(str(plan.get("model", folder.name)), at_usual_sizes(module, given_sizes(args)), plan.get("plan", "")), args)


def given_sizes(args: argparse.Namespace) -> dict[str, int]:
    """What --dim says of a compiled program's open sizes."""
    return pairs_of(args.dim, "--dim")


def refuse_request(args: argparse.Namespace, what: str) -> None:
    """What was decided at compilation is not asked for again: an option that says something else would be ignored."""
    from dmlc.cli._train_options import add_options

    p = Parser(prog="dmlc simulate")
    add_request(p)
    add_options(p)
    usual = vars(p.parse([]))
    given = [name for name, value in usual.items() if name not in ANYWHERE and getattr(args, name, value) != value]
    if given:
        raise DmlcError(
            f"--{given[0].replace('_', '-')} is for a model; {what} has its plan already", Loc(args.model), ("compile again, or simulate the model",)
        )


def priced_on(subject: Subject, args: argparse.Namespace) -> Subject:
    """With --cluster, the program as it was compiled, on that cluster; with --measured, by those times."""
    if args.measured:
        subject.module.attrs["dmlc.measured"] = show(args.measured)
    if not args.cluster:
        return subject
    from dmlc.cluster.file import read_cluster
    from dmlc.ir.sharding import Mesh

    before, ranks = Cluster.of(subject.module).device.name, Mesh.of(subject.module).devices
    cluster = read_cluster(args.cluster)
    if cluster.count < ranks:
        raise DmlcError(f"the cluster has {cluster.count} devices; the program is compiled for {ranks} ranks", Loc(args.cluster))
    subject.module.attrs["dmlc.cluster"] = cluster.take(ranks).to_attr()
    return Subject(subject.name, subject.module, subject.plan, f"priced on {args.cluster}; it was compiled for {before}")


def of_model(args: argparse.Namespace) -> Subject:
    from dmlc import driver
    from dmlc.deep import layers_of

    options = options_of(args, "dmlc simulate")
    loaded = driver.load(args.model, options)
    loaded.evaluation = None  # a step is what is simulated
    layers = None if args.whole else layers_of(loaded, options)
    if layers is not None:
        return Subject(Path(args.model).name, layers.more, plan_of(layers.more), layers.note, layers.fewer, layers.left_out)
    compiled = driver.compile_model(loaded, options)
    return Subject(Path(args.model).name, compiled.module, plan_of(compiled.module))


def plan_of(module: Module) -> str:
    plan = module.attrs.get("dmlc.plan")
    return "" if plan is None else f"dp={plan['dp']},tp={plan['tp']}" + (f",zero={plan['zero']}" if plan.get("zero") else "")

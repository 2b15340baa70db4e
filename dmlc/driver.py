"""From a model's name to a compiled program in memory: what `dmlc compile` does between its arguments and the output folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from dmlc.cluster import Cluster
from dmlc.ir.attributes import AttrDict
from dmlc.ir.binding import at_usual_sizes, bind
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError, Loc, Remark
from dmlc.ir.open_sizes import ATTRIBUTE, OpenSizes, UnknownSize, fix
from dmlc.ir.weights import WeightStore
from dmlc.passmanager.base import Pass
from dmlc.passmanager.manager import Report
from dmlc.record import plan_record as plan_record
from dmlc.target import cluster_of
from dmlc.training import HELD, Pin, Training, batch_of, degrees_of, evaluation_form, freeze, mark_ranges, name_loss, same_weights, unused_parameters

USUAL = {None: "inference", "train": "training", "eval": "evaluation"}  # the module's mode -> its pipeline
SCHEDULES = ("joint", "passes")  # who decides groups, buckets, chunks and order; the last is the usual one


@dataclass(frozen=True)
class Options:
    """What the user asked for. `memory` in bytes a rank (0: the device's), `precision` fp32 or bf16, `train` None for a program that is not trained.
    `freeze` is a regular expression over parameters that training leaves alone, `microbatches` how many parts the batch is worked through in.
    `cluster` says the devices and their links; None for `devices` of the target with their usual links. `schedule`: groups, buckets, chunks and order
    are decided together (`joint`) or by one pass after another (`passes`). `dims` fixes sizes that the model leaves open; the others stay open with
    `open_sizes`, so that the folder takes any, and get a default without. `like`: sizes to price open ones at."""

    devices: int = 1
    plan: str = "auto"
    precision: str = "fp32"
    target: str = ""
    memory: int = 0
    slack: float | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    batch_dims: tuple[str, ...] = ()
    trainable: str | None = None
    pipeline: str = ""
    check: bool = False
    dump: Path | None = None
    train: Training | None = None
    freeze: str | None = None
    microbatches: int = 1
    cluster: Cluster | None = None
    measured: str = ""  # hash of a database of measured times
    schedule: str = ""
    open_sizes: bool = False
    like: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Loaded:
    """An imported model: module, weights, the original as a callable on {input: array}, sizes that were open (name, size, why).
    To be trained, it is imported in training mode, and `evaluation` is the same model in evaluation mode."""

    source: str
    module: Module
    weights: WeightStore
    reference: Callable[..., dict[str, Any]] | None
    sizes: list[tuple[str, int, str]]
    remarks: list[Remark]
    examples: dict[str, Any] = field(default_factory=dict)
    evaluation: Loaded | None = None
    imported: Module | None = None  # as it was before any pass, where a check will ask for it


@dataclass
class Compiled:
    loaded: Loaded
    module: Module
    weights: WeightStore
    reports: list[Report]
    remarks: list[Remark]
    ops_before: int
    evaluation: Compiled | None = None

    @property
    def planned(self) -> bool:
        """Whether this run decided the plan. A text that came with places keeps them, and its price may be that of places edited since."""
        return any(r.name == "plan" and r.changed for r in self.reports)


def load(source: str, options: Options) -> Loaded:
    """Import `x.onnx`, `x.pt2`, `x.mlir` or `file.py:function` / `package.module:function`; to train it, ready for the training pipeline."""
    import dmlc.ops  # noqa: F401  (registers the op set)

    loaded = _load(source, options)
    if options.train is not None:
        prepare_training(loaded, options)
    return loaded


def _load(source: str, options: Options) -> Loaded:
    suffix = Path(source).suffix
    if suffix == ".onnx":
        return _load_onnx(source, options)
    if suffix == ".mlir":
        _refuse(source, "a text module has its sizes", shape=options.shapes, dim=options.dims, size_hint=options.like, batch_dim=options.batch_dims)
        if options.train is None:
            _refuse(source, "a text module says what is trainable", trainable=options.trainable)
        loaded = _load_text(source)
        loaded.module = loaded.module if options.open_sizes else at_usual_sizes(loaded.module)
        return loaded
    if suffix == ".pt2" or ":" in source:
        return _load_torch(source, options)
    if Path(source).exists():
        raise DmlcError("not a model: the name must end in .onnx, .pt2 or .mlir, or be file.py:function", Loc(source))
    raise DmlcError("no such model (x.onnx, x.pt2, x.mlir, file.py:function or package.module:function)", Loc(source))


def _load_onnx(source: str, options: Options) -> Loaded:
    from dmlc.frontend.onnx.api import import_onnx
    from dmlc.frontend.onnx.reference import OnnxReference

    def imported(mode: str) -> Loaded:
        result = import_onnx(source, options.dims, options.shapes, options.devices, options.batch_dims, options.trainable, mode, options.open_sizes, options.like)
        sizes = [(s.name, s.size, s.why) for s in result.sizes]
        return Loaded(source, result.module, result.weights, OnnxReference(source, result.inputs), sizes, result.remarks)

    if options.train is None:
        return imported("")
    if ":" in options.train.loss:
        raise DmlcError(f"the loss {options.train.loss} is traced with a PyTorch model; for an ONNX file take cross-entropy, mse or bce", Loc(source))
    loaded = imported("train")
    loaded.evaluation = imported("eval")
    return loaded


def _load_torch(source: str, options: Options) -> Loaded:
    from dmlc.frontend.torch_export import import_program, import_training

    why = "a PyTorch model has its example's shapes (or --dim for dynamic ones)"
    _refuse(source, why, shape=options.shapes, batch_dim=options.batch_dims)

    dims = options.dims if options.open_sizes else {**options.like, **options.dims}

    def loaded(result: Any) -> Loaded:
        sizes = [(name, size, "given" if name in dims else "the example's") for name, size in result.dims.items() if name not in OpenSizes.of(result.module).sizes]
        return Loaded(source, result.module, result.weights, result.reference, sizes, list(result.remarks), dict(result.inputs))

    if options.train is None:
        _refuse(source, "a PyTorch model's own parameters say whether they are trained", trainable=options.trainable)
        return loaded(import_program(source, dims, open_sizes=options.open_sizes, like=options.like))
    own = options.train.loss if ":" in options.train.loss else ""
    trained, evaluated = import_training(source, dims, own, options.train.class_dim)
    first = loaded(trained)
    first.evaluation = loaded(evaluated) if evaluated is not None else None
    return first


def _refuse(source: str, why: str, **options: Any) -> None:
    """Options that would be ignored for this kind of model are refused."""
    for name, given in options.items():
        if given:
            raise DmlcError(f"--{name.replace('_', '-')} is for ONNX models; {why}", Loc(source))


def _load_text(source: str) -> Loaded:
    from dmlc.cost.database import look_in
    from dmlc.ir.parser import parse_module
    from dmlc.ir.verifier import verify
    from dmlc.passmanager.context import Context

    try:
        text = Path(source).read_text(encoding="utf-8")
    except OSError as e:
        raise DmlcError(f"cannot read the file: {e.strerror}", Loc(source)) from None
    except UnicodeDecodeError:
        raise DmlcError("not a text file (a module is UTF-8 text)", Loc(source)) from None
    module = parse_module(text, source)
    verify(module)
    look_in(Path(source).parent)
    return Loaded(source, module, Context.for_module(module, Path(source).parent).weights, None, [], [])


def prepare_training(loaded: Loaded, options: Options) -> None:
    """Parameters that are left alone, the loss's name, and a program for evaluation where the model gave none."""
    assert options.train is not None
    if loaded.module.attrs.get("dmlc.mode") == "train":
        return  # a text that says so itself
    trainable = None if loaded.source.endswith(".onnx") else options.trainable  # there it chose the parameters
    if loaded.evaluation is None:
        loaded.evaluation = replace(loaded, module=evaluation_form(loaded.module), remarks=[])
    for each in (loaded, loaded.evaluation):
        mark_ranges(each.module)
        if ":" in options.train.loss or not options.train.loss:
            name_loss(each.module)
    freeze(loaded.module, trainable, options.freeze)
    unused = unused_parameters(loaded.module)
    if unused:
        loaded.remarks.append(Remark("import", f"no gradient reaches {', '.join(unused)}: the program never reads them, so they stay as they are"))


def refuse_without_values(loaded: Loaded) -> None:
    """A folder holds the weights, so a model on the meta device has none to write."""
    missing = loaded.weights.without_values
    if missing:
        named = f"'{missing[0]}'" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        raise DmlcError(f"the weights have shapes but no values ({named}): the model is on the meta device", Loc(loaded.source), ("dmlc simulate takes such a model; a folder needs its weights",))


def compile_model(loaded: Loaded, options: Options, progress: Callable[[Any], None] = lambda p: None) -> Compiled:
    """Run the pipeline over a loaded model (its module is changed in place), and under training over its evaluation program too."""
    loaded.imported = loaded.module.clone() if options.check and options.train is not None else None
    compiled = _with_open_sizes(loaded, options, progress) if ATTRIBUTE in loaded.module.attrs else run_pipeline(loaded, options, progress)
    if loaded.evaluation is not None:
        dump = options.dump / "evaluation" if options.dump is not None else None
        same = replace(options, plan=degrees_of(compiled.module) or options.plan, pipeline="", dump=dump)
        compiled.evaluation = run_pipeline(loaded.evaluation, same, progress, "eval", Pin(compiled.module))
        same_weights(compiled.module, compiled.evaluation.module)
    return compiled


def _with_open_sizes(loaded: Loaded, options: Options, progress: Callable[[Any], None]) -> Compiled:
    """A size that some pass has to know is fixed, which a remark tells, and the passes begin again."""
    module = loaded.module
    while True:
        loaded.module = module.clone()
        try:
            return run_pipeline(loaded, options, progress)
        except UnknownSize as e:
            sizes = OpenSizes.of(module)
            planned = {name: s.like for name, s in sizes.sizes.items()}
            loaded.remarks += fix(sizes, e)
            module = bind(module, {name: n for name, n in planned.items() if name not in sizes.sizes})


def run_pipeline(
    loaded: Loaded, options: Options, progress: Callable[[Any], None], mode: str = "train", before_plan: Pass | None = None, verified: bool = True
) -> Compiled:
    """One program through its pipeline: the one asked for, or the usual one of its mode, with one more pass before `plan` where one is given.
    `verified`: after each pass."""
    from dmlc.cost.database import keep_named
    from dmlc.passmanager.context import Context
    from dmlc.passmanager.manager import PassManager
    from dmlc.passmanager.pipeline import parse_pipeline
    from dmlc.pipelines import PIPELINES

    module = loaded.module
    annotate(module, options, mode)
    context = Context(loaded.weights)
    passes = parse_pipeline(options.pipeline or usual_pipeline(module), PIPELINES)
    if before_plan is not None:
        at = next(i for i, p in enumerate(passes) if p.name == "plan")
        passes = (*passes[:at], before_plan, *passes[at:])
    before = sum(1 for op in module.main.ops() if op is not module.main.return_op)
    if options.dump is not None:
        _save_weights(loaded, options.dump)
        keep_named(module, options.dump)
    manager = PassManager(passes, verified, options.check, options.dump, False, progress)
    reports = manager.run(module, context)
    return Compiled(loaded, module, context.weights, reports, loaded.remarks + context.remarks, before)


def usual_pipeline(module: Module) -> str:
    """The name of the pipeline that a module with its request in it goes through."""
    name = USUAL[module.attrs.get("dmlc.mode")]
    return f"{name}-joint" if module.attrs["dmlc.request"].get("schedule", SCHEDULES[-1]) == "joint" else name


def _save_weights(loaded: Loaded, folder: Path) -> None:
    """Dumps refer to their weights, so that `dmlc opt` on one of them repeats the next pass."""
    if len(loaded.weights):
        folder.mkdir(parents=True, exist_ok=True)
        loaded.weights.save(folder / "weights.safetensors")
        loaded.module.attrs["dmlc.weights"] = "weights.safetensors"


def annotate(module: Module, options: Options, mode: str = "train") -> None:
    """Write the request into the module's text: from here on only the text steers. What a text module already says stays."""
    from dmlc.planner.request import parse_plan

    if options.devices < 1:
        raise DmlcError(f"--devices must be at least 1, not {options.devices}")
    if options.plan != "auto":
        parse_plan(options.plan, options.devices)
    request: dict[str, Any] = {"devices": options.devices, "plan": options.plan, "precision": options.precision}
    if options.memory:
        request["memory"] = options.memory
    if options.slack is not None:
        request["slack"] = options.slack
    if options.schedule:
        request["schedule"] = options.schedule
    if options.train is not None:
        request |= {"microbatches": options.microbatches, **batch_of(module)}
    refuse_other_request(module, options)
    if options.train is not None:
        module.attrs.setdefault("dmlc.mode", mode)
        module.attrs.setdefault("dmlc.train", options.train.to_attr())
    if options.measured:
        module.attrs.setdefault("dmlc.measured", options.measured)
    module.attrs.setdefault("dmlc.request", AttrDict(request))
    module.attrs.setdefault("dmlc.cluster", cluster_of(options).to_attr())


def refuse_other_request(module: Module, options: Options) -> None:
    """A text that has its request in it is not compiled for another one: an option that says something else would be ignored."""
    if "dmlc.request" not in module.attrs:
        return
    if options.train is not None and "dmlc.train" in module.attrs and options.train.to_attr() not in (module.attrs["dmlc.train"], Training().to_attr()):
        raise DmlcError("the options for training are not what the text says (in dmlc.train)", notes=("leave them out, or edit the text",))
    if options.measured not in ("", module.attrs.get("dmlc.measured", options.measured)):
        raise DmlcError(f"--measured holds {options.measured}, but the text asks for {module.attrs['dmlc.measured']} (in dmlc.measured)", notes=("leave --measured out, or edit the text",))
    said = {**module.attrs["dmlc.request"], "target": module.attrs.get("dmlc.cluster", {}).get("device")}
    usual = Options()
    for name in ("devices", "plan", "precision", "memory", "slack", "schedule", "target"):
        asked, has = getattr(options, name), said.get(name, "nothing")
        if asked not in (getattr(usual, name), has):
            raise DmlcError(f"--{name} {asked} is not what the text says: {has} (in dmlc.{'cluster' if name == 'target' else 'request'})", notes=(f"leave --{name} out, or edit the text",))
    if options.cluster is not None and "dmlc.cluster" in module.attrs and Cluster.from_attr(module.attrs["dmlc.cluster"]) != options.cluster:
        raise DmlcError("--cluster is not what the text says (in dmlc.cluster)", notes=("leave --cluster out, or edit the text",))


# ---------------------------------------------------------------- results


def final_weights(compiled: Compiled) -> WeightStore:
    """What the output folder stores: global arrays by argument, recipes evaluated, each made when it is asked for and not kept. Of training also
    what only the evaluation program reads."""
    from dmlc.interpret.arguments import Arguments, global_type

    store = final_weights(compiled.evaluation) if compiled.evaluation is not None else WeightStore()
    arguments = Arguments(compiled.module, {}, compiled.weights, keep=False)
    roles = HELD if compiled.module.attrs.get("dmlc.mode") else (*HELD, "seed", "hyper", "size", "state")
    for a in compiled.module.main.args:
        if a.attrs.get("dmlc.role", "input") in roles:
            store.add(a.name, partial(arguments.array, a), global_type(a.tensor, a.attrs))
    return store

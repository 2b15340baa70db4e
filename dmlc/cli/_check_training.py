"""`dmlc compile --train --check`: one step of the compiled program on all its ranks against one step that shares fewer of its passes.

Where a PyTorch model is there and nothing is drawn at random, that is plain PyTorch in float64 (autograd and torch.optim); else the
whole-batch step function in float64, before anything was planned or split. Both start from the same weights, on the same batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dmlc.ir.location import DmlcError, Loc
from dmlc.passmanager.check import relative_error, seeded_inputs
from dmlc.pipelines import GLOBAL

if TYPE_CHECKING:
    from dmlc.driver import Compiled
    from dmlc.ir.core import BlockArgument, Module

HYPERS = {"lr": 1e-2, "weight_decay": 1e-2, "max_norm": 1.0}
TOLERANCE = {"fp32": 1e-6, "bf16": 5e-2, "fp16": 2e-2}  # fp32: with every float as float64; the others: as typed, and of the loss and the gradients' norm only
DRAWN = ("dmlc.dropout", "dmlc.dropout_mask", "dmlc.random_uniform", "dmlc.random_normal")


def compare_step(compiled: Compiled) -> dict[str, bytes]:
    """Print how far loss, gradient norm and every parameter's change are off; raise when they are, or when nothing would show it."""
    from dmlc.interpret.train import Trainer

    step = step_function(compiled)
    exact = compiled.module.attrs["dmlc.request"].get("precision", "fp32") == "fp32"
    found = []
    for seed in (0, 1):
        trainer = Trainer(compiled.module, compiled.weights, promote="f64" if exact else None)
        before = {name: x.clone() for name, x in trainer.state.items()}
        numbers = trainer.step(inputs_for(compiled, step, seed), **hypers(compiled.module))
        found.append((numbers, {name: x - before[name] for name, x in trainer.state.items() if x.is_floating_point()}))
    (numbers, changes), (other, _) = found
    if statistics_differ(compiled, step):
        print("check: batch norms take the statistics of each microbatch or rank, so no step of the whole batch is the same; nothing was compared")
        return {}
    refuse_vacuous(numbers, other, changes, compiled.loaded.source)
    wanted, wanted_changes, what = reference_step(compiled, step, inputs_for(compiled, step, 0))
    report(compiled, numbers, changes if exact else {}, wanted, wanted_changes, what)
    return {}


def step_function(compiled: Compiled) -> Module:
    """The step function of the whole batch, from the imported program."""
    from dmlc.passmanager.context import Context
    from dmlc.passmanager.manager import PassManager
    from dmlc.passmanager.pipeline import parse_pipeline

    assert compiled.loaded.imported is not None
    text = ",".join((*GLOBAL, "autodiff", "optimizer"))
    module = compiled.loaded.imported.clone()
    for name in ("dmlc.mode", "dmlc.train", "dmlc.request", "dmlc.cluster"):
        module.attrs[name] = compiled.module.attrs[name]
    PassManager(parse_pipeline(text, {})).run(module, Context(compiled.loaded.weights))
    return module


def hypers(module: Module) -> dict[str, float]:
    names = {a.name for a in module.main.args if a.attrs.get("dmlc.role") == "hyper"}
    return {name: value for name, value in HYPERS.items() if name in names}


def inputs_for(compiled: Compiled, step: Module, seed: int) -> dict[str, Any]:
    """Seeded inputs of the whole batch; those of seed 0 are the model's example where it has one."""
    import numpy

    made = {**seeded_inputs(step, seed), **(compiled.loaded.examples if seed == 0 else {})}
    return {n: a.astype(numpy.float32) if a.dtype == numpy.float64 and step.main.arg(n).dtype != "f64" else a for n, a in made.items()}


def refuse_vacuous(numbers: dict[str, Any], other: dict[str, Any], changes: dict[str, Any], source: str) -> None:
    """A comparison that cannot fail proves nothing: the loss must depend on the batch, and the step must change something."""
    if relative_error(numbers["loss"], other["loss"]) < 1e-7:
        raise DmlcError("the check would prove nothing: the loss doesn't depend on the inputs", Loc(source), ("give the model real weights, or leave --check out",))
    if not any(bool((x != 0).any()) for x in changes.values()):
        raise DmlcError("the check would prove nothing: a step changes no parameter", Loc(source))


# ---------------------------------------------------------------- the other step


def reference_step(compiled: Compiled, step: Module, inputs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], str]:
    """(loss and gradient norm, changes by argument, what computed them)."""
    eager = getattr(compiled.loaded.reference, "eager", None)
    if eager is not None and agrees_with_eager(compiled, step):
        from dmlc.frontend.torch_training import TrainingStep

        made = TrainingStep(compiled.loaded.reference, compiled.module.attrs["dmlc.train"])
        numbers, by_name = made(inputs, **HYPERS)
        params = [a for a in compiled.module.main.args if a.attrs.get("dmlc.role") == "param"]
        return numbers, {a.name: of_argument(a, by_name) for a in params}, "PyTorch in float64"
    from dmlc.interpret.train import Trainer

    trainer = Trainer(step, compiled.loaded.weights, promote="f64")
    before = {name: x.clone() for name, x in trainer.state.items()}
    numbers = trainer.step(inputs, **hypers(step))
    return numbers, {name: x - before[name] for name, x in trainer.state.items() if x.is_floating_point()}, "the whole-batch program in float64"


def of_argument(arg: BlockArgument, by_name: dict[str, Any]) -> Any:
    """The model's tensor that an argument stands for, or the part of one (`dmlc.part`)."""
    part = arg.attrs.get("dmlc.part")
    if part is None:
        return by_name[arg.attrs["dmlc.names"][0]]
    place = by_name[part["names"][0]].reshape(part["split"]).narrow(part["dim"], part["start"], part["stop"] - part["start"])
    return place.reshape(tuple(arg.attrs.get("dmlc.global", arg.shape)))


def agrees_with_eager(compiled: Compiled, step: Module) -> bool:
    """Whether plain PyTorch computes the same: it draws other random numbers, and a loss scale is no part of its step."""
    drawn = any(op.name in DRAWN for op in step.main.ops())
    return not drawn and compiled.module.attrs["dmlc.train"]["loss_scale"] == "none"


def statistics_differ(compiled: Compiled, step: Module) -> bool:
    train, request = compiled.module.attrs["dmlc.train"], compiled.module.attrs["dmlc.request"]
    split = request.get("microbatches", 1) > 1 or (train["batch_norm"] == "rank" and request["devices"] > 1)
    return split and any(op.name == "dmlc.batch_norm_train" for op in step.main.ops())


def off_by_kind(module: Module, changes: dict[str, Any], wanted: dict[str, Any]) -> dict[str, float]:
    """How far each argument's change is off, over the largest change of an argument of its kind: a gradient may be zero but for rounding,
    and an optimizer that divides by its size makes that visible."""
    kinds = {a.name: a.attrs.get("dmlc.slot") or a.attrs.get("dmlc.role") for a in module.main.args}
    scale: dict[Any, float] = {}
    for name, x in wanted.items():
        if name in changes and x.numel():
            scale[kinds[name]] = max(scale.get(kinds[name], 0.0), float(x.abs().max()))
    return {n: float((x - wanted[n]).abs().max()) / (scale[kinds[n]] or 1.0) for n, x in changes.items() if n in wanted and x.numel()}


def report(compiled: Compiled, numbers: dict[str, Any], changes: dict[str, Any], wanted: dict[str, Any], wanted_changes: dict[str, Any], what: str) -> None:
    """One line a number, one on the parameter that is off most. Raises where a difference is too large."""
    allowed = TOLERANCE[compiled.module.attrs["dmlc.request"].get("precision", "fp32")]
    errors = {name: relative_error(wanted[name], numbers[name]) for name in ("loss", "grad_norm") if name in numbers}
    for name, error in errors.items():
        print(f"check: {name} {numbers[name]:.6g}: off by {error:.1e} from {what}")
    off = off_by_kind(compiled.module, changes, wanted_changes)
    if off:
        worst = max(off, key=lambda name: off[name])
        print(f"check: {len(off)} arguments after a step: their change is off by at most {off[worst]:.1e} of scale (%{worst})")
        errors[worst] = off[worst]
    bad = max(errors, key=lambda name: errors[name])
    if not errors[bad] <= allowed:
        raise DmlcError(f"a step of the compiled program differs from {what}: {bad} by {errors[bad]:.2e} of scale (allowed {allowed:.0e})", Loc(compiled.loaded.source))

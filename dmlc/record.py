"""`plan.json`: what was decided and why, as plain data."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmlc import __version__
from dmlc.cost.model import type_bytes
from dmlc.ir.attributes import AttrDict
from dmlc.ir.binding import at_usual_sizes
from dmlc.ir.core import BlockArgument, Module
from dmlc.ir.open_sizes import OpenSizes
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import TensorType
from dmlc.training import names_of, unused_parameters

if TYPE_CHECKING:
    from dmlc.driver import Compiled
    from dmlc.simulate.step import StepReport

SPLIT_GRADIENTS = 2  # level of ZeRO from which on gradients are split too


def plan_record(compiled: Compiled) -> dict[str, Any]:
    """`plan.json`: mesh, shardings, the reason for each choice, prices and the optimality gap, versions."""
    from dmlc.cost import CostModel
    from dmlc.ir.attribute_printer import attribute_text
    from dmlc.simulate.step import simulate_step

    module = compiled.module
    cost = CostModel.of(module)
    step = simulate_step(at_usual_sizes(module), cost)
    attr = module.attrs.get("dmlc.plan", AttrDict())
    prices = attr if compiled.planned else AttrDict()
    main = module.main
    shardings = {a.name: attribute_text(s) for a in main.args if (s := a.attrs.get("dmlc.storage") or a.attrs.get("dmlc.sharding")) is not None}
    record: dict[str, Any] = {
        "model": Path(compiled.loaded.source).name,
        "plan": f"dp={attr.get('dp', 1)},tp={attr.get('tp', 1)}" + (f",zero={attr['zero']}" if attr.get("zero") else ""),
        "mesh": dict(Mesh.of(module).axes.sizes),
        "price_ps": prices.get("price"),
        "proven_bound_ps": prices.get("bound"),
        "optimality_gap": prices["gap"] / 1e6 if prices else None,
        "second_best": {"plan": prices["second"]["plan"], "price_ps": prices["second"]["price"]} if "second" in prices else None,
        "shardings": shardings,
        "reasons": [{"pass": r.pass_name, "op": r.op_id, "where": str(r.loc) if r.loc.known else "", "text": r.text} for r in compiled.remarks],
        "sizes": [{"name": n, "size": s, "why": w} for n, s, w in compiled.loaded.sizes],
        "open_sizes": {name: {"least": s.least, "most": s.most, "planned_for": s.like} for name, s in OpenSizes.of(module).sizes.items()},
        "passes": [{"name": r.name, "changed": r.changed, "ops_before": r.ops_before, "ops_after": r.ops_after, "check": r.check} for r in compiled.reports],
        "predicted": prediction(module, cost.cluster.device.name, step),
        "versions": versions(),
    }
    return {**record, "training": training_record(compiled, step)} if module.attrs.get("dmlc.mode") == "train" else record


def prediction(module: Module, device: str, step: StepReport) -> dict[str, Any]:
    """What a step takes on the cluster it is compiled for, in picoseconds, and by what share that may be off."""
    from dmlc.simulate.accuracy import error_of

    times = {"step_ps": step.time, "computation_ps": step.computation, "exposed_communication_ps": step.exposed, "bound_ps": step.bounds.best}
    return {"target": device, "measured": module.attrs.get("dmlc.measured"), "error": error_of(step.sources)["share"], **times}


def versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"dmlc": __version__, "python": platform.python_version()}
    for name in ("torch", "scipy", "triton", "onnx"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


# ---------------------------------------------------------------- training


def training_record(compiled: Compiled, step: StepReport) -> dict[str, Any]:
    """Of a training step: what was asked for, what a rank holds by its plan, what a step sends, which parameters stay as they are."""
    module = compiled.module
    if "dmlc.spmd" not in module.attrs:
        return {}
    params = [a for a in module.main.args if a.attrs.get("dmlc.role") == "param"]
    return {
        "request": dict(module.attrs["dmlc.train"]),
        "degrees": {key: module.attrs.get("dmlc.plan", {}).get(key, default) for key, default in (("dp", 1), ("tp", 1), ("zero", 0))},
        "batch": module.attrs["dmlc.request"].get("batch"),
        "microbatches": module.attrs["dmlc.request"].get("microbatches", 1),
        "bytes_a_rank": held_bytes(module),
        "trained": sum(1 for a in params if a.uses and "dmlc.frozen" not in a.attrs),
        "frozen": [n for a in params if a.uses and "dmlc.frozen" in a.attrs for n in names_of(a)],
        "unused": unused_parameters(module),
        "collectives_a_step": {kind: {"count": t.count, "bytes": t.bytes} for kind, t in step.traffic.items()},
        "buckets": [len(op.operands) for op in module.main.ops() if op.dialect == "comm" and len(op.operands) > 1],
        "predicted": {"source": "cost model, not measured", "step_ps": step.time, "computation_ps": step.computation, "exposed_communication_ps": step.exposed},
    }


def held_bytes(module: Module) -> dict[str, int]:
    """Bytes a rank holds between and during steps, by the plan: parameters, optimizer state (in its storage), buffers, and the accumulated
    gradients: in the parameter's own parts, from ZeRO-2 on in those of its optimizer state; in f32 where the parameter has less."""
    zero = module.attrs.get("dmlc.plan", {}).get("zero", 0)
    by_role = {role: [a for a in module.main.args if a.attrs.get("dmlc.role") == role] for role in ("param", "buffer", "state")}
    held = {name: sum(type_bytes(a.type) for a in by_role[role]) for name, role in (("parameters", "param"), ("buffers", "buffer"), ("optimizer_state", "state"))}
    gradients = [_accumulator(a, by_role["state"], Mesh.of(module), zero) for a in by_role["param"] if a.uses and "dmlc.frozen" not in a.attrs]
    return {**held, "gradients": sum(map(type_bytes, gradients))}


def _accumulator(arg: BlockArgument, states: list[BlockArgument], mesh: Mesh, zero: int) -> TensorType:
    """Type of the gradient that a rank adds up for a parameter."""
    whole = arg.tensor.with_shape(tuple(arg.attrs.get("dmlc.global", arg.shape))).with_dtype("f64" if arg.dtype == "f64" else "f32")
    state = next((a for a in states if a.attrs.get("dmlc.of") == arg.name and a.tensor.rank), arg)
    sharding = (state if zero >= SPLIT_GRADIENTS else arg).attrs.get("dmlc.storage")
    if sharding is None:
        return whole
    if zero < SPLIT_GRADIENTS:
        sharding = replace(sharding, dims=tuple(tuple(a for a in d if a != "data") for d in sharding.dims))
    return mesh.local_type(whole, sharding)

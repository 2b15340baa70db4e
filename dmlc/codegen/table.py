"""`table.py`: what a program takes and gives, as plain data for the launcher and the trainer."""

from __future__ import annotations

from typing import Any

from dmlc.codegen.pytorch import TOLERANCE
from dmlc.interpret.arguments import global_type, result_name, signature_sharding
from dmlc.ir.binding import origins
from dmlc.ir.core import Module
from dmlc.ir.open_sizes import OpenSizes
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import TensorType
from dmlc.ops.size_text import python_text, variable
from dmlc.ops.text import TORCH_DTYPES

TARGET = "target"  # the input that --loss adds
OPTIONAL = {"range": "dmlc.range", "order": "dmlc.layout", "stage": "dmlc.stage"}
OF_TRAINING = {"of": "dmlc.of", "slot": "dmlc.slot", "init": "dmlc.init", "batch_dim": "dmlc.batch_dim"}


def emit_table(module: Module, weights_file: str | None, source: str = "") -> str:
    """Text of `table.py`: mesh, arguments and results, and of a step that trains (or is evaluated) how its batch lies. `source` names the model."""
    mesh, function = Mesh.of(module), module.main
    arguments = [_argument(a.name, a.tensor, a.attrs) for a in function.args]
    results = [_result(result_name(function, i), v.tensor, function.result_attrs[i]) for i, v in enumerate(function.results)]
    precision = module.attrs.get("dmlc.request", {}).get("precision", "fp32")
    lines = ['"""What the program takes and gives: per tensor the global shape, the mesh axes that split each dim, and the grains."""', ""]
    lines += [f"MESH = { {a: mesh.sizes[a] for a in mesh.device_axes}!r}", f"RANKS = {mesh.devices}", f"WEIGHTS = {weights_file!r}"]
    lines += [f"TOLERANCE = {TOLERANCE[precision]!r}  # of scale, in a comparison with the original model"]
    lines += [f"TRAIN = {training_facts(module, source)!r}"]
    if rows := open_sizes(module):
        lines += ["SIZES = {  # open sizes: what is allowed, the usual one, and the dim of an input (factor * size + offset) that tells it"]
        lines += [*(f"    {name!r}: {row!r}," for name, row in rows.items()), "}"]
    lines += ["ARGUMENTS = [", *(f"    {row!r}," for row in arguments), "]", "RESULTS = [", *(f"    {row!r}," for row in results), "]", ""]
    return "\n".join(lines)


def open_sizes(module: Module) -> dict[str, dict[str, Any]]:
    """Per open size its range, its usual value and which input tells it."""
    at = origins(module)
    return {
        variable(name): {"name": name, "least": s.least, "most": s.most, "like": s.like, "input": at[name].name, "dim": at[name].dim, "factor": at[name].factor, "offset": at[name].offset}
        for name, s in OpenSizes.of(module).sizes.items()
    }


def _row(name: str, role: str, type_: TensorType, attrs: dict[str, Any]) -> dict[str, Any]:
    sharding = signature_sharding(attrs)
    shape = tuple(n if isinstance(n, int) else python_text(n) for n in global_type(type_, attrs).shape)
    fields = {
        "name": name,
        "role": role,
        "dtype": TORCH_DTYPES[type_.dtype].removeprefix("torch."),
        "shape": shape,
        "dims": sharding.dims if sharding is not None else ((),) * len(shape),
        "grains": tuple(n if isinstance(n, int) else python_text(n) for n in (sharding.grains if sharding is not None else ()) or (1,) * len(shape)),
    }
    return {**fields, **{key: attrs.get(attr) for key, attr in OPTIONAL.items()}}


def _argument(name: str, type_: TensorType, attrs: dict[str, Any]) -> dict[str, Any]:
    flags = {"micro": "dmlc.micro" in attrs, "frozen": "dmlc.frozen" in attrs, "overridable": "dmlc.overridable" in attrs}
    names, part = tuple(attrs.get("dmlc.names", ())), attrs.get("dmlc.part")
    return {**_row(name, attrs.get("dmlc.role", "input"), type_, attrs), "names": names, "part": dict(part) if part is not None else None, **{key: attrs.get(attr) for key, attr in OF_TRAINING.items()}, **flags}


def _result(name: str, type_: TensorType, attrs: dict[str, Any]) -> dict[str, Any]:
    return {**_row(name, "result", type_, attrs), "updates": attrs.get("dmlc.updates")}


def training_facts(module: Module, source: str) -> dict[str, Any] | None:
    """What the trainer has to know beyond the rows; None for a program that is only run."""
    train, request = module.attrs.get("dmlc.train"), module.attrs.get("dmlc.request", {})
    if train is None or module.attrs.get("dmlc.mode") not in ("train", "eval"):
        return None
    names = [a.name for a in module.main.args if a.attrs.get("dmlc.role", "input") == "input"]
    facts = {"batch": request.get("batch", 0), "microbatches": request.get("microbatches", 1), "rows": 0, "data_axes": ()}
    batch = next((a for a in module.main.args if "dmlc.micro" in a.attrs), None)
    if batch is not None:
        dim = batch.attrs.get("dmlc.batch_dim", 0) + 1
        sharding = signature_sharding(batch.attrs)
        count, width = (int(global_type(batch.tensor, batch.attrs).shape[d]) for d in (0, dim))
        facts |= {"batch": request.get("batch", count * width), "microbatches": count, "rows": int(batch.shape[dim]), "data_axes": sharding.dims[dim] if sharding else ()}
    said = {"loss": train.get("loss", ""), "optimizer": train.get("optimizer", ""), "plan": plan_text(module)}
    return {**facts, **said, "target": next((n for n in reversed(names) if n == TARGET or n.startswith(f"{TARGET}_")), None), "model": source}


def plan_text(module: Module) -> str:
    """The degrees, as `--plan` takes them: of the plan that was made, else as asked for."""
    plan, asked = module.attrs.get("dmlc.plan"), module.attrs.get("dmlc.request", {}).get("plan", "auto")
    if plan is None:
        return "" if asked == "auto" else asked
    zero = plan.get("zero", 0)
    return f"dp={plan.get('dp', 1)},tp={plan.get('tp', 1)}" + (f",zero={zero}" if zero else "")

"""What `dmlc compile` prints: sizes that were chosen, and the summary table."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmlc.cost.model import CostModel, type_bytes
from dmlc.ir.binding import at_usual_sizes
from dmlc.ir.core import Module, Op
from dmlc.ir.open_sizes import OpenSizes
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import BYTES
from dmlc.ops.comm import base_name, is_collective
from dmlc.training import names_of

if TYPE_CHECKING:
    from dmlc.driver import Compiled, Loaded


def print_sizes(loaded: Loaded) -> None:
    left = OpenSizes.of(loaded.module).sizes
    if loaded.sizes:
        print("sizes left open by the model:")
        for name, size, why in loaded.sizes:
            print(f"  {name} = {size} ({why})")
    if left:
        print("sizes that stay open (--dim fixes one):")
        for name, size in left.items():
            most = f" to {size.most}" if size.most is not None else " and more"
            print(f"  {name} from {size.least}{most}, planned for {size.like} (--size-hint {name}=N for another)")


def print_trained(loaded: Loaded) -> None:
    """What training will change: of an ONNX file that is decided at import, by operator and operand or by --trainable."""
    args = [a for a in loaded.module.main.args if a.attrs.get("dmlc.role") == "param" and "dmlc.frozen" not in a.attrs]
    print("trained: " + ", ".join(name for a in args for name in names_of(a)))


def print_summary(compiled: Compiled, out: Path, seconds: float) -> None:
    rows = summary(compiled.module, compiled.ops_before, compiled.planned)
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"  {name:{width}}  {text}")
    remarks = [r for r in compiled.remarks if r.pass_name in ("plan", "import", "mixed-precision")]
    for r in remarks[:8]:
        print(f"  {r}")
    if len(compiled.remarks) > len(remarks[:8]):
        many = len(compiled.remarks)
        print(f"  … {many} remark{'s' if many > 1 else ''} in all, see `dmlc inspect {out}`")
    print(f"written to {out} in {seconds:.1f} s; run it with: dmlc run {out}")


def summary(module: Module, ops_before: int | None = None, planned: bool = True) -> list[tuple[str, str]]:
    """Rows of the table: plan and gap, ops, kernels, collectives, bytes communicated, parameters and bytes a rank holds."""
    module = at_usual_sizes(module)  # where sizes are open, bytes are those it is planned for
    mesh, main = Mesh.of(module), module.main
    ops = [op for op in main.ops() if op is not main.return_op]
    attr = module.attrs.get("dmlc.plan")
    rows = [("plan", plan_text(attr, mesh, planned))]
    if ops_before is not None:
        rows.append(("ops", f"{ops_before} before, {len(ops)} after"))
    kernels = [op.attrs["kernel"] for op in ops if op.name == "kernel.call"]
    rows.append(("kernels", f"{len(set(kernels))} generated, called {len(kernels)} times"))
    rows += collective_rows(module, ops)
    rows += parameter_rows(module)
    return rows + (training_rows(module) if module.attrs.get("dmlc.mode") == "train" else [])


def plan_text(attr: Any, mesh: Mesh, planned: bool = True) -> str:
    """`planned`: in this run; else the price that the text carries may be that of other places, since a person may have edited them."""
    if attr is None:
        return f"{mesh.devices} rank(s)"
    chosen = f"dp={attr['dp']},tp={attr['tp']}" + (f",zero={attr['zero']}" if attr.get("zero") else "")
    if not planned:
        return f"{chosen}, placed by the text, not priced"
    text = f"{chosen}, priced {attr['price'] / 1e6:.1f} us, optimality gap {attr['gap'] / 1e4:.2f} %"
    if "second" in attr:
        other = attr["second"]["plan"]
        text += f"; second best {other if other != chosen else 'places'} at {attr['second']['price'] / 1e6:.1f} us"
    return text


def collective_rows(module: Module, ops: list[Op]) -> list[tuple[str, str]]:
    comm = [op for op in ops if is_collective(op)]
    counts = Counter(base_name(op).split(".")[1] for op in comm)
    cost = CostModel.of(module)
    sent = sum(cost.op(op).bytes for op in comm)
    text = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "none"
    return [("collectives", text), ("sent by a rank", f"{sent:,} bytes a run")]


def training_rows(module: Module) -> list[tuple[str, str]]:
    """Loss and optimizer, and what a rank holds for training."""
    from dmlc.record import held_bytes

    train, request, held = module.attrs["dmlc.train"], module.attrs["dmlc.request"], held_bytes(module)
    batch = f"batch {request['batch']}" if "batch" in request else "batch"
    count = request.get("microbatches", 1)
    text = f"loss {train.get('loss') or 'of the model'}, {train.get('optimizer')}, {batch} in {count} microbatch{'es' if count > 1 else ''}"
    names = (("parameters", "parameters"), ("gradients", "gradients"), ("optimizer state", "optimizer_state"))
    return [("training", text), ("bytes a rank", ", ".join(f"{held[key]:,} {name}" for name, key in names))]


def parameter_rows(module: Module) -> list[tuple[str, str]]:
    weights = [a for a in module.main.args if a.attrs.get("dmlc.role", "input") in ("param", "buffer", "const")]
    total = sum(math.prod(a.attrs.get("dmlc.global", a.shape)) for a in weights)
    total_bytes = sum(math.prod(a.attrs.get("dmlc.global", a.shape)) * BYTES[a.dtype] for a in weights)
    held = sum(type_bytes(a.type) for a in weights)
    share = f", {held / total_bytes:.1%}" if total_bytes else ""
    arena = module.main.op.attrs.get("dmlc.arena")
    rows = [("parameters", f"{total:,} ({total_bytes:,} bytes)"), ("held by a rank", f"{held:,} bytes of weights{share}")]
    return rows + ([("activations", f"{arena:,} bytes at the peak")] if isinstance(arena, int) else [])

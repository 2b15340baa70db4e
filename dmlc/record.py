"""`plan.json`: what was decided and why, as plain data."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmlc import __version__
from dmlc.ir.attributes import AttrDict

if TYPE_CHECKING:
    from dmlc.driver import Compiled


def plan_record(compiled: Compiled) -> dict[str, Any]:
    """`plan.json`: mesh, shardings, the reason for each choice, prices and the optimality gap, versions."""
    from dmlc.ir.attribute_printer import attribute_text
    from dmlc.ir.sharding import Mesh

    module = compiled.module
    attr = module.attrs.get("dmlc.plan", AttrDict())
    prices = attr if compiled.planned else AttrDict()
    main = module.main
    shardings = {a.name: attribute_text(s) for a in main.args if (s := a.attrs.get("dmlc.storage") or a.attrs.get("dmlc.sharding")) is not None}
    record: dict[str, Any] = {
        "model": Path(compiled.loaded.source).name,
        "plan": f"dp={attr.get('dp', 1)},tp={attr.get('tp', 1)}",
        "mesh": dict(Mesh.of(module).axes.sizes),
        "price_ps": prices.get("price"),
        "proven_bound_ps": prices.get("bound"),
        "optimality_gap": prices["gap"] / 1e6 if prices else None,
        "second_best": {"plan": prices["second"]["plan"], "price_ps": prices["second"]["price"]} if "second" in prices else None,
        "shardings": shardings,
        "reasons": [{"pass": r.pass_name, "op": r.op_id, "where": str(r.loc) if r.loc.known else "", "text": r.text} for r in compiled.remarks],
        "sizes": [{"name": n, "size": s, "why": w} for n, s, w in compiled.loaded.sizes],
        "passes": [{"name": r.name, "changed": r.changed, "ops_before": r.ops_before, "ops_after": r.ops_after, "check": r.check} for r in compiled.reports],
        "versions": versions(),
    }
    return record


def versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"dmlc": __version__, "python": platform.python_version()}
    for name in ("torch", "scipy", "triton", "onnx"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found

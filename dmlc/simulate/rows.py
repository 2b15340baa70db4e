"""Which row of a trace an op is on, and under which name: what a simulated step and a measured one are joined by."""

from __future__ import annotations

from functools import lru_cache

from dmlc.ir import registry
from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Op

COMPUTE_ROW = "compute"


def axes_of(op: Op) -> tuple[str, ...]:
    """Mesh axes that a collective or a message runs along."""
    return tuple(op.attrs.get("axes") or (op.attrs["axis"],))


def is_traffic(op: Op) -> bool:
    """Whether the op moves data between ranks: a collective, its start, a message; not a wait."""
    return op.name.startswith("comm.") and op.name not in ("comm.wait", "comm.axis_index")


def stream_row(axes: tuple[str, ...]) -> str:
    return f"comm {','.join(axes)}"


def row_of(op: Op) -> str:
    """ "compute", or "comm data" for traffic along the axis `data`."""
    return stream_row(axes_of(op)) if is_traffic(op) else COMPUTE_ROW


def name_of(op: Op) -> str:
    """The name the model gave it, else the op's kind."""
    return op.attrs.get("dmlc.name") or op.name


def id_of(op: Op) -> str:
    """The op's id; of a region's `dmlc.yield`, which stands for a loop's sums, the loop's with ".yield"."""
    return f"{op.parent.id}.yield" if op.name in TERMINATORS and op.parent is not None else op.id


def is_shown(op: Op) -> bool:
    """Whether each run of the op is an event: no view, no op that only names values, and no loop or branch (what is inside is shown)."""
    if op.name == "comm.wait" or is_traffic(op):
        return True
    if op.name in TERMINATORS or (op.regions and op.name != "kernel.fused"):
        return False
    return op.name == "kernel.fused" or not _is_free(op.name)


@lru_cache(maxsize=1024)
def _is_free(name: str) -> bool:
    """Whether ops of a kind are views or only name values."""
    definition = registry.lookup(name)
    return definition is not None and (definition.view is not None or definition.cost == "free")

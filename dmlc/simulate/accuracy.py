"""How far off a simulated step may be, by where its prices come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Percent by which a price of each source may be off, one by one: a time measured on this device (repeated runs differ by less), a published table of the
# same fabric, the roofline or NCCL's formulas (untuned ones were 24 % off over 1,400 measured training steps), and a guess.
ERROR_PERCENT = {"measured": 5, "table": 10, "model": 25, "default": 100}


def error_of(sources: Mapping[str, int]) -> dict[str, Any]:
    """The error bar: each source's percentage by its share of all priced time, as if all prices of a source were off the same way."""
    total = sum(sources.values())
    shares = {source: time / total for source, time in sources.items()} if total else {}
    return {"share": sum(ERROR_PERCENT[s] * share for s, share in shares.items()) / 100, "priced_by": shares, "percent_of_source": ERROR_PERCENT}

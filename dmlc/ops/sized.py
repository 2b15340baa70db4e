"""Rules whose factor sizes an attribute gives: shapes alone do not tell how a dim splits into groups."""

from __future__ import annotations

from typing import Any

from dmlc.ir.location import DmlcError
from dmlc.ops.rule import Rule, RuleError, parse_rule


def sized_rule(op: Any, text: str, **sizes: int) -> Rule:
    """The rule `text` bound to the op's shapes with some factor sizes known. Raises `DmlcError` at the op when they do not fit."""
    try:
        return parse_rule(text, [v.shape for v in op.operands], [r.shape for r in op.results], sizes)
    except RuleError as e:
        raise DmlcError(f"'{op.name}': {e}", op.loc) from None

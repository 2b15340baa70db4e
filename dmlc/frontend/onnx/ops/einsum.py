"""Einsum: dots become letters of their own, a letter twice in a term takes the diagonal."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from dmlc.frontend.onnx.emit import concrete
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import Tensor
from dmlc.ir.location import DmlcError

LETTERS = string.ascii_uppercase + string.ascii_lowercase
TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


@op("Einsum", 12, 28)
def einsum(n: Node) -> Tensor:
    equation = n.attr("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(n.operands):
        raise DmlcError(f"'{equation}' has {len(terms)} terms for {len(n.operands)} operands")
    if any(not TERM.fullmatch(t) for t in (*terms, right)):
        raise DmlcError(f"'{equation}' is no equation of letters and dots")
    if not arrow:
        letters = re.findall("[A-Za-z]", left)
        right = ("..." if "..." in left else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    spelled, right = _spelled(equation, terms, right, [n.rank(i) for i in range(len(terms))])
    operands = [n.param(i) if len(set(t)) == len(t) else n[i] for i, t in enumerate(spelled)]
    pairs = [_diagonals(n, x, t) for x, t in zip(operands, spelled)]
    return n.emit("dmlc.contract", *(x for x, _ in pairs), equation=f"{','.join(t for _, t in pairs)}->{right}")


def _spelled(equation: str, terms: Sequence[str], right: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The terms and the result's without dots: dots of all operands end in the same dims."""
    extra = [rank - len(t.replace("...", "")) if "..." in t else 0 for t, rank in zip(terms, ranks)]
    for t, e, rank in zip(terms, extra, ranks):
        if e < 0 or len(t.replace("...", "")) + e != rank:
            raise DmlcError(f"term '{t}' of '{equation}' does not fit an operand of rank {rank}")
    free, widest = [c for c in LETTERS if c not in equation], max(extra)
    if widest > len(free):
        raise Unsupported(f"an operand of rank {max(ranks)} in '{equation}'")
    dots = "".join(free[:widest])
    spelled = [t.replace("...", dots[widest - e :]) for t, e in zip(terms, extra)]
    result = right.replace("...", dots)
    if len(set(result)) != len(result) or not set(result) <= set("".join(spelled)):
        raise DmlcError(f"the result of '{equation}' names a letter twice, or one that no term has")
    return spelled, result


def _diagonals(n: Node, x: Tensor, term: str) -> tuple[Tensor, str]:
    """The operand and its term with every letter once."""
    while (letter := next((c for c in term if term.count(c) > 1), None)) is not None:
        first = term.index(letter)
        second, shape = term.index(letter, first + 1), concrete(x)
        if shape[first] != shape[second]:
            raise DmlcError(f"the letter {letter} names dims of {shape[first]} and {shape[second]}")
        rest = [d for d in range(len(term)) if d not in (first, second)]
        size, others = shape[first], [shape[d] for d in rest]
        flat = n.reshape(n.transpose(x, (first, second, *rest)), (size * size, *others))
        x = n.slice(flat, 0, 0, size * size, size + 1) if size > 1 else flat
        term = letter + "".join(term[d] for d in rest)
    return x, term

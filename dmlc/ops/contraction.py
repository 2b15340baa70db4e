"""Matrix products. None has a bias operand: each rank of a split contraction would add it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops.base import REQUIRED, InferError, OpDef, OpLike, Sample, attribute
from dmlc.ops.emit import f32, reshaped, widened

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder

LETTERS = "abcdefghlmnopqrstuvwxyz"  # batch letters of gradients; i, j, k keep their meaning


class Contraction(OpDef):
    """Sums of products. An operand may be unreduced, one at a time: the result is then unreduced too."""

    cost = "mac"
    precision = "low"
    linear = [{0}, {1}]


def _require(condition: bool, name: str, what: str) -> None:
    if not condition:
        raise InferError(f"'{name}': {what}")


class Matmul(Contraction):
    """Matrix product over the last dim of lhs and the last but one of rhs; dims before are a batch and broadcast."""

    name = "dmlc.matmul"
    rule = "... i k, ... k j -> ... i j"
    torch = "torch.matmul({0}, {1})"

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        a, b = types
        _require(a.rank >= 2 and b.rank >= 2, "dmlc.matmul", f"both operands need rank 2 or more, not {a.rank} and {b.rank}")
        _require(a.shape[-1] == b.shape[-2], "dmlc.matmul", f"contracts {a.shape[-1]} with {b.shape[-2]}")
        batch = _broadcast(a.shape[:-2], b.shape[:-2], "dmlc.matmul")
        return [a.with_shape((*batch, a.shape[-2], b.shape[-1]))]

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        (g,), (x, y) = grads, op.operands
        batch = LETTERS[: len(op.result.shape) - 2]
        a, c, r = (batch[len(batch) - (len(v.shape) - 2) :] + s for v, s in ((x, "ik"), (y, "kj"), (op.result, "ij")))
        return [partial_product(b, x, a, [(g, r), (y, c)]), partial_product(b, y, c, [(x, a), (g, r)])]

    @staticmethod
    def samples() -> list[Sample]:
        return [
            Sample((f32(6, 5), f32(5, 7))),
            Sample((f32(2, 3, 4, 5), f32(3, 5, 6))),
            Sample((f32(2, 3, 4), f32(4, 5))),
            Sample((f32(3, 1, 4, 5), f32(1, 2, 5, 3))),
            Sample((f32(1, 1), f32(1, 1))),
            Sample((f32(0, 4), f32(4, 3))),
            Sample((f32(3, 0), f32(0, 2))),
        ]


def _broadcast(a: tuple, b: tuple, name: str) -> tuple:
    """Right-aligned broadcast of two shapes."""
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b)
    _require(all(m == n or m == 1 or n == 1 for m, n in zip(a, b)), name, f"batch dims {a} and {b} do not broadcast")
    return tuple(n if m == 1 else m for m, n in zip(a, b))


def partial_product(b: Builder, target: Value, letters: str, factors: list[tuple[Value, str]]) -> Value:
    """The contraction of `factors` that has `target`'s shape: a gradient of a contraction.

    A letter that only the target has is a sum's: the gradient is the same along it. A size-1 dim of the target that broadcast is summed.
    """
    size = {s: n for v, term in factors for s, n in zip(term, v.shape) if n != 1}
    kept = "".join(s for s, n in zip(letters, target.shape) if any(s in term for _, term in factors) and (n != 1 or size.get(s, 1) == 1))
    equation = ",".join(term for _, term in factors) + "->" + kept
    product = b.op("dmlc.contract", [v for v, _ in factors], {"equation": equation}).result
    shape = tuple(n if s in kept else 1 for s, n in zip(letters, target.shape))
    return widened(b, reshaped(b, product, shape), target.shape)


class Linear(Contraction):
    """A dense layer's product: the last dim of x with the last dim of a weight [out, in], as PyTorch stores it."""

    name = "dmlc.linear"
    rule = "... k, j k -> ... j"
    torch = "F.linear({0}, {1})"

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, w = types
        _require(x.rank >= 1 and w.rank == 2, "dmlc.linear", f"the weight needs rank 2, not {w.rank}, and x at least 1, not {x.rank}")
        _require(x.shape[-1] == w.shape[1], "dmlc.linear", f"contracts {x.shape[-1]} with {w.shape[1]}")
        return [x.with_shape((*x.shape[:-1], w.shape[0]))]

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        (g,), (x, w) = grads, op.operands
        lead = LETTERS[: len(x.shape) - 1]
        dx = b.emit("dmlc.matmul", g, w) if lead else partial_product(b, x, "k", [(g, "j"), (w, "jk")])
        return [dx, partial_product(b, w, "jk", [(g, lead + "j"), (x, lead + "k")])]

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(*lead, k), f32(j, k))) for lead, j, k in [((4, 6), 7, 5), ((3,), 4, 6), ((), 3, 5), ((2, 1), 1, 1), ((0, 3), 2, 4), ((3,), 2, 0), ((3,), 0, 2)]]


class Contract(Contraction):
    """A sum of products in einsum letters, such as `"btj,btk->jk"`: any number of operands, explicit result, no repeated letter in a term."""

    name = "dmlc.contract"
    attributes = {"equation": REQUIRED}

    @staticmethod
    def torch(op: Op | OpLike) -> str:
        """A weight's gradient as one product of matrices: as a batch of one it would take longer."""
        terms, result = terms_of(op.attrs["equation"])
        lead = terms[0][:-1]
        if len(terms) != 2 or not lead or terms[1][:-1] != lead or result != terms[0][-1] + terms[1][-1]:
            return "torch.einsum({equation}, {*})"
        rows = ".flatten(0, -2)" if len(lead) > 1 else ""
        return f"torch.mm({{0}}{rows}.t(), {{1}}{rows})"


    @staticmethod
    def rule(op: Op | OpLike) -> str:
        terms, result = terms_of(op.attrs["equation"])
        return ", ".join(map(_spaced, terms)) + " -> " + _spaced(result)

    @staticmethod
    def linear(op: Op) -> list[set[int]]:
        return [{i} for i in range(len(op.operands))]

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        terms, result = terms_of(op.attrs["equation"])
        for term in (*terms, result):
            if len(set(term)) != len(term) or not (term.isalpha() or not term):
                raise DmlcError(f"'dmlc.contract' takes distinct letters in each term, not '{term}'", op.loc)
        if not set(result) <= set("".join(terms)):
            raise DmlcError(f"a letter of the result '{result}' stands in no operand", op.loc)

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        terms, result = terms_of(attribute(op, "equation"))
        every = list(zip(op.operands, terms))
        return [partial_product(b, v, term, [(grads[0], result), *every[:i], *every[i + 1 :]]) for i, (v, term) in enumerate(every)]

    @staticmethod
    def samples() -> list[Sample]:
        def case(equation: str, *shapes: tuple[int, ...]) -> Sample:
            return Sample(tuple(f32(*s) for s in shapes), AttrDict(equation=equation))

        return [
            case("btj,btk->jk", (2, 3, 5), (2, 3, 4)),
            case("bij,bkj->bik", (3, 4, 5), (1, 2, 5)),
            case("i,j->ij", (3,), (4,)),
            case("ijk->ki", (2, 3, 4)),
            case("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
            case("ij,ij->", (5, 7), (5, 7)),
            case("ij,jk->ik", (1, 1), (1, 1)),
            case("ij,jk->ik", (3, 0), (0, 2)),
        ]


def terms_of(equation: str) -> tuple[list[str], str]:
    """Letters of each operand and of the result."""
    if equation.count("->") != 1:
        raise InferError(f"'{equation}' is not of the form 'ij,jk->ik'")
    left, right = equation.replace(" ", "").split("->")
    return left.split(","), right


def _spaced(term: str) -> str:
    return " ".join(term) if term else "()"

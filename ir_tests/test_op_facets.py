"""Every facet of every op against the op's own definition, its PyTorch text. No test here knows an op: registering one with samples tests it."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import facets
from facets import Case, agree, build, cases, operand, operands, run_block, with_specials

from dmlc.interpret.arguments import to_torch
from dmlc.interpret.evaluate import NAMES, evaluate, promoted
from dmlc.interpret.prelude_shards import combine
from dmlc.ir import registry
from dmlc.ir.builder import Builder
from dmlc.ir.core import Block, Op, Value
from dmlc.ir.dims import substitute, symbol
from dmlc.ops.base import linear_of, rule_of
from dmlc.ops.folding import NUMPY
from dmlc.ops.structural import Structural

torch.set_num_threads(1)


def per_case(chosen: list[Case]) -> Any:
    return pytest.mark.parametrize("case", chosen, ids=[c.id for c in chosen])


def test_every_op_has_samples() -> None:
    without = [d.name for d in facets.definitions() if not (d.samples and d.samples())]
    assert not without, f"ops without samples: {without}"


def test_excluded_ops_exist() -> None:
    names = list(registry.DEFINITIONS)
    assert not [key for key in facets.EXCLUDED if not any(n == key or n.startswith(key) for n in names)]


def test_samples_cover_irregular_one_and_zero() -> None:
    """Among an op's samples are a size above 3 that neither 2 nor 3 divides, a tensor of one element, and one of none."""
    lacking = []
    for d in facets.definitions():
        types = [t for s in d.samples() for t in (*s.operands, *(s.results or ()))]
        if not any(t.rank for t in types):
            continue  # an op on scalars
        sizes = {n for t in types for n in t.shape}
        if not (any(n > 3 and n % 2 and n % 3 for n in sizes) and any(t.numel == 1 for t in types) and 0 in sizes):
            lacking.append(d.name)
    assert not lacking, f"ops whose samples lack an irregular, a size-1 or a size-0 shape: {lacking}"


@per_case(cases())
def test_inferred_type(case: Case) -> None:
    """The type of the result is that of the evaluated result, and the op verifies."""
    op = build(case)
    case.definition.verify(op)
    results = evaluate(op, operands(case))
    assert [(tuple(x.shape), NAMES[x.dtype]) for x in results] == [(r.shape, r.dtype) for r in op.results]


@per_case(cases(lambda d: not d.given))
def test_symbolic_sizes(case: Case) -> None:
    """With the dims of one non-whole factor symbolic, inference gives the same types once the symbol is bound, and the rule the same factors."""
    op = build(case)
    rule, n = rule_of(op), symbol("n")
    for f in rule.factors:
        if f in rule.whole or rule.sizes[f] in (0, 1) or any(f in dim for dim in rule.compounds):
            continue
        types = [v.tensor.with_shape(n if d == (f,) else m for d, m in zip(dims, v.shape)) for v, dims in zip(op.operands, rule.operands)]
        block = Block(types)
        found = Builder(block).op(op.name, block.args, dict(op.attrs))
        bound = [tuple(substitute(m, {"n": rule.sizes[f]}) for m in r.shape) for r in found.results]
        assert bound == [r.shape for r in op.results], f"factor {f} of {rule}"
        assert str(rule_of(found)) == str(rule)


# ---------------------------------------------------------------- sharding


@per_case(cases())
def test_rule(case: Case) -> None:
    """Each factor in 2 and 3 parts, also uneven, with NaN in the padding: the ranks' results joined are the op's."""
    op, xs = build(case), operands(case, wide=True)
    expected = evaluate(op, xs, promoted)
    for split in facets.legal_splits(rule_of(op)):
        for j, (actual, wanted) in enumerate(zip(facets.run_split(op, split, xs), expected)):
            agree(actual, wanted, what=f"result {j} with {dict(split.parts)}, rule {split.rule}")


def _partials(case: Case, index: int, combiner: str, k: int) -> list[torch.Tensor]:
    """k different values of an operand, with floats wide."""
    return [facets.widen(operand(case, index, draw)) for draw in range(k)]


def _fits(combiner: str, dtype: str) -> bool:
    return (combiner in ("and", "or")) == (dtype == "i1")


@per_case(cases(lambda d: bool(d.linear)))
def test_linear(case: Case) -> None:
    """Operands that may stay unreduced: combining the results of partial values is the result of the combined value."""
    op, xs = build(case), operands(case, wide=True)
    for together in linear_of(op):
        for combiner in ("sum", *case.definition.selects):
            if not all(_fits(combiner, op.operands[i].dtype) for i in together):
                continue
            parts = {i: _partials(case, i, combiner, 3) for i in together}
            ranks = [[parts[i][r] if i in parts else x for i, x in enumerate(xs)] for r in range(3)]
            whole = [combine(parts[i], combiner) if i in parts else x for i, x in enumerate(xs)]
            each = [evaluate(op, r, promoted) for r in ranks]
            for j, wanted in enumerate(evaluate(op, whole, promoted)):
                agree(combine([e[j] for e in each], combiner), wanted, what=f"{combiner} of operands {sorted(together)}, result {j}")


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("definition", facets.definitions(), ids=lambda d: d.name.removeprefix("dmlc."))
def test_gradient_or_reason(definition: Any) -> None:
    assert definition.vjp is not None or definition.no_vjp, "neither vjp nor a reason in no_vjp"
    for s in definition.samples() if definition.vjp is not None else ():
        assert s.vjp or s.why, "a sample is left out of the gradient test without a reason"


def differentiable(case: Case) -> bool:
    return case.definition.vjp is not None and case.sample.vjp and any(t.is_float for t in case.sample.operands)


def emit_vjp(op: Op) -> tuple[list[Value], list[Value | None]]:
    """Gradients of the results as arguments of the op's block, and the gradients of the operands."""
    assert op.block is not None
    grads = [op.block.add_arg(r.type) if r.tensor.is_float else None for r in op.results]
    found = list(registry.lookup(op.name).vjp(Builder(op.block), op, grads))
    assert len(found) == len(op.operands), f"{len(found)} gradients for {len(op.operands)} operands"
    return [g for g in grads if g is not None], found


def total(op: Op, xs: list[torch.Tensor], weights: list[torch.Tensor]) -> float:
    """The weighted sum of all float results."""
    floats = [x for x in evaluate(op, xs, promoted) if x.dtype.is_floating_point]
    return float(sum((x * w).sum() for x, w in zip(floats, weights)))


def directions(x: torch.Tensor, count: int = 12) -> list[torch.Tensor]:
    """Every unit direction of a small tensor, a few random ones of a larger."""
    if x.numel() <= count:
        return [torch.eye(x.numel(), dtype=x.dtype)[i].reshape(x.shape) for i in range(x.numel())]
    generator = torch.Generator().manual_seed(x.numel())
    return [torch.randn(x.shape, generator=generator, dtype=x.dtype) for _ in range(count)]


@per_case([c for c in cases() if differentiable(c)])
def test_vjp(case: Case) -> None:
    """Emitted gradients are those of finite differences in float64."""
    op, xs = build(case), operands(case, wide=True)
    arguments, found = emit_vjp(op)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(g.shape, generator=generator, dtype=torch.float64) for g in arguments]
    env = run_block(op.block, [*xs, *weights])  # type: ignore[arg-type]
    plain = build(case)
    for i, g in enumerate(found):
        if not op.operands[i].tensor.is_float:
            assert g is None, f"operand {i} is of integers and has a gradient"
            continue
        if g is not None:
            assert g.type == op.operands[i].type, f"gradient of operand {i} is {g.type}"
        gradient = env[g] if g is not None else torch.zeros_like(xs[i])
        for way in directions(xs[i]):
            step = 1e-6
            there, back = ([x + s * way if j == i else x for j, x in enumerate(xs)] for s in (step, -step))
            slope = (total(plain, there, weights) - total(plain, back, weights)) / (2 * step)
            assert float((gradient * way).sum()) == pytest.approx(slope, rel=1e-5, abs=1e-5), f"operand {i} along\n{way}"


# ---------------------------------------------------------------- folding and decomposing


def to_numpy(x: torch.Tensor) -> Any:
    """The array a fold sees: bf16 and 8-bit floats as their bits."""
    dtype = NAMES[x.dtype]
    bits = {"bf16": torch.uint16, "f8E4M3FN": torch.uint8, "f8E5M2": torch.uint8}.get(dtype)
    return (x.contiguous().view(bits) if bits is not None else x).numpy()


@per_case(cases(lambda d: d.fold is not None))
def test_fold(case: Case) -> None:
    """A fold gives the bits that the PyTorch text gives (NaN among the operands too), or declines; numpy has nothing to warn of."""
    op = build(case)
    for special in (False, True):
        xs = with_specials(case) if special else operands(case)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            folded = case.definition.fold(op, [to_numpy(x) for x in xs])
        if folded is None:
            continue
        for array, wanted, r in zip(folded, evaluate(op, xs), op.results, strict=True):
            assert array.dtype.name == NUMPY[r.dtype]
            actual = to_torch(array, r.dtype)
            same = (actual == wanted) | ((actual != actual) & (wanted != wanted))
            assert actual.shape == wanted.shape and bool(same.all()), f"{actual}\nexpected\n{wanted}"


@pytest.mark.parametrize("definition", facets.definitions(), ids=lambda d: d.name.removeprefix("dmlc."))
def test_some_sample_folds(definition: Any) -> None:
    """A fold that always declines is none."""
    if definition.fold is not None:
        made = [(build(c), c) for c in cases(lambda d: d is definition)]
        assert any(definition.fold(op, [to_numpy(x) for x in operands(c)]) is not None for op, c in made)


@per_case(cases(lambda d: d.decompose is not None))
def test_decompose(case: Case) -> None:
    """A composite's parts compute what its PyTorch text computes."""
    op, xs = build(case), operands(case, wide=True)
    values = case.definition.decompose(Builder(op.block), op)
    assert [v.type for v in values] == [r.type for r in op.results]
    env = run_block(op.block, xs)
    for v, r in zip(values, op.results):
        agree(env[v], env[r], what=str(r.type))


def test_structural_ops_are_excluded() -> None:
    assert not [d.name for d in facets.definitions() if issubclass(d, Structural)]

"""Gradients stay split: where an op is split along a factor, every op of its vjp can be split along it too, so that nothing is gathered or completed
in between. Generic: it knows no op but the exceptions below."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from facets import Case, build, cases

from dmlc.ir.attributes import Sharding
from dmlc.ir.builder import Builder
from dmlc.ir.core import Op, Value
from dmlc.ir.sharding import Mesh
from dmlc.ops.base import linear_of, rule_of, strategies_of
from dmlc.ops.place import Place, illegal, states

torch.set_num_threads(1)

# (op, factor): why its gradient does gather
GATHERS = {
    ("dmlc.attention", "e"): "the gradient in q and k needs products over all of a value's elements",
    ("dmlc.attention", "t"): "a float mask's gradient has all queries in one place",
    ("dmlc.batch_norm_train", "g"): "the gradients of weight and bias are sums over the groups, which the gradient in x keeps",
}
MESH = Mesh.make(a=2)


def places(op: Op) -> list[Place]:
    rule = rule_of(op)
    found = [Place(), *(Place.make({f: ("a",)}) for f in rule.factors if f not in rule.whole)]
    found += [Place.make(linear={"a": i}) for i in range(len(linear_of(op)))]
    found += [Place.make(strategy=(s.name, ("a",))) for s in strategies_of(op)]
    return [p for p in found if illegal(MESH, op, p) is None]


def best(op: Op, natural: dict[Value, Sharding]) -> tuple[int, Place]:
    """The place that takes the operands as they lie: fewest gathered or completed, then fewest cut."""
    given = [natural[v] for v in op.operands]
    scored = []
    for n, place in enumerate(places(op)):
        asked = states(MESH, op, place)[0]
        other = [i for i, (a, g) in enumerate(zip(asked, given)) if (a.dims, a.unreduced) != (g.dims, g.unreduced)]
        moved = [i for i in other if any(given[i].dims) or given[i].unreduced]
        scored.append((len(moved), len(other), n, place))
    least = min(scored, key=lambda s: s[:3])
    return least[0], least[3]


def splits() -> list[tuple[Case, str]]:
    """Every factor of two or more that a result keeps."""
    found = []
    for case in cases(lambda d: d.vjp is not None):
        op = build(case)
        rule = rule_of(op)
        kept = rule.result_factors - rule.whole
        if case.sample.vjp and any(t.is_float for t in case.sample.operands) and 0 not in rule.sizes.values():
            found += [(case, f) for f in rule.factors if f in kept and int(rule.sizes[f]) > 1]
    return found


@pytest.mark.parametrize(("case", "factor"), splits(), ids=lambda x: x.id if isinstance(x, Case) else x)
def test_gradients_stay_split(case: Case, factor: str) -> None:
    op, place = build(case), Place.make({factor: ("a",)})
    block = op.block
    if block is None or illegal(MESH, op, place) is not None:
        return  # lies inside another factor
    asked, given = states(MESH, op, place)
    natural: dict[Value, Sharding] = dict(zip([*op.operands, *op.results], [*asked, *given]))
    grads = [block.add_arg(r.type) if r.tensor.is_float else None for r in op.results]
    natural.update((g, Sharding(s.mesh, s.dims, (), s.grains)) for g, s in zip(grads, given) if g is not None)
    case.definition.vjp(Builder(block), op, grads)
    natural.update(zip(op.results, states(MESH, op, place)[1]))  # residuals came with it
    gathered = []
    for made in block.ops[block.ops.index(op) + 1 :]:
        moved, chosen = best(made, natural)
        natural.update(zip(made.results, states(MESH, made, chosen)[1]))
        gathered += [made.name] * bool(moved)
    if gathered and (case.op_name, factor) not in GATHERS:
        raise AssertionError(f"split along {factor} of {rule_of(op)}: its gradient gathers for {gathered}")


def test_exceptions_exist() -> None:
    names = {(case.op_name, factor) for case, factor in splits()}
    assert set(GATHERS) <= names

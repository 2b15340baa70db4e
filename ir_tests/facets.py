"""What the generic op tests are made of: samples of all ops, building and evaluating them, cutting tensors along factors and joining them again.

Nothing here knows a single op: an op with samples is tested by being registered.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import dmlc.ops  # noqa: F401  (registers all ops)
from dmlc.interpret.arguments import poison
from dmlc.interpret.evaluate import DTYPES, evaluate, promoted
from dmlc.interpret.prelude_shards import combine, identity_of
from dmlc.ir import registry
from dmlc.ir.builder import Builder
from dmlc.ir.core import Block, Op, Value
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import FLOATS, TensorType
from dmlc.ops.base import OpDef, Sample, attribute, index_of
from dmlc.ops.rule import Dims, Rule

# Ops that no generic test can evaluate alone, and why.
EXCLUDED = {
    "builtin.": "a container",
    "func.": "a container",
    "comm.": "needs several ranks: tested with the exchange and with partition",
    "kernel.": "holds a region of other ops: tested with code generation",
    "pipe.": "holds regions and needs several ranks",
    "dmlc.mesh": "declares axes",
    "dmlc.yield": "ends a region",
    "dmlc.microbatch": "holds a region",
    "dmlc.cond": "holds regions",
    "dmlc.scan": "holds a region",
    "dmlc.while": "holds regions",
    "dmlc.barrier": "orders, computes nothing",
    "dmlc.reshard": "an identity that partition replaces",
    "dmlc.window": "made by partition: tested with mesh arithmetic",
    "dmlc.shard_slice": "made by partition: depends on a rank",
    "dmlc.mask_pad": "made by partition: depends on a rank",
}


def is_excluded(name: str) -> bool:
    return any(name == key or (key.endswith(".") and name.startswith(key)) for key in EXCLUDED)


def definitions() -> list[type[OpDef]]:
    """All definitions that the generic tests cover, by name."""
    return [registry.lookup(name) for name in sorted(registry.DEFINITIONS) if not is_excluded(name)]


@dataclass(frozen=True)
class Case:
    """One sample of one op."""

    op_name: str
    number: int
    sample: Sample

    @property
    def id(self) -> str:
        return f"{self.op_name.removeprefix('dmlc.')}-{self.number}"

    @property
    def definition(self) -> type[OpDef]:
        return registry.lookup(self.op_name)


def cases(where: Callable[[type[OpDef]], bool] = lambda d: True) -> list[Case]:
    return [Case(d.name, i, s) for d in definitions() if d.samples is not None and where(d) for i, s in enumerate(d.samples())]


def build(case: Case) -> Op:
    """The sample's op, its operands the arguments of a block of its own."""
    block = Block(case.sample.operands)
    return Builder(block).op(case.op_name, block.args, dict(case.sample.attrs), case.sample.results)


# ---------------------------------------------------------------- values


def numpy_name(dtype: str) -> str:
    """The dtype a maker is told: floats are drawn in float64."""
    return "float64" if dtype in FLOATS else {"i1": "bool", "ui8": "uint8"}.get(dtype, dtype.replace("i", "int"))


def operand(case: Case, index: int, draw: int = 0) -> torch.Tensor:
    """A reproducible value of operand `index`: floats rounded to the operand's dtype."""
    type_ = case.sample.operands[index]
    rng = np.random.default_rng(zlib.crc32(f"{case.id}/{index}/{draw}".encode()))
    maker = case.sample.values.get(str(index))
    if maker is not None:
        array = np.asarray(maker(rng, type_.shape, numpy_name(type_.dtype)))
    elif type_.is_float:
        array = rng.standard_normal(type_.shape)
    else:
        array = rng.integers(0, 2, type_.shape) if type_.dtype == "i1" else rng.integers(0 if type_.dtype == "ui8" else -4, 5, type_.shape)
    return torch.from_numpy(np.array(array)).to(DTYPES[type_.dtype]).reshape(type_.shape)


def operands(case: Case, wide: bool = False) -> list[torch.Tensor]:
    """All operands; `wide` makes floats float64 (values stay those of the narrow dtype)."""
    found = [operand(case, i) for i in range(len(case.sample.operands))]
    return [widen(x) for x in found] if wide else found


def with_specials(case: Case) -> list[torch.Tensor]:
    """Operands with a NaN each, at different places; index operands as they are."""
    found = []
    for i, x in enumerate(operands(case)):
        if x.dtype.is_floating_point and x.numel() > i:
            x = x.clone()
            x.view(-1)[i] = float("nan")
        found.append(x)
    return found


def widen(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.dtype.is_floating_point else x


def run_block(block: Block, arguments: Sequence[torch.Tensor]) -> dict[Value, torch.Tensor]:
    """Every value of a block of plain ops, with all floats as float64."""
    env: dict[Value, torch.Tensor] = dict(zip(block.args, arguments))
    for op in block:
        env.update(zip(op.results, evaluate(op, [env[v] for v in op.operands], promoted)))
    return env


def agree(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-9, what: str = "") -> None:
    """Equal shapes, dtypes and values; NaN equals NaN; within `tolerance` of the expected values' scale."""
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    assert actual.dtype == expected.dtype, f"{what}: dtype {actual.dtype}, expected {expected.dtype}"
    if not expected.dtype.is_floating_point:
        assert torch.equal(actual, expected), f"{what}: {actual} expected {expected}"
        return
    finite = expected[expected.isfinite()].abs()
    scale = max(1.0, float(finite.max()) if finite.numel() else 1.0)
    assert torch.allclose(actual, expected, rtol=0, atol=tolerance * scale, equal_nan=True), f"{what}:\n{actual}\nexpected\n{expected}"


# ---------------------------------------------------------------- splitting factors


@dataclass(frozen=True)
class Split:
    """Factors split into parts, one mesh axis a factor; a rank is one coordinate a factor."""

    rule: Rule
    parts: Mapping[str, int]

    def width(self, factor: str) -> int:
        """Local size, padding included."""
        return -(-int(self.rule.sizes[factor]) // self.parts.get(factor, 1))

    @property
    def mesh(self) -> Mesh:
        return Mesh.make(**{f"on_{f}": k for f, k in self.parts.items()})

    def ranks(self) -> Iterator[dict[str, int]]:
        for index in itertools.product(*(range(k) for k in self.parts.values())):
            yield dict(zip(self.parts, index))

    def factored(self, dims: Dims, shape: Sequence[int], local: bool) -> tuple[list[str], list[int]]:
        """Factor names and sizes in order; a dim without factor keeps its size under no name."""
        names, sizes = [], []
        for fs, n in zip(dims, shape):
            names += list(fs) or [""]
            sizes += [self.width(f) if local else int(self.rule.sizes[f]) for f in fs] or [n]
        return names, sizes

    def local_shape(self, dims: Dims, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(int(np.prod([self.width(f) for f in fs], dtype=int)) if fs else n for fs, n in zip(dims, shape))

    def part(self, x: torch.Tensor, dims: Dims, rank: Mapping[str, int], fill: Callable[[str], Any]) -> torch.Tensor:
        """A rank's part, padded with `fill(factor)`."""
        names, sizes = self.factored(dims, x.shape, local=False)
        y = x.reshape(sizes)
        for d, f in enumerate(names):
            if f in self.parts:
                width, n = self.width(f), sizes[d]
                shape = [*y.shape[:d], width * self.parts[f] - n, *y.shape[d + 1 :]]
                y = torch.cat([y, torch.full(shape, fill(f), dtype=y.dtype)], d).narrow(d, width * rank[f], width)
        return y.reshape(self.local_shape(dims, x.shape))

    def join(self, pieces: Mapping[tuple[int, ...], torch.Tensor], dims: Dims, shape: Sequence[int]) -> torch.Tensor:
        """The global tensor from all ranks' parts: concatenated along its factors, combined over reduced ones, equal over all others."""
        names, sizes = self.factored(dims, shape, local=True)
        here = {rank: x.reshape(sizes) for rank, x in pieces.items()}
        for f in reversed(list(self.parts)):
            groups: dict[tuple[int, ...], list[torch.Tensor]] = {}
            for rank in sorted(here):
                groups.setdefault(rank[:-1], []).append(here[rank])
            here = {rank: self._merge(f, xs, names) for rank, xs in groups.items()}
        return here[()].reshape(tuple(shape))

    def _merge(self, factor: str, xs: list[torch.Tensor], names: list[str]) -> torch.Tensor:
        if factor in names:
            d = names.index(factor)
            return torch.cat(xs, d).narrow(d, 0, int(self.rule.sizes[factor]))
        if factor in self.rule.reduced:
            return combine(xs, self.rule.combiner(factor))
        for x in xs[1:]:
            agree(x, xs[0], what=f"factor {factor} is neither in the result nor reduced, and ranks differ")
        return xs[0]


def legal_splits(rule: Rule, counts: Sequence[int] = (2, 3)) -> list[Split]:
    """Every non-whole factor in 2 and 3 parts, evenly or not. A factor inside a compound dim needs all to its left split down to 1."""
    found = []
    for f in rule.factors:
        for k in counts:
            parts = {} if f in rule.whole else _needed(rule, f, k)
            if parts and np.prod(list(parts.values())) <= 64:
                found.append(Split(rule, parts))
    return found


def _needed(rule: Rule, factor: str, k: int) -> dict[str, int]:
    """The split of `factor` in k, with those it needs; empty when there is none."""
    parts: dict[str, int] = {}
    for dim in rule.compounds:
        for left in dim[: dim.index(factor)] if factor in dim else ():
            if rule.sizes[left] == 1:
                continue
            if left in rule.whole or int(rule.sizes[factor]) % k:
                return {}
            above = _needed(rule, left, int(rule.sizes[left]))
            if not above:
                return {}
            parts |= above
    return parts | {factor: k}


def local_op(op: Op, split: Split, starts: int) -> Op:
    """The op as one rank runs it, with `starts` more operands that say where its part of a source begins."""
    rule, definition = split.rule, registry.lookup(op.name)
    ins = [v.tensor.with_shape(split.local_shape(d, v.shape)) for v, d in zip(op.operands, rule.operands)]
    outs = [r.tensor.with_shape(split.local_shape(d, r.shape)) for r, d in zip(op.results, rule.results)]
    attrs = dict(op.attrs)
    if definition.local is not None:
        axes = {f: (f"on_{f}",) for f in split.parts}
        attrs |= definition.local(SimpleNamespace(local_types=outs, mesh=split.mesh), op, axes)
    if not definition.given:
        inferred = definition.result_types(ins, attrs)
        assert inferred == outs, f"{split.parts}: a rank's op gives {[str(t) for t in inferred]}, the rule says {[str(t) for t in outs]}"
    types = [*ins, *[TensorType((), "i64")] * starts]
    return Op(op.name, [Value(t) for t in types], outs, attrs)


def started(op: Op, split: Split, rank: Mapping[str, int], local: list[torch.Tensor]) -> list[torch.Tensor]:
    """A rank's operands of a source: iota's start value is moved along its dim, random ops get one start a dim."""
    kind = registry.lookup(op.name).starts
    if not kind:
        return local
    begins = [sum(split.width(f) * rank[f] for f in fs if f in split.parts) for fs in split.rule.results[0]]
    if kind == "all":
        return local + [torch.tensor(n) for n in begins]
    moved = begins[attribute(op, "dim")] * attribute(op, "step")
    return [local[0] + moved if local else torch.tensor(moved)]


def run_split(op: Op, split: Split, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Cut the operands with poison in the padding (masked as partition masks), run every rank, join the results."""
    rule, indices = split.rule, index_of(op)
    pieces: list[dict[tuple[int, ...], torch.Tensor]] = [{} for _ in op.results]
    for rank in split.ranks():
        local = []
        for i, (x, dims) in enumerate(zip(tensors, rule.operands)):

            def fill(f: str, i: int = i, x: torch.Tensor = x) -> Any:
                if i in indices:
                    return 0
                return identity_of(rule.combiner(f), x.dtype) if f in rule.reduced else poison(x.dtype)

            local.append(split.part(x, dims, rank, fill))
        local = started(op, split, rank, local)
        made = local_op(op, split, len(local) - len(op.operands))
        for j, x in enumerate(evaluate(made, local, promoted)):
            assert tuple(x.shape) == made.results[j].shape, f"{split.parts}: evaluated {tuple(x.shape)}, typed {made.results[j].type}"
            pieces[j][tuple(rank.values())] = x
    return [split.join(p, dims, r.shape) for p, dims, r in zip(pieces, rule.results, op.results)]

"""Loops and branches of `model.py`: Python's own statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dmlc.codegen.host import on_host
from dmlc.codegen.lifetimes import is_fresh
from dmlc.ir.core import Block, Op, Value
from dmlc.ops.base import attribute
from dmlc.ops.control import parts
from dmlc.ops.text import TORCH_DTYPES, literal

if TYPE_CHECKING:
    from dmlc.codegen.pytorch import Writer


def _microbatch(w: Writer, op: Op) -> None:
    """A loop that adds up what the body yields."""
    block, acc = op.region.block, op.attrs.get("acc", ())
    totals = [w.names.define(r) for r in op.results]
    for t in totals:
        w.line(f"{t} = None")
    count = f"int({w.names[op.operands[0]]})" if op.operands else op.attrs["count"]
    w.line(f"for {w.names.define(block.args[0])} in map(torch.tensor, range({count})):")
    w.depth += 1

    def finish(last: Op) -> None:
        for j, (t, v) in enumerate(zip(totals, last.operands)):
            new = f"{w.names[v]}.to({TORCH_DTYPES[acc[j]]})" if acc else w.names[v]
            more = f"{t}.add_({new})" if (acc and acc[j] != v.dtype and v.tensor.rank) or is_fresh(v, last.operands) else f"{t} + {new}"
            w.line(f"{t} = {new} if {t} is None else {more}")

    w.block(block, finish)
    w.depth -= 1
    for t, r in zip(totals, op.results) if op.operands else ():
        if r in w.reuse.loops:
            continue
        device = ", device=device" if r.tensor.rank else ""
        w.line(f"{t} = torch.zeros({literal(tuple(r.shape))}, dtype={TORCH_DTYPES[r.dtype]}{device}) if {t} is None else {t}")
    for j, (t, r) in enumerate(zip(totals, op.results)) if acc else ():
        if acc[j] != r.dtype:
            w.line(f"{t} = {t}.to({TORCH_DTYPES[r.dtype]})" + (f" if {t} is not None else None" if r in w.reuse.loops else ""))


def _scan(w: Writer, op: Op) -> None:
    """Rows are views of what is scanned; each iteration copies the rows it gives into their stacks."""
    block, count = op.region.block, op.attrs["count"]
    carried, scanned, shared = parts(op, op.operands)
    args, rows, same = parts(op, block.args[1:])
    names = [w.names.define(r) for r in op.results]
    _begin(w, op, names[: len(carried)], carried, args)
    _alias(w, same, shared)
    for r, name in zip(op.results[len(carried) :], names[len(carried) :]):
        w.line(f"{name} = torch.empty({literal(tuple(r.shape))}, dtype={TORCH_DTYPES[r.dtype]}, device=device)", w.describe_value(r))
    index = w.names.define(block.args[0])
    steps = f"range({count})" if not attribute(op, "reverse") else f"range({count - 1}, -1, -1)"
    w.line(f"for {index} in map(torch.tensor, {steps}):" if block.args[0].uses else f"for {index} in {steps}:")
    w.depth += 1
    for arg, stack in zip(rows, scanned):
        if arg.uses:
            w.line(f"{w.names.define(arg)} = {w.names[stack]}[{index}]", w.describe_value(arg))

    def finish(last: Op) -> None:
        given, stacked = last.operands[: len(carried)], last.operands[len(carried) :]
        for name, row in zip(names[len(carried) :], stacked):
            w.line(f"{name}[{index}] = {w.names[row]}")
        _assign(w, names[: len(carried)], given, args)
        if not last.operands:
            w.line("pass")

    w.block(block, finish)
    w.depth -= 1


def _while(w: Writer, op: Op) -> None:
    condition, body = (region.block for region in op.regions)
    carried, _, shared = parts(op, op.operands)
    names = [w.names.define(r) for r in op.results]
    for block in (condition, body):
        args, _, same = parts(op, block.args)
        _alias(w, same, shared)
        if block is condition:
            _begin(w, op, names, carried, args)
        else:
            for a, name in zip(args, names):
                w.names.alias(a, name)
    w.line("while True:")
    w.depth += 1
    w.block(condition, lambda last: w.line(f"if not bool({w.names[last.operands[0]]}):"))
    w.line("    break")
    w.block(body, lambda last: _assign(w, names, last.operands, parts(op, body.args)[0]))
    w.depth -= 1


def _begin(w: Writer, op: Op, names: Sequence[str], values: Sequence[Value], args: Sequence[Value]) -> None:
    """What is carried has the results' names throughout."""
    for a, name in zip(args, names):
        w.names.alias(a, name)
    _assign(w, names, values, args)


def _alias(w: Writer, args: Sequence[Value], values: Sequence[Value]) -> None:
    for a, v in zip(args, values):
        w.names.alias(a, w.names[v])


def _assign(w: Writer, names: Sequence[str], values: Sequence[Value], like: Sequence[Value]) -> None:
    """Values under new names, at once; scalars of the host where the names stand for values of the device."""
    pairs = [(n, f"{w.names[v]}.to(device)" if on_host(v) and not on_host(to) else w.names[v]) for n, v, to in zip(names, values, like)]
    pairs = [(n, v) for n, v in pairs if n != v]
    if pairs:
        w.line(f"{', '.join(n for n, _ in pairs)} = {', '.join(v for _, v in pairs)}")


def _cond(w: Writer, op: Op) -> None:
    results = [w.names.define(r) for r in op.results]
    for head, region in zip((f"if bool({w.names[op.operands[0]]}):", "else:"), op.regions):
        _alias(w, region.block.args, op.operands[1:])
        _branch(w, op, head, region.block, results)


def _pipe(w: Writer, op: Op) -> None:
    results = [w.names.define(r) for r in op.results]
    for stage, region in enumerate(op.regions):
        _branch(w, op, f"{'if' if stage == 0 else 'elif'} mesh.index({op.attrs['axis']!r}) == {stage}:", region.block, results)


def _branch(w: Writer, op: Op, head: str, block: Block, results: list[str]) -> None:
    w.line(head)
    w.depth += 1
    w.block(block, lambda last: _assign(w, results, last.operands, op.results) if results else w.line("pass"))
    w.depth -= 1


REGIONS: dict[str, Callable[[Writer, Op], None]] = {
    "dmlc.microbatch": _microbatch,
    "dmlc.scan": _scan,
    "dmlc.while": _while,
    "dmlc.cond": _cond,
    "pipe.schedule": _pipe,
}

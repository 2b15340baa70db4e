"""The PyTorch program: `model.py`, straight-line code with the model's own names, a shape on every line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dmlc.codegen.copied import prelude_names
from dmlc.codegen.host import sent
from dmlc.codegen.in_place import other, reuse
from dmlc.codegen.lifetimes import last_uses, replaced
from dmlc.codegen.names import Names, identifier
from dmlc.codegen.pytorch_regions import REGIONS
from dmlc.ir.core import Block, BlockArgument, Module, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.open_sizes import OpenSizes
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import FutureType
from dmlc.ops.base import definition
from dmlc.ops.comm import base_name, is_start
from dmlc.ops.kernel import find_kernel
from dmlc.ops.size_text import kernel_symbols, python_text, variable
from dmlc.ops.text import TORCH_DTYPES, literal, render_torch

INDENT = "    "

TOLERANCE = {"fp32": 1e-4, "bf16": 5e-2, "fp16": 2e-2}  # how far results may be from the original's, by the precision asked for

COLLECTIVE_ATTRS = {
    "comm.all_reduce": ("axes", "combiner"),
    "comm.all_gather": ("axes", "dims", "sizes", "grains"),
    "comm.reduce_scatter": ("axes", "combiner", "dims", "sizes", "grains"),
    "comm.all_to_all": ("axes", "split_dims", "split_sizes", "split_grains", "dims", "sizes", "grains"),
}

HEAD = '''"""{title}

One rank's part of the program. Values carry the model's names; the comment on each line gives the local shape.
"""

import math  # noqa: F401

import torch
import torch.nn.functional as F  # noqa: F401, N812
from prelude import *  # noqa: F403
from runtime import Collectives, keep_freed_memory
{kernels}

class Program:
    """Call it with the rank's weights and inputs (dictionaries by name); it returns the results in order.{replaces}"""

    def __init__(self, mesh, device{sizes}):
        self.mesh, self.device = mesh, device{kept}
        self.comm = Collectives(mesh)
        if device.type == "cpu":
            keep_freed_memory()

    def __call__(self, weights, inputs):
        mesh, device, comm = self.mesh, self.device, self.comm
'''

KEPT = "\n        self.sizes = sizes  # numbers for the open sizes, by name"

REPLACES = """

    A new value takes the old one's place in `weights` as soon as that is read no more, and where that is possible its memory: tensors of
    `weights` change. Scalars are the caller's to put there.
    """


class Writer:
    """Collects the lines of one function body."""

    def __init__(self, module: Module):
        self.module = module
        self.mesh = Mesh.of(module)
        self.open = {symbol: variable(symbol) for symbol in OpenSizes.of(module).sizes}
        self.names = Names(prelude_names() | frozenset(self.open.values()))
        self.lines: list[str] = []
        self.depth = 2
        self.reuse = reuse(module.main)
        self.merged = set(self.reuse.merged.values())  # additions that the ops before them do too
        self.placed: dict[int, Op] = {}  # index of a line -> the op it is the first line of

    def line(self, text: str, comment: str = "") -> None:
        body = f"{INDENT * self.depth}{text}"
        self.lines.append(f"{body}  # {comment}" if comment else body)

    # -------------------------------------------------- blocks

    def block(self, block: Block, finish: Callable[[Op], None], replaced: dict[Op, list[tuple[BlockArgument, Value]]] | None = None) -> None:
        """Ops in order, each value deleted after its last use; `finish` writes the terminator. `replaced`: arguments put back after an op."""
        last = last_uses(block)
        for op in block:
            first = len(self.lines)
            if op is block.last:
                self.placed[first] = op
                return finish(op)
            self.op(op)
            if len(self.lines) > first:
                self.placed[first] = op
            gone = [self.names[v] for v in last.get(op, []) if v.op not in self.reuse.merged]
            for arg, new in (replaced or {}).get(op, ()):
                self.line(f"weights[{arg.name!r}] = {self.names[new]}")
                gone += [self.names[arg]] if arg.uses else []
            if gone:
                self.line(f"del {', '.join(gone)}")
        return None

    def op(self, op: Op) -> None:
        special = SPECIAL.get(base_name(op))
        if special is not None:
            return special(self, op)
        if op in self.merged:
            return None
        if op in self.reuse.merged:
            return self.merge(op)
        taken = self.reuse.taken.get(op, {})
        if any(v in self.reuse.loops for v in op.operands):
            return self.assign(op, f"plus({', '.join(self.names[v] for v in sorted(op.operands, key=lambda v: v not in self.reuse.loops))})")
        text = render_torch(op, self.operands(op), outs=[self.names[v] for v in taken.values()])
        if definition(op).given and op.results[0].type.rank and not any(v.tensor.rank for v in op.operands):  # type: ignore[union-attr]
            text = f"{text}.to(device)"  # made from nothing or from scalars; those stay on the host, where they mix with any device's tensors
        self.assign(op, text)
        return None

    def merge(self, op: Op) -> None:
        """An op and the addition of its result to something."""
        addition = self.reuse.merged[op]
        operands, added = self.operands(op), self.names[other(addition, op)]
        self.assign(addition, f"F.linear({', '.join(operands)}, {added})" if op.name == "dmlc.linear" else f"add_rows({added}, {', '.join(operands)})")

    def operands(self, op: Op) -> list[str]:
        """The operands' variables; scalars of the host where the op needs them on the device."""
        return [f"{self.names[v]}.to(device)" if sent(op, i) else self.names[v] for i, v in enumerate(op.operands)]

    def assign(self, op: Op, text: str, comment: str | None = None) -> None:
        targets = ", ".join(self.names.define(r) for r in op.results)
        tail = comment if comment is not None else describe(op)
        self.line(f"{targets} = {text}" if targets else text, tail)

    @staticmethod
    def describe_value(value: Value) -> str:
        """The local shape of one value."""
        return _shape(value.type)


def describe(op: Op) -> str:
    """Local shapes of the results, and where the op comes from."""
    shapes = ", ".join(_shape(r.type) for r in op.results)
    where = str(op.loc) if op.loc.known and not op.loc.text else ""
    return f"{shapes}  {where}".rstrip()


def _shape(type_: Any) -> str:
    if isinstance(type_, FutureType):
        return "future of " + ", ".join(_shape(t) for t in type_.types)
    return f"[{', '.join(map(python_text, type_.shape))}] {type_.dtype}"


# ---------------------------------------------------------------- ops without a text


def _axis_index(w: Writer, op: Op) -> None:
    w.assign(op, f'torch.tensor(mesh.index("{op.attrs["axis"]}"))', "")


def _collective(w: Writer, op: Op) -> None:
    base = base_name(op)
    operands = ", ".join(w.operands(op)) + ","
    attrs = ", ".join(literal(op.attrs.get(key, "sum")) for key in COLLECTIVE_ATTRS[base])
    given = ", given=True" if op in w.reuse.given else ""
    call = f"comm.{base.split('.')[1]}{'_start' if is_start(op) else ''}(({operands}), {attrs}{given})"
    if is_start(op):
        return w.assign(op, call)
    names = [w.names.define(r) for r in op.results]
    w.line(f"({', '.join(names)},) = {call}", describe(op))
    return None


def _wait(w: Writer, op: Op) -> None:
    future = w.names[op.operands[0]]
    names = [w.names.define(r) for r in op.results]
    w.line(f"({', '.join(names)},) = {future}.wait()", describe(op))


def _send(w: Writer, op: Op) -> None:
    a = op.attrs
    w.line(f"comm.send({w.names[op.operands[0]]}, {a['axis']!r}, {a['to']}, {a.get('tag', 0)})")


def _recv(w: Writer, op: Op) -> None:
    a, r = op.attrs, op.results[0]
    w.assign(op, f"comm.recv({literal(tuple(r.shape))}, {TORCH_DTYPES[r.dtype]}, {a['axis']!r}, {a['source']}, {a.get('tag', 0)}, device)")


def _call(w: Writer, op: Op) -> None:
    outs = [f"out_{i}={w.names[v]}" for i, v in w.reuse.taken.get(op, {}).items()]
    if len(op.results) == 1:
        outs = [text.replace("out_0", "out", 1) for text in outs]
    given = [w.open[s] for s in kernel_symbols(find_kernel(op))]
    w.assign(op, f"kernels.{identifier(op.attrs['kernel'])}({', '.join([*w.operands(op), *given, *outs])})")


def _barrier(w: Writer, op: Op) -> None:
    w.names.alias(op.results[0], w.names[op.operands[0]])


SPECIAL: dict[str, Callable[[Writer, Op], None]] = {
    "comm.axis_index": _axis_index,
    **dict.fromkeys(COLLECTIVE_ATTRS, _collective),
    "comm.wait": _wait,
    "comm.send": _send,
    "comm.recv": _recv,
    "kernel.call": _call,
    "dmlc.barrier": _barrier,
    **REGIONS,
}


def emit_model(module: Module, title: str, kernels: str = "kernels") -> str:
    """Text of `model.py` for a per-rank module; `kernels` is the file with its fused kernels. Raises `DmlcError` naming an op that has no PyTorch form."""
    return emit_with_lines(module, title, kernels)[0]


def emit_with_lines(module: Module, title: str, kernels: str = "kernels") -> tuple[str, dict[int, Op]]:
    """`emit_model`'s text, and line number (from 1) -> the op that begins there."""
    w = Writer(module)
    function = module.main
    for name in w.open.values():
        w.line(f"{name} = self.sizes[{name!r}]", "an open size")
    fused = next((op for op in function.ops() if op.name == "kernel.fused"), None)
    if fused is not None:
        raise DmlcError("fused regions must be outlined into kernels before code generation (pass outline-kernels)", fused.loc)
    for arg in function.args:
        source = "inputs" if arg.attrs.get("dmlc.role", "input") == "input" else "weights"
        name = w.names.define(arg)
        if arg.uses:
            w.line(f"{name} = {source}[{arg.name!r}]", _shape(arg.type))

    def finish(last: Op) -> None:
        w.line(f"return [{', '.join(w.names[v] for v in last.operands)}]")

    w.block(function.body, finish, replaced(function))
    calls = any(op.name == "kernel.call" for op in function.ops())
    kernels = f"\nimport {kernels}\n" if kernels == "kernels" else f"\nimport {kernels} as kernels\n"
    replaces = REPLACES if any("dmlc.updates" in attrs for attrs in function.result_attrs) else ""
    head = HEAD.format(title=title, kernels=kernels if calls else "", replaces=replaces, sizes=", sizes" if w.open else "", kept=KEPT if w.open else "")
    above = head.count("\n") + 1
    return head + "\n".join(w.lines) + "\n", {above + i: op for i, op in w.placed.items()}

"""The function under construction: its arguments (inputs, weights, constants), its ops, and the store behind the weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dmlc.frontend.draws import Draws
from dmlc.frontend.onnx.values import Known, Weight
from dmlc.frontend.trace import Trace
from dmlc.ir.attributes import DenseResource
from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Block, BlockArgument, Module, Op, Region, Value
from dmlc.ir.location import UNKNOWN, DmlcError, Loc
from dmlc.ir.types import TensorType, Type
from dmlc.ir.weights import WeightStore

SHARED_CONSTANT_BYTES = 1 << 20  # equal constants up to this size become one argument

MOVEMENTS = {"dmlc.reshape", "dmlc.transpose", "dmlc.slice", "dmlc.broadcast", "dmlc.concat", "dmlc.cast"}
_ROLE_ORDER = ("param", "buffer", "const")  # the strongest of a weight's uses decides


class Program(Draws):
    """`@main` and its arguments. Weights and constants become arguments when first used."""

    def __init__(self, trainable: str | None = None, mode: str = "", trace: Trace | None = None):
        self.module, self.store, self.trace = Module(), WeightStore(), trace or Trace()
        self.mode = mode  # "train", "eval" (of a model that is trained) or "" (as the file says)
        self.updates: dict[BlockArgument, Value] = {}  # running statistics -> their new values
        self.function = self.module.add_function("main")
        self.builder = Builder.at_end(self.function.body)
        self.loc: Loc = UNKNOWN  # given to new ops
        self.trainable = _pattern(trainable)
        self.taken: set[str] = set()
        self._weight_of: dict[BlockArgument, Weight] = {}
        self._shared: dict[tuple[str, tuple[int, ...], bytes], BlockArgument] = {}

    def op(self, name: str, operands: Sequence[Value], attrs: dict[str, Any], types: Sequence[Type] | None) -> Op:
        self.builder.loc = self.loc
        return self.trace.made(self.builder.op(name, operands, attrs, types))

    @contextmanager
    def region(self, types: Sequence[Type]) -> Iterator[Block]:
        """Ops go into a new block with arguments of these types, for a while."""
        saved, block = self.builder, Block(types)
        if saved.ids is None:
            saved.ids = IdPool(self.function)
        self.builder = Builder(block, None, saved.ids)
        try:
            yield block
        except BaseException:
            discard(block)
            raise
        finally:
            self.builder = saved

    def region_op(self, name: str, operands: Sequence[Value], attrs: dict[str, Any], types: Sequence[Type], regions: Sequence[Region]) -> Op:
        self.builder.loc = self.loc
        return self.trace.made(self.builder.op(name, operands, attrs, types, regions=regions))

    def input(self, name: str, argument: str, type_: TensorType, batch_dim: int | None) -> BlockArgument:
        attrs: dict[str, Any] = {"dmlc.role": "input"}
        if argument != name:
            attrs["dmlc.name"] = name
        if batch_dim is not None:
            attrs["dmlc.batch_dim"] = batch_dim
        return self.function.body.add_arg(type_, argument, attrs)

    def constant(self, known: Known) -> Value:
        if known.arg is None:
            key = (known.dtype, known.shape, np.ascontiguousarray(known.array).tobytes()) if known.array.nbytes <= SHARED_CONSTANT_BYTES else None
            known.arg = self._shared.get(key) if key else None
            if known.arg is None:
                known.arg = self._stored(known.name or "const", known.shape, known.dtype, known.array)
                known.arg.attrs["dmlc.role"] = "const"
            if key:
                self._shared[key] = known.arg
        return known.arg

    def weight(self, weight: Weight, role: str) -> Value:
        if weight.arg is None:
            weight.arg = self._stored(weight.name, weight.shape, weight.dtype, weight.source.load)
            weight.arg.attrs["dmlc.names"] = (weight.name,)
            if weight.overridable:
                weight.arg.attrs["dmlc.overridable"] = True
            self._weight_of[weight.arg] = weight
        weight.roles.add(self._chosen(weight, role))
        weight.arg.attrs["dmlc.role"] = next(r for r in _ROLE_ORDER if r in weight.roles)
        return weight.arg

    def mark(self, value: Value, role: str) -> None:
        """Give the role to the weights that the value is a view or a converted copy of."""
        pending = [value] if role != "const" else []
        while pending:
            value = pending.pop()
            if value.op is not None and value.op.name in MOVEMENTS:
                pending += value.op.operands
            elif isinstance(value, BlockArgument) and value in self._weight_of:
                self.weight(self._weight_of[value], role)

    def is_named_trainable(self, name: str) -> bool:
        return self.trainable is not None and self.trainable.search(name) is not None

    def _chosen(self, weight: Weight, role: str) -> str:
        if role == "param" and self.mode and not _is_finite(weight):
            return "const"  # a mask, or a limit: nothing that a gradient moves
        if self.trainable is None or not TensorType(weight.shape, weight.dtype).is_float:
            return role
        if self.is_named_trainable(weight.name):
            return "param"
        return "const" if role == "param" else role

    def _stored(self, name: str, shape: Sequence[int], dtype: str, values: Any) -> BlockArgument:
        argument, type_ = self.argument_name(name), TensorType(tuple(shape), dtype)
        self.store.add(argument, values, type_)
        return self.function.body.add_arg(type_, argument, {"dmlc.role": "const", "dmlc.value": DenseResource(argument, type_)})

    def argument_name(self, name: str) -> str:
        """An identifier for a name of the model, unique among the arguments."""
        stem = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "arg"
        stem = f"arg_{stem}" if stem[0].isdigit() else stem
        unique, n = stem, 0
        while unique in self.taken:
            n += 1
            unique = f"{stem}_{n}"
        self.taken.add(unique)
        return unique

    def finish(self, outputs: Sequence[tuple[str, Value]]) -> None:
        """End the function, drop what turned out unused, number the ops."""
        self.builder.loc = UNKNOWN
        new = list(self.updates.items())
        outputs = [(name, v) for name, v in outputs if v not in self.updates.values()]
        self.builder.op("func.return", [*(v for _, v in outputs), *(v for _, v in new)], result_types=())
        attrs = self.function.result_attrs
        for entry, (name, _) in zip(attrs, outputs):
            entry["dmlc.name"] = name
        for entry, (arg, _) in zip(attrs[len(outputs) :], new, strict=True):
            entry.update({"dmlc.name": f"{arg.name}.new", "dmlc.updates": arg.name})
        for op in reversed(self.function.body.ops):
            if op.results and op.unused:
                op.erase()
        for arg in list(self.function.args):
            if not arg.uses and arg.attrs["dmlc.role"] != "input" and "dmlc.overridable" not in arg.attrs:
                self.function.body.erase_arg(arg)
        for number, op in enumerate(op for op in self.function.ops() if op.name not in ("func.return", "dmlc.yield")):
            op.attrs["dmlc.id"] = str(number)


def discard(block: Block) -> None:
    """Let go what the ops of a block read that will not be used."""
    for op in reversed(block.ops):
        op.erase()


def _is_finite(weight: Weight) -> bool:
    """Whether a float weight holds numbers only (bf16 and the 8-bit floats are taken for it)."""
    array = weight.source.load()
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text is not None else None
    except re.error as e:
        raise DmlcError(f"'{text}' is not a regular expression: {e}") from None

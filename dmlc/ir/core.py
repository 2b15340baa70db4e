"""Values, operations, blocks, regions and the module: SSA in MLIR's shape.

One class serves every operation; what an op means stands in its definition (`dmlc.ir.registry`, `dmlc.ops`).
Blocks are doubly linked lists, so that inserting and erasing cost O(1) and iteration survives edits of the current op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

from dmlc.ir.location import UNKNOWN, DmlcError, Loc
from dmlc.ir.types import FunctionType, TensorType, Type


class Value:
    """An SSA value. `uses` keeps (op, operand index) pairs in the order they were made."""

    __slots__ = ("type", "uses")

    def __init__(self, type_: Type):
        self.type = type_
        self.uses: dict[tuple[Op, int], None] = {}

    @property
    def tensor(self) -> TensorType:
        """The type, which must be a tensor's."""
        assert isinstance(self.type, TensorType), self.type
        return self.type

    @property
    def shape(self) -> tuple:
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    @property
    def op(self) -> Op | None:
        """The op that makes this value; None for a block argument."""
        return None

    @property
    def users(self) -> list[Op]:
        """Each using op once, in order of first use."""
        return list(dict.fromkeys(op for op, _ in self.uses))

    def replace_uses(self, new: Value, where: Callable[[Op], bool] | None = None) -> None:
        """Let every use (or those whose op passes `where`) take `new` instead."""
        for op, index in list(self.uses):
            if new is not self and (where is None or where(op)):
                op.set_operand(index, new)


class OpResult(Value):
    __slots__ = ("_op", "index")

    def __init__(self, type_: Type, op: Op, index: int):
        super().__init__(type_)
        self._op, self.index = op, index

    @property
    def op(self) -> Op:
        return self._op


class BlockArgument(Value):
    """`name` (without `%`) is kept for arguments of functions, where it identifies the argument."""

    __slots__ = ("block", "index", "name", "attrs")

    def __init__(self, type_: Type, block: Block, index: int, name: str = "", attrs: dict[str, Any] | None = None):
        super().__init__(type_)
        self.block, self.index, self.name = block, index, name
        self.attrs: dict[str, Any] = attrs if attrs is not None else {}


class Op:
    """An operation: name, operands, results, attributes, regions, a location.

    `properties` of MLIR (`<{...}>`) are only used for `func.func` and live in `attrs` like all else.
    """

    __slots__ = ("name", "_operands", "results", "attrs", "regions", "loc", "block", "prev", "next", "__weakref__")

    def __init__(self, name: str, operands: Sequence[Value] = (), result_types: Sequence[Type] = (), attrs: dict[str, Any] | None = None, regions: Sequence[Region] = (), loc: Loc = UNKNOWN):
        self.name = name
        self._operands: list[Value] = []
        self.results = [OpResult(t, self, i) for i, t in enumerate(result_types)]
        self.attrs: dict[str, Any] = dict(attrs or {})
        self.regions = list(regions)
        self.loc = loc
        self.block: Block | None = None
        self.prev: Op | None = None
        self.next: Op | None = None
        for region in self.regions:
            region.op = self
        self.operands = operands

    def __repr__(self) -> str:
        return f"<Op {self.name} {self.id or ''}>"

    @property
    def operands(self) -> tuple[Value, ...]:
        return tuple(self._operands)

    @operands.setter
    def operands(self, values: Iterable[Value]) -> None:
        for i, v in enumerate(self._operands):
            v.uses.pop((self, i), None)
        self._operands = list(values)
        for i, v in enumerate(self._operands):
            v.uses[self, i] = None

    def set_operand(self, index: int, value: Value) -> None:
        self._operands[index].uses.pop((self, index), None)
        self._operands[index] = value
        value.uses[self, index] = None

    @property
    def result(self) -> OpResult:
        """The only result."""
        assert len(self.results) == 1, f"{self.name} has {len(self.results)} results"
        return self.results[0]

    @property
    def id(self) -> str:
        return self.attrs.get("dmlc.id", "")

    @property
    def region(self) -> Region:
        return self.regions[0]

    @property
    def parent(self) -> Op | None:
        return self.block.region.op if self.block is not None and self.block.region is not None else None  # a block's truth would count its ops

    @property
    def function(self) -> Op | None:
        """The nearest enclosing `func.func` (itself included)."""
        op: Op | None = self
        while op is not None and op.name != "func.func":
            op = op.parent
        return op

    @property
    def dialect(self) -> str:
        return self.name.split(".", 1)[0]

    @property
    def unused(self) -> bool:
        return not any(r.uses for r in self.results)

    def walk(self) -> Iterator[Op]:
        """This op and all nested ones, an op before its regions."""
        yield self
        for region in self.regions:
            for block in region.blocks:
                yield from block.walk()

    def remove(self) -> Op:
        """Take the op out of its block; operands stay connected."""
        if self.block is not None:
            self.block._unlink(self)
        return self

    def erase(self) -> None:
        """Remove the op for good; its results must be unused."""
        for r in self.results:
            if r.uses:
                raise DmlcError(f"op '{self.name}' erased while a result is still used", self.loc)
        for nested in self.walk():
            nested.operands = ()
        self.remove()

    def replace(self, values: Sequence[Value]) -> None:
        """Let all uses of the results take `values`, then erase the op."""
        for old, new in zip(self.results, values, strict=True):
            old.replace_uses(new)
        self.erase()

    def clone(self, mapping: dict[Value, Value] | None = None, suffix: str = "") -> Op:
        """A copy with operands sent through `mapping` (which learns the new results). `suffix` is appended to all ids."""
        mapping = {} if mapping is None else mapping
        copy = Op(self.name, [mapping.get(v, v) for v in self._operands], [r.type for r in self.results], self.attrs, loc=self.loc)
        if suffix and "dmlc.id" in copy.attrs:
            copy.attrs["dmlc.id"] += suffix
        for old, new in zip(self.results, copy.results):
            mapping[old] = new
        for region in self.regions:
            copy.add_region(region.clone(mapping, suffix))
        return copy

    def add_region(self, region: Region | None = None) -> Region:
        region = region if region is not None else Region()
        region.op = self
        self.regions.append(region)
        return region

    def is_before(self, other: Op) -> bool:
        """Whether this op stands before `other` in the same block (linear; passes that ask often number the ops once)."""
        assert self.block is other.block
        op = self.next
        while op is not None:
            if op is other:
                return True
            op = op.next
        return False


class Block:
    """A straight list of ops with arguments. Iterating while erasing or replacing the current op is safe."""

    __slots__ = ("args", "region", "first", "last")

    def __init__(self, arg_types: Sequence[Type] = ()):
        self.region: Region | None = None
        self.args: list[BlockArgument] = []
        self.first: Op | None = None
        self.last: Op | None = None
        for t in arg_types:
            self.add_arg(t)

    def add_arg(self, type_: Type, name: str = "", attrs: dict[str, Any] | None = None) -> BlockArgument:
        arg = BlockArgument(type_, self, len(self.args), name, attrs)
        self.args.append(arg)
        return arg

    def erase_arg(self, arg: BlockArgument) -> None:
        assert not arg.uses, f"argument %{arg.name} is still used"
        self.args.remove(arg)
        for i, a in enumerate(self.args):
            a.index = i

    def __iter__(self) -> Iterator[Op]:
        op = self.first
        while op is not None:
            following = op.next
            yield op
            op = following

    def walk(self) -> Iterator[Op]:
        """All ops, nested ones too, an op before its regions."""
        for op in self:
            if op.regions:
                yield from op.walk()
            else:
                yield op

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def ops(self) -> list[Op]:
        """A snapshot of the ops."""
        return list(self)

    @property
    def terminator(self) -> Op:
        assert self.last is not None
        return self.last

    def append(self, op: Op) -> Op:
        return self._link(op, self.last, None)

    def insert_before(self, anchor: Op, op: Op) -> Op:
        return self._link(op, anchor.prev, anchor)

    def insert_after(self, anchor: Op, op: Op) -> Op:
        return self._link(op, anchor, anchor.next)

    def reorder(self, ops: Sequence[Op]) -> None:
        """Put the block's ops into the given order (a permutation of them)."""
        assert len(ops) == len(self)
        for op in ops:
            self._unlink(op)
            self.append(op)

    def _link(self, op: Op, prev: Op | None, next_: Op | None) -> Op:
        assert op.block is None, f"{op!r} already stands in a block"
        op.block, op.prev, op.next = self, prev, next_
        if prev is None:
            self.first = op
        else:
            prev.next = op
        if next_ is None:
            self.last = op
        else:
            next_.prev = op
        return op

    def _unlink(self, op: Op) -> None:
        if op.prev is None:
            self.first = op.next
        else:
            op.prev.next = op.next
        if op.next is None:
            self.last = op.prev
        else:
            op.next.prev = op.prev
        op.block = op.prev = op.next = None


class Region:
    __slots__ = ("blocks", "op")

    def __init__(self, blocks: Sequence[Block] = ()):
        self.op: Op | None = None
        self.blocks: list[Block] = []
        for b in blocks:
            self.add_block(b)

    def add_block(self, block: Block | None = None) -> Block:
        block = block if block is not None else Block()
        block.region = self
        self.blocks.append(block)
        return block

    @property
    def block(self) -> Block:
        """The only block."""
        assert len(self.blocks) == 1
        return self.blocks[0]

    def clone(self, mapping: dict[Value, Value], suffix: str = "") -> Region:
        copy = Region()
        for block in self.blocks:
            new = copy.add_block()
            for arg in block.args:
                mapping[arg] = new.add_arg(arg.type, arg.name, dict(arg.attrs))
            for op in block:
                new.append(op.clone(mapping, suffix))
        return copy


class Function:
    """A view on a `func.func` op: arguments, body, results with their attributes."""

    __slots__ = ("op",)

    def __init__(self, op: Op):
        assert op.name == "func.func"
        self.op = op

    @property
    def name(self) -> str:
        return self.op.attrs["sym_name"]

    @property
    def body(self) -> Block:
        return self.op.region.block

    @property
    def args(self) -> list[BlockArgument]:
        return self.body.args

    @property
    def return_op(self) -> Op:
        return self.body.terminator

    @property
    def results(self) -> tuple[Value, ...]:
        return self.return_op.operands

    @property
    def result_attrs(self) -> list[dict[str, Any]]:
        """One dictionary a result (`dmlc.name`, `dmlc.sharding`, `dmlc.updates`); edit in place."""
        attrs = self.op.attrs.setdefault("res_attrs", [])
        while len(attrs) < len(self.results):
            attrs.append({})
        return attrs

    @property
    def type(self) -> FunctionType:
        return FunctionType(tuple(a.type for a in self.args), tuple(v.type for v in self.results))

    def arg(self, name: str) -> BlockArgument:
        for a in self.args:
            if a.name == name:
                return a
        raise DmlcError(f"function @{self.name} has no argument %{name}", self.op.loc)

    def ops(self) -> Iterator[Op]:
        """All ops of the body, nested ones too, terminators included."""
        return self.body.walk()


class Module:
    """A `builtin.module` op and the questions one asks of it."""

    __slots__ = ("op",)

    def __init__(self, op: Op | None = None):
        if op is None:
            op = Op("builtin.module", regions=[Region([Block()])])
        self.op = op

    @property
    def attrs(self) -> dict[str, Any]:
        return self.op.attrs

    @property
    def body(self) -> Block:
        return self.op.region.block

    @property
    def functions(self) -> list[Function]:
        return [Function(op) for op in self.body if op.name == "func.func"]

    @property
    def main(self) -> Function:
        """The function named `main`, or the only one."""
        functions = self.functions
        for f in functions:
            if f.name == "main":
                return f
        if len(functions) != 1:
            raise DmlcError("the module has no function @main", self.op.loc)
        return functions[0]

    @property
    def mesh_op(self) -> Op | None:
        return next((op for op in self.body if op.name == "dmlc.mesh"), None)

    def add_function(self, name: str, arg_types: Sequence[Type] = (), arg_names: Sequence[str] = ()) -> Function:
        block = Block()
        for i, t in enumerate(arg_types):
            block.add_arg(t, arg_names[i] if arg_names else f"arg{i}")
        op = Op("func.func", attrs={"sym_name": name}, regions=[Region([block])])
        self.body.append(op)
        return Function(op)

    def walk(self) -> Iterator[Op]:
        return self.op.walk()

    def clone(self) -> Module:
        copy = Module(self.op.clone({}))
        for op in copy.body:  # result attributes are edited in place, so a copy owns its own
            if "res_attrs" in op.attrs:
                op.attrs["res_attrs"] = [dict(a) for a in cast(list, op.attrs["res_attrs"])]
        return copy

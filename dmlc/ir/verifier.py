"""What every module must satisfy, whatever its ops mean: structure, SSA, ids, attribute values; then each op's own definition.

Each violation is a `DmlcError` at the op's location. `dmlc.ir.verify_futures` and `dmlc.ir.verify_sharding` hold the other two subjects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dmlc.ir.attributes import AttrDict, Axes, DenseResource, Sharding, SymbolRef
from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Block, BlockArgument, Function, Module, Op, Value
from dmlc.ir.dims import Dim
from dmlc.ir.location import DmlcError, Loc
from dmlc.ir.open_sizes import OpenSizes, in_force
from dmlc.ir.printer import sanitised
from dmlc.ir.registry import DEFINITIONS, lookup
from dmlc.ir.suggest import did_you_mean
from dmlc.ir.types import Type
from dmlc.ir.verify_futures import verify_future
from dmlc.ir.verify_sharding import Shardings

DIALECTS = ("builtin", "func", "dmlc", "comm", "kernel", "pipe")
ISOLATED = ("builtin.module", "func.func", "kernel.fused")  # regions that see nothing from outside
SCALARS = (bool, int, float, str, type(None), Dim, SymbolRef, DenseResource, Axes, Sharding)


def verify(module: Module) -> None:
    """Raise `DmlcError` at the first thing wrong with the module."""
    with in_force(OpenSizes.of(module)):
        _Verifier(module).run()


class _Verifier:
    def __init__(self, module: Module):
        self.module = module
        self.visible: dict[Value, None] = {}
        self.defined: list[Value] = []
        self.ops: dict[Op, None] = {}
        self.ids: dict[str, Op] | None = None  # of the function being looked at
        self.shardings = Shardings(module)
        self.complete_dialects = frozenset(name.split(".", 1)[0] for name in DEFINITIONS) & frozenset(DIALECTS)

    def run(self) -> None:
        if self.module.op.name != "builtin.module" or self.module.op.block is not None:
            raise DmlcError("the outermost op is not a builtin.module", self.module.op.loc)
        self._symbols()
        self._op(self.module.op)
        for value in self.defined:
            self._uses(value)
            verify_future(value)
        self.shardings.verify()

    def _symbols(self) -> None:
        """Functions and meshes have names of their own."""
        seen: dict[str, Op] = {}
        _single_block(self.module.op)
        for op in self.module.body:
            if op.name in ("func.func", "dmlc.mesh"):
                name = op.attrs.get("sym_name")
                if not isinstance(name, str) or not name:
                    raise DmlcError(f"'{op.name}' needs a name", op.loc)
                if name in seen:
                    raise DmlcError(f"@{name} is defined twice", op.loc, (f"first at {seen[name].loc}",))
                seen[name] = op

    # ------------------------------------------------------------ one op

    def _op(self, op: Op) -> None:
        self.ops[op] = None
        self._operands(op)
        self._attributes(op)
        if op.name == "func.func":
            self._function(op)
        elif self.ids is not None and op.name not in TERMINATORS:
            self._id(op)
        self._regions(op)
        self._definition(op)

    def _operands(self, op: Op) -> None:
        for i, value in enumerate(op._operands):
            if (op, i) not in value.uses:
                raise DmlcError(f"operand {i} of '{op.name}' does not know this use", op.loc)
            if value not in self.visible:
                raise DmlcError(f"operand {i} of '{op.name}', {_origin(value)}, is not defined before its use", op.loc)

    def _attributes(self, op: Op) -> None:
        for key, value in op.attrs.items():
            if not (key == "res_attrs" and op.name == "func.func") and not is_attribute(value):
                raise DmlcError(f"attribute '{key}' of '{op.name}' holds {_foreign(value)}, which is not an attribute value", op.loc)

    def _id(self, op: Op) -> None:
        assert self.ids is not None
        if not isinstance(op.id, str) or not op.id:
            raise DmlcError(f"'{op.name}' has no dmlc.id", op.loc)
        if op.id in self.ids:
            raise DmlcError(f"two ops have the dmlc.id \"{op.id}\"", op.loc, (f"the other is '{self.ids[op.id].name}' at {self.ids[op.id].loc}",))
        self.ids[op.id] = op

    def _definition(self, op: Op) -> None:
        """What the op's own definition demands. Operands or attributes so wrong that its code stumbles over them are an error as well."""
        definition = lookup(op.name)
        if definition is None:
            if op.dialect in self.complete_dialects:
                raise DmlcError(f"unknown op '{op.name}'{did_you_mean(op.name, DEFINITIONS)}", op.loc)
            return
        try:
            definition.verify(op)
        except DmlcError as e:
            e.loc = e.loc if e.loc.known else op.loc
            raise
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as e:
            raise DmlcError(f"operands or attributes of '{op.name}' do not fit it: {type(e).__name__}: {e}", op.loc) from e

    # ------------------------------------------------------------ regions

    def _regions(self, op: Op) -> None:
        if op.regions:
            self._check_terminators(op)
        outer, mark = self.visible, len(self.visible)
        if op.name in ISOLATED:
            self.visible = {}
            mark = 0
        for region in op.regions:
            if region.op is not op:
                raise DmlcError(f"a region of '{op.name}' belongs to another op", op.loc)
            for block in region.blocks:
                self._block(block, op)
            while len(self.visible) > mark:
                self.visible.popitem()
        self.visible = outer
        if op.name == "func.func":
            self.ids = None
        self._define(op.results)

    def _check_terminators(self, op: Op) -> None:
        """One block a region. Regions of our own ops inside functions end in a terminator, and none stands earlier."""
        for region in op.regions:
            if len(region.blocks) != 1:
                raise DmlcError(f"a region of '{op.name}' has {len(region.blocks)} blocks; it must have one", op.loc)
            last = region.block.last
            wanted = "func.return" if op.name == "func.func" else "a yield" if self.ids is not None and op.dialect in DIALECTS else ""
            if wanted and (last is None or last.name not in TERMINATORS or (last.name == "func.return") != (op.name == "func.func")):
                raise DmlcError(f"a region of '{op.name}' does not end in {wanted}", last.loc if last is not None and last.loc.known else op.loc)

    def _block(self, block: Block, owner: Op) -> None:
        for i, arg in enumerate(block.args):
            if arg.block is not block or arg.index != i:
                raise DmlcError(f"argument {i} of a block of '{owner.name}' is out of step with it", owner.loc)
        self._define(block.args)
        previous: Op | None = None
        for op in block:
            if op.block is not block or op.prev is not previous:
                raise DmlcError(f"'{op.name}' is not linked into its block", op.loc)
            if previous is not None and previous.name in TERMINATORS:
                raise DmlcError(f"'{op.name}' stands after '{previous.name}', which ends the block", op.loc)
            self._op(op)
            previous = op

    def _define(self, values) -> None:
        for value in values:
            self.visible[value] = None
            self.defined.append(value)

    # ------------------------------------------------------------ functions and values

    def _function(self, op: Op) -> None:
        if self.ids is not None:
            raise DmlcError("a function stands inside another", op.loc)
        self.ids = {}
        _single_block(op)
        names: dict[str, None] = {}
        for arg in Function(op).args:
            if not arg.name or sanitised(arg.name) != arg.name:
                raise DmlcError(f"'{arg.name}' cannot name an argument of @{op.attrs.get('sym_name')}; use letters, digits, '_', '.' and '$'", op.loc)
            if arg.name in names:
                raise DmlcError(f"@{op.attrs.get('sym_name')} has two arguments %{arg.name}", op.loc)
            names[arg.name] = None
            self._dictionary(arg.attrs, f"argument %{arg.name}", op.loc)
        given = op.attrs.get("res_attrs", [])
        last = Function(op).body.last
        if not isinstance(given, (list, tuple)) or (last is not None and len(given) > len(last.operands)):
            raise DmlcError(f"res_attrs of @{op.attrs.get('sym_name')} has more entries than there are results", op.loc)
        for i, attrs in enumerate(given):
            self._dictionary(attrs, f"result {i}", op.loc)

    def _dictionary(self, attrs: Mapping[str, Any], owner: str, loc: Loc) -> None:
        for key, value in attrs.items():
            if not is_attribute(value):
                raise DmlcError(f"attribute '{key}' of {owner} holds {_foreign(value)}, which is not an attribute value", loc)

    def _uses(self, value: Value) -> None:
        for user, index in value.uses:
            if user not in self.ops:
                raise DmlcError(f"{_origin(value)} is used by '{user.name}', which is not in the module", value.op.loc if value.op else user.loc)
            if index >= len(user._operands) or user._operands[index] is not value:
                raise DmlcError(f"{_origin(value)} lists a use by '{user.name}' that is none", user.loc)


def _single_block(op: Op) -> None:
    if len(op.regions) != 1 or len(op.regions[0].blocks) != 1:
        raise DmlcError(f"'{op.name}' needs one region of one block", op.loc)


def _origin(value: Value) -> str:
    """A value in words."""
    if isinstance(value, BlockArgument):
        return f"argument %{value.name}" if value.name else f"block argument {value.index}"
    assert value.op is not None
    which = f" {value.op.id}" if value.op.id else ""
    return f"a result of '{value.op.name}'{which}"


def is_attribute(value: Any) -> bool:
    """Whether a value may stand in an attribute dictionary: exact classes only, since a NumPy integer does not print as one."""
    kind = type(value)
    if kind in SCALARS or isinstance(value, Type):
        return True
    if kind is tuple:
        return all(map(is_attribute, value))
    return kind is AttrDict and all(isinstance(k, str) and is_attribute(v) for k, v in value.items())


def _foreign(value: Any) -> str:
    """The class of what is no attribute value inside `value`."""
    parts = value if type(value) is tuple else value.values() if type(value) is AttrDict else ()
    for part in parts:
        if not is_attribute(part):
            return _foreign(part)
    return f"a {type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")

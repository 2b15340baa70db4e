"""Control flow of exported programs: `cond`, `while_loop`, `scan`, `map` and `associative_scan` become ops with regions.

What a branch or a body reads beside its own operands (weights, values around it) is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dmlc.frontend.torch_graph import location_of
from dmlc.frontend.torch_regions import region_of
from dmlc.ir.core import Op, Region, Value
from dmlc.ir.dims import Dim
from dmlc.ir.location import DmlcError
from dmlc.ir.open_sizes import UnknownSize
from dmlc.ir.types import TensorType
from dmlc.ops.control import row_type, stack_type

if TYPE_CHECKING:
    from dmlc.frontend.torch_import import Importer

INDEX = TensorType((), "i64")
Node = torch.fx.Node


class Control:
    """One call of a control flow operator: `graphs` are the functions it is given."""

    def __init__(self, importer: Importer, graph: torch.fx.GraphModule, node: Node):
        self.importer, self.node, self.args = importer, node, list(node.args)
        self.graphs = bodies_of(graph, node)

    def error(self, message: str) -> DmlcError:
        return DmlcError(f"{self.node.target}: {message}", location_of(self.node))

    def values(self, nodes: Sequence[Any], what: str) -> list[Value]:
        """Tensors that the call is given."""
        if any(not isinstance(n, Node) or n not in self.importer.env for n in nodes):
            raise self.error(f"{what} must be tensors")
        return [self.importer.env[n] for n in nodes]

    # ------------------------------------------------------------ regions

    def region(self, types: Sequence[Any], inside: Callable[[list[Value]], Sequence[Value]]) -> Region:
        """Ops that `inside` emits go into a new block with arguments of these types."""
        return region_of(self.importer, types, inside)

    def call(self, body: torch.fx.GraphModule, given: Sequence[Any]) -> list[Any]:
        """The results of a function for values, or for nodes of the graph around it (numbers stand in its own nodes); None for what is no tensor."""
        env = self.importer.env
        for inner, outer in zip([n for n in body.graph.nodes if n.op == "placeholder"], given, strict=True):
            found = outer if isinstance(outer, Value) else env.get(outer) if isinstance(outer, Node) else None
            if found is not None:
                env[inner] = found
        outputs = self.importer.walk(body)
        return [env.get(n) if isinstance(n, Node) else None for n in (outputs if isinstance(outputs, (list, tuple)) else [outputs])]

    def tensors(self, results: Sequence[Any], types: Sequence[Any] | None = None, what: str = "") -> list[Value]:
        """Results that must all be tensors; of these types where they go into the next iteration."""
        if any(v is None for v in results):
            raise self.error("a result that is no tensor")
        for value, type_ in zip(results, types or ()):
            if value.type != type_:
                raise self.error(f"{what} changes its type from {type_} to {value.type}")
        return list(results)

    def emit(self, name: str, operands: Sequence[Value], types: Sequence[Any], regions: Sequence[Region], **attrs: Any) -> list[Value]:
        attrs["dmlc.name"] = self.importer.name(self.node)
        op: Op = self.importer.builder.op(name, operands, attrs, types, regions=regions)
        return list(op.results)


def bodies_of(graph: torch.fx.GraphModule, node: Node) -> list[torch.fx.GraphModule]:
    """The functions that a call is given."""
    return [getattr(graph, str(a.target)) for a in node.args if isinstance(a, Node) and a.op == "get_attr"]


# ---------------------------------------------------------------- operators


def cond(c: Control) -> list[Any]:
    """cond(predicate, true function, false function, operands)."""
    predicate, operands = c.args[0], c.args[3]
    if not isinstance(predicate, Node) or predicate not in c.importer.env:
        return c.call(c.graphs[0 if _known(c, predicate) else 1], operands)
    flag = c.importer.env[predicate]
    if flag.tensor.rank:
        flag = c.importer.builder.emit("dmlc.reshape", flag, types=[flag.tensor.with_shape(())])
    places: list[list[bool]] = []

    def branch(body: torch.fx.GraphModule) -> Region:
        def inside(args: list[Value]) -> list[Value]:
            results = c.call(body, operands)
            places.append([v is not None for v in results])
            return [v for v in results if v is not None]

        return c.region((), inside)

    regions = [branch(body) for body in c.graphs]
    types = [[v.type for v in r.block.terminator.operands] for r in regions]
    if types[0] != types[1] or places[0] != places[1]:
        raise c.error(f"the branches give ({', '.join(map(str, types[0]))}) and ({', '.join(map(str, types[1]))}); both must give the same")
    results = iter(c.emit("dmlc.cond", [flag], types[0], regions))
    return [next(results) if there else None for there in places[0]]


def _known(c: Control, predicate: Any) -> bool:
    """A predicate on sizes alone."""
    value = predicate.meta["val"] if isinstance(predicate, Node) else predicate
    if isinstance(value, torch.SymBool):
        predicate, known = value.node.expr, c.importer.symbols
        left = [known[s] for s in predicate.free_symbols if isinstance(known[s], Dim)]
        if left:
            raise UnknownSize.of(sum(left), f"which branch is taken depends on {predicate}")
        value = predicate.subs(known)
        if not (value.is_Boolean and value in (True, False)):
            raise c.error(f"the predicate {value} is not known at compile time")
    return bool(value)


def while_loop(c: Control) -> list[Value]:
    """while_loop(condition, body, carried, further operands)."""
    starts, more = c.values(c.args[2], "the values that a while_loop carries"), list(c.args[3])
    types = [v.type for v in starts]
    condition, body = c.graphs
    first = c.region(types, lambda args: _flag(c, c.tensors(c.call(condition, [*args, *more]))))
    second = c.region(types, lambda args: c.tensors(c.call(body, [*args, *more]), types, "a carried value"))
    return c.emit("dmlc.while", starts, types, [first, second])


def _flag(c: Control, values: list[Value]) -> list[Value]:
    (flag,) = values
    return [c.importer.builder.emit("dmlc.reshape", flag, types=[flag.tensor.with_shape(())]) if flag.tensor.rank else flag]


def scan(c: Control) -> list[Value]:
    """scan(function, initial values, scanned tensors, further operands): the carried values, then the stacks."""
    starts, scanned, more = c.values(c.args[1], "the values that a scan carries"), c.values(c.args[2], "what is scanned"), list(c.args[3])
    return _scan(c, starts, scanned, lambda carried, rows: c.call(c.graphs[0], [*carried, *rows, *more]))


def map_(c: Control) -> list[Value]:
    """map(function, scanned tensors, further operands)."""
    more = list(c.args[2])
    return _scan(c, [], c.values(c.args[1], "what is mapped"), lambda carried, rows: c.call(c.graphs[0], [*rows, *more]))


def associative_scan(c: Control) -> list[Value]:
    """associative_scan(function of two, scanned tensors, further operands): one after another, as good an order as any."""
    b, scanned, more = c.importer.builder, c.values(c.args[1], "what is scanned"), list(c.args[2])
    count = scanned[0].shape[0]
    heads = [b.emit("dmlc.slice", x, dim=0, start=0, stop=1, step=1) for x in scanned]
    if count == 1:
        return heads
    starts = [b.emit("dmlc.reshape", x, types=[row_type(x.tensor)]) for x in heads]
    rest = [b.emit("dmlc.slice", x, dim=0, start=1, stop=count, step=1) for x in scanned]

    def step(carried: list[Value], rows: list[Value]) -> list[Any]:
        return 2 * c.call(c.graphs[0], [*carried, *rows, *more])

    stacks = _scan(c, starts, rest, step)[len(starts) :]
    return [b.emit("dmlc.concat", head, stack, dim=0) for head, stack in zip(heads, stacks)]


def _scan(c: Control, starts: list[Value], scanned: list[Value], step: Callable[[list[Value], list[Value]], list[Any]]) -> list[Value]:
    count, types = scanned[0].shape[0], [v.type for v in starts]

    def inside(args: list[Value]) -> list[Value]:
        return c.tensors(step(args[1 : 1 + len(starts)], args[1 + len(starts) :]), types, "a carried value")

    body = c.region([INDEX, *types, *(row_type(x.tensor) for x in scanned)], inside)
    stacks = [stack_type(v.tensor, count) for v in body.block.terminator.operands[len(starts) :]]
    return c.emit("dmlc.scan", [*starts, *scanned], [*types, *stacks], [body], count=count, scanned=len(scanned))


CONTROL: dict[str, Callable[[Control], list[Any]]] = {
    "cond": cond,
    "while_loop": while_loop,
    "scan": scan,
    "map_impl": map_,
    "associative_scan": associative_scan,
}

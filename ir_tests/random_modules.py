"""Random attribute values, types and modules of unregistered ops, from a seed: what the text form has to carry. And damaged text."""

from __future__ import annotations

import random
import struct
from typing import Any

from dmlc.ir.attributes import AttrDict, Axes, DenseResource, Sharding, SymbolRef
from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Block, Module, Region, Value
from dmlc.ir.dims import Size, ceildiv, floordiv, mod, symbol
from dmlc.ir.location import UNKNOWN, Loc
from dmlc.ir.types import DTYPES, FunctionType, FutureType, TensorType, Type

Random = random.Random
WORDS = ["a", "k_1", "x.y", "Deep.Name", "dmlc.place", "dmlc.zeta", "dmlc.a", "b$c", "true", "unit", "loc", "x8", "tensor"]
TEXTS = ["", "w0", 'a "quoted" word', "back\\slash", "tab\tnew\nline", "layers/0.weight", "onnx::MatMul_1", "é→", "// no comment", "%x", "-", "7", "\x00\x7f", "{}", "a-b"]
FLOATS = [0.0, -0.0, 1.0, 1e-5, -1e16, 0.1, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf"), float("nan")]
INTEGERS = [0, 1, -1, 7, (1 << 63) - 1, -(1 << 63), 1 << 63, -(1 << 64), 1 << 200]
AXES = ["data", "model", "micro", 'odd "axis"']


def random_text(rng: Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(TEXTS)
    return "".join(chr(rng.choice([rng.randrange(128), rng.randrange(0xA1, 0x250), rng.randrange(0x4E00, 0x9000)])) for _ in range(rng.randrange(6)))


def random_float(rng: Random) -> float:
    return rng.choice(FLOATS) if rng.random() < 0.5 else struct.unpack("<d", rng.randbytes(8))[0]


def random_size(rng: Random, depth: int = 3) -> Size:
    """An integer or a Dim of a few operations."""
    if depth == 0 or rng.random() < 0.3:
        return symbol(rng.choice(["batch", "seq", "n", "_k2"]))
    a, n = random_size(rng, depth - 1), rng.randrange(1, 13)
    b: Size = random_size(rng, depth - 1) if rng.random() < 0.5 else rng.randrange(-4, 9)
    operations = [lambda: a + b, lambda: a - b, lambda: b - a, lambda: a * b, lambda: floordiv(a, n), lambda: ceildiv(a, n), lambda: mod(a, n)]
    operations += [lambda: floordiv(a, symbol("n")), lambda: mod(a, symbol("seq")), lambda: ceildiv(a, symbol("batch"))]
    return rng.choice(operations)()


def random_tensor(rng: Random) -> TensorType:
    sizes = [rng.choice([0, 1, 8, 64, 1 << 40]) if rng.random() < 0.6 else random_size(rng) for _ in range(rng.randrange(4))]
    return TensorType(tuple(abs(n) if isinstance(n, int) else n for n in sizes), rng.choice(DTYPES))


def random_value_type(rng: Random) -> Type:
    if rng.random() < 0.85:
        return random_tensor(rng)
    return FutureType(tuple(random_tensor(rng) for _ in range(rng.randrange(1, 3))))


def random_type(rng: Random, depth: int = 2) -> Type:
    if depth == 0 or rng.random() < 0.7:
        return random_value_type(rng)
    return FunctionType(*(tuple(random_type(rng, depth - 1) for _ in range(rng.randrange(3))) for _ in range(2)))


def random_sharding(rng: Random) -> Sharding:
    dims = tuple(tuple(rng.sample(AXES, rng.randrange(3))) for _ in range(rng.randrange(4)))
    unreduced = tuple((a, rng.choice(["sum", "max", "min", "and", "or"])) for a in rng.sample(AXES, rng.choice([0, 0, 1, 2])))
    return Sharding(rng.choice(["mesh", "other mesh"]), dims, unreduced, tuple(rng.randrange(1, 99) for _ in dims) if rng.random() < 0.3 else ())


def random_axes(rng: Random) -> Axes:
    names = rng.sample(AXES, rng.randrange(4))
    return Axes(tuple((n, rng.randrange(1, 4096)) for n in names), tuple(n for n in names if n == "micro"))


def random_attribute(rng: Random, depth: int = 3) -> Any:
    """Any attribute value, nested at most `depth` deep."""
    if depth and rng.random() < 0.3:
        return tuple(random_attribute(rng, depth - 1) for _ in range(rng.randrange(4)))
    if depth and rng.random() < 0.2:
        return AttrDict({random_key(rng): random_attribute(rng, depth - 1) for _ in range(rng.randrange(4))})
    scalars = [
        lambda: None, lambda: rng.random() < 0.5, lambda: rng.choice(INTEGERS), lambda: rng.randrange(-9, 99), lambda: random_float(rng),
        lambda: random_text(rng), lambda: random_type(rng), lambda: random_size(rng), lambda: random_axes(rng), lambda: random_sharding(rng),
        lambda: SymbolRef(random_text(rng)), lambda: DenseResource(random_text(rng), random_tensor(rng)),
        lambda: tuple(rng.randrange(9) for _ in range(3)), lambda: (random_size(rng), 8),
    ]  # fmt: skip
    return rng.choice(scalars)()


def random_key(rng: Random) -> str:
    return rng.choice(WORDS) if rng.random() < 0.8 else random_text(rng)


def random_attributes(rng: Random) -> dict[str, Any]:
    return {random_key(rng): random_attribute(rng) for _ in range(rng.choice([0, 0, 1, 2, 3]))}


def random_loc(rng: Random) -> Loc:
    return rng.choice([UNKNOWN, Loc("model.py", rng.randrange(1, 999), rng.randrange(1, 80)), Loc(random_text(rng))])


def random_module(seed: int) -> Module:
    """One or two functions whose ops use earlier values, some with nested regions; attributes and locations anywhere."""
    rng = Random(seed)
    module = Module()
    module.op.attrs, module.op.loc = random_attributes(rng), random_loc(rng)
    for i in range(rng.randrange(1, 3)):
        types = [random_value_type(rng) for _ in range(rng.randrange(4))]
        function = module.add_function(rng.choice(["main", "f.g", "a b"]) + str(i), types, [f"x{j}" for j in range(len(types))])
        function.op.attrs |= rng.choice([{}, {"sym_visibility": "private"}, random_attributes(rng)])
        function.op.loc = random_loc(rng)
        for arg in function.args:
            arg.attrs = random_attributes(rng)
        b = Builder.at_end(function.body, IdPool(function))
        values = _fill(rng, b, list(function.args), 2)
        b.op("func.return", _some(rng, values), random_attributes(rng), [])
        for attrs in function.result_attrs:
            attrs.update(random_attributes(rng))
    return module


def _some(rng: Random, values: list[Value]) -> list[Value]:
    return [rng.choice(values) for _ in range(rng.randrange(3))] if values else []


def _fill(rng: Random, b: Builder, values: list[Value], depth: int) -> list[Value]:
    """Emit a few ops; returns all values visible after them."""
    assert b.ids is not None
    for _ in range(rng.randrange(5)):
        attrs = random_attributes(rng) | rng.choice([{}, {"dmlc.name": "encoder/layer.0 (q)"}, {"dmlc.name": "7"}])
        regions = [_region(rng, b, values, depth - 1) for _ in range(rng.choice([0, 0, 0, 1, 2]))] if depth else []
        types = [random_value_type(rng) for _ in range(rng.randrange(4))]
        op = b.op("test." + rng.choice(["add", "x_1", "Deep.op"]), _some(rng, values), attrs, types, regions=regions)
        op.loc = random_loc(rng)
        if rng.random() < 0.5:
            op.attrs["dmlc.id"] = b.ids.fresh(rng.choice(["12#re", "2.ar", "w"]))
        values = [*values, *op.results]
    return values


def _region(rng: Random, b: Builder, values: list[Value], depth: int) -> Region:
    block = Block([random_value_type(rng) for _ in range(rng.choice([0, 0, 1, 2]))])
    inner = Builder.at_end(block, b.ids)
    values = _fill(rng, inner, [*values, *block.args], depth)
    if rng.random() < 0.8:
        inner.op("dmlc.yield", _some(rng, values), {}, [])
    return Region([block])


def damaged(text: str, rng: random.Random) -> str:
    """The text with something taken out, put in, swapped or cut off."""
    a, b = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    b = min(b, a + rng.choice([1, 2, 5, 30]))
    pieces = ["%", '"', "{", "}", "(", ")", "<", ">", "x", "?", "-", "0x", "9" * 5000, "tensor<", "loc(", "é", "\x00", "\\", "\n", "^bb1:", "#dmlc.dims<[", "1e5", "(" * 300, "[" * 300, "%a:99999999"]
    choice = rng.randrange(5)
    if choice == 0:
        return text[:a] + text[b:]
    if choice == 1:
        return text[:a] + rng.choice(pieces) + text[a:]
    if choice == 2:
        return text[:a] + text[a:b] * 2 + text[b:]
    if choice == 3:
        return text[:a]
    return text[:a] + rng.choice(pieces) + text[b:]

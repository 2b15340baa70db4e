"""Per-rank text of a training step in Llama's shape: tensor parallel over "model", data parallel over "data" with ZeRO-1, two microbatches, the last
one peeled. What `partition` and the passes behind it make of a real model has as many ops of each kind; no values are meant here."""

from __future__ import annotations

import dmlc.ops  # noqa: F401
from dmlc.ir.attributes import AttrDict, Axes
from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Block, Module, Op, Region, Value
from dmlc.ir.location import Loc
from dmlc.ir.printer import print_module
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import FutureType, TensorType
from dmlc.ops.comm import delivered_types

WHERE = Loc("models/decoder.py", 44, 1)
WIDTH, SEQUENCE, HEADS, SIZE, MLP, VOCABULARY = 4096, 2048, 32, 128, 11008, 32000


class Layer:
    """A layer's weights and the two directions through it, on one rank of `parts` along "model"."""

    def __init__(self, step: Step, number: int):
        self.step, self.number, parts = step, number, step.parts
        wide, thin = WIDTH // parts, MLP // parts
        shapes = {"norm0": (WIDTH,), "q": (wide, WIDTH), "k": (wide, WIDTH), "v": (wide, WIDTH), "o": (WIDTH, wide), "norm1": (WIDTH,)}
        shapes |= {"gate": (thin, WIDTH), "up": (thin, WIDTH), "down": (WIDTH, thin)}
        self.weights = {name: step.parameter(f"layers_{number}_{name}", shape) for name, shape in shapes.items()}

    def forward(self, b: Builder, x: Value) -> tuple[Value, dict[str, Value]]:
        """The layer's result, and what its backward pass needs."""
        w, s = self.weights, self.step
        kept = {"x": x, "n": b.emit("dmlc.rms_norm", x, w["norm0"], eps=1e-5)}
        for name in "qkv":
            heads = self._heads(b, self._linear(b, kept["n"], name))
            kept[name] = self._rotate(b, heads) if name != "v" else heads
        mixed = b.emit("dmlc.attention", kept["q"], kept["k"], kept["v"], causal=True, scale=SIZE**-0.5)
        kept["mixed"] = b.emit("dmlc.reshape", b.emit("dmlc.transpose", mixed, perm=(0, 2, 1, 3)), types=[self._wide()])
        y = b.emit("dmlc.add", x, s.reduced(b, self._linear(b, kept["mixed"], "o"), "model"))
        kept |= {"y": y, "m": b.emit("dmlc.rms_norm", y, w["norm1"], eps=1e-5)}
        kept["gate"], kept["up"] = self._linear(b, kept["m"], "gate"), self._linear(b, kept["m"], "up")
        kept["silu"] = b.emit("dmlc.silu", kept["gate"])
        kept["product"] = b.emit("dmlc.mul", kept["silu"], kept["up"])
        return b.emit("dmlc.add", y, s.reduced(b, self._linear(b, kept["product"], "down"), "model")), kept

    def backward(self, b: Builder, d: Value, kept: dict[str, Value]) -> tuple[Value, dict[str, Value]]:
        """The gradient of the layer's operand, and those of its weights."""
        grads: dict[str, Value] = {}
        dp = self._linear_back(b, d, kept["product"], "down", grads)
        dgate, dup = b.emit("dmlc.silu_grad", b.emit("dmlc.mul", dp, kept["up"]), kept["gate"]), b.emit("dmlc.mul", dp, kept["silu"])
        dm = b.emit("dmlc.add", self._linear_back(b, dgate, kept["m"], "gate", grads), self._linear_back(b, dup, kept["m"], "up", grads))
        dy = b.emit("dmlc.add", d, self._norm_back(b, self.step.reduced(b, dm, "model"), kept["y"], "norm1", grads))
        dmixed = self._heads(b, self._linear_back(b, dy, kept["mixed"], "o", grads))
        through = b.op("dmlc.attention_grad", [dmixed, kept["q"], kept["k"], kept["v"]], {"causal": True, "scale": SIZE**-0.5}).results
        parts = []
        for name, gradient in zip("qkv", through):
            turned = self._rotate(b, gradient) if name != "v" else gradient
            flat = b.emit("dmlc.reshape", b.emit("dmlc.transpose", turned, perm=(0, 2, 1, 3)), types=[self._wide()])
            parts.append(self._linear_back(b, flat, kept["n"], name, grads))
        dn = self.step.reduced(b, b.emit("dmlc.add", b.emit("dmlc.add", parts[0], parts[1]), parts[2]), "model")
        return b.emit("dmlc.add", dy, self._norm_back(b, dn, kept["x"], "norm0", grads)), grads

    def _wide(self) -> TensorType:
        return TensorType((1, SEQUENCE, WIDTH // self.step.parts), "bf16")

    def _linear(self, b: Builder, x: Value, name: str) -> Value:
        return b.op("dmlc.linear", [x, self.step.cast[self.weights[name]]], {"dmlc.name": f"layers.{self.number}.{name}"}).result

    def _linear_back(self, b: Builder, d: Value, x: Value, name: str, grads: dict[str, Value]) -> Value:
        grads[name] = b.emit("dmlc.contract", d, x, equation="bsj,bsk->jk")
        return b.emit("dmlc.matmul", d, self.step.cast[self.weights[name]])

    def _norm_back(self, b: Builder, d: Value, x: Value, name: str, grads: dict[str, Value]) -> Value:
        squares = b.emit("dmlc.reduce_sum", b.emit("dmlc.mul", x, x), dims=(2,), keepdim=True)
        scaled = b.emit("dmlc.mul", d, b.emit("dmlc.rsqrt", squares))
        grads[name] = b.emit("dmlc.reduce_sum", b.emit("dmlc.mul", scaled, x), dims=(0, 1), keepdim=False)
        share = b.emit("dmlc.reduce_sum", b.emit("dmlc.mul", scaled, x), dims=(2,), keepdim=True)
        return b.emit("dmlc.sub", scaled, b.emit("dmlc.mul", x, share))

    def _heads(self, b: Builder, x: Value) -> Value:
        shape = (1, SEQUENCE, HEADS // self.step.parts, SIZE)
        return b.emit("dmlc.transpose", b.emit("dmlc.reshape", x, types=[TensorType(shape, "bf16")]), perm=(0, 2, 1, 3))

    def _rotate(self, b: Builder, x: Value) -> Value:
        first, second = (b.emit("dmlc.slice", x, dim=3, start=i * SIZE // 2, stop=(i + 1) * SIZE // 2) for i in range(2))
        turned = b.emit("dmlc.concat", b.emit("dmlc.neg", second), first, dim=3)
        return b.emit("dmlc.add", b.emit("dmlc.mul", x, self.step.cosine), b.emit("dmlc.mul", turned, self.step.sine))


class Step:
    """Builds the whole step."""

    def __init__(self, layers: int, data: int, parts: int, device: str):
        self.data, self.parts, self.module = data, parts, Module()
        axes = Axes((("micro", 2), ("data", data), ("model", parts)), ("micro",))
        self.mesh = Mesh(axes)
        self.module.body.append(Op("dmlc.mesh", attrs={"sym_name": "mesh", "axes": axes}))
        self.module.attrs.update({"dmlc.spmd": None, "dmlc.mode": "train", "dmlc.cluster": AttrDict(device=device, count=data * parts)})
        self.main = self.module.add_function("main")
        self.b = Builder(self.main.body, None, IdPool(self.main), loc=WHERE)
        self.states: dict[Value, tuple[Value, Value]] = {}
        self.cast: dict[Value, Value] = {}
        table = TensorType((SEQUENCE, SIZE), "bf16")
        self.x = self.argument("x", TensorType((2, 1, SEQUENCE, WIDTH), "bf16"), "input")
        self.cosine, self.sine = self.argument("cosine", table, "const"), self.argument("sine", table, "const")
        self.scalars = [self.argument(name, TensorType((), "f32"), "hyper") for name in ("scale", "shrink", "rate", "root")]
        self.layers = [Layer(self, i) for i in range(layers)]

    def argument(self, name: str, type_: TensorType, role: str) -> Value:
        return self.main.body.add_arg(type_, name, {"dmlc.role": role})

    def parameter(self, name: str, shape: tuple[int, ...]) -> Value:
        part = (-(-shape[0] // self.data), *shape[1:])
        weight = self.argument(name, TensorType(shape, "f32"), "param")
        self.states[weight] = (self.argument(f"{name}_m", TensorType(part, "f32"), "state"), self.argument(f"{name}_v", TensorType(part, "f32"), "state"))
        return weight

    def reduced(self, b: Builder, x: Value, axis: str) -> Value:
        return self._waited(b, "comm.all_reduce", x, {"axes": (axis,), "combiner": "sum"})

    def _waited(self, b: Builder, name: str, x: Value, attrs: dict) -> Value:
        types = delivered_types(name, attrs, [x.tensor], self.mesh)
        future = b.op(f"{name}_start", [x], attrs, [FutureType(tuple(types))]).result
        return b.op("comm.wait", [future], {}, types).result

    def passes(self, b: Builder, index: Value) -> list[Value]:
        """Gradients of one microbatch, weight by weight."""
        start = b.emit("dmlc.shard_slice", self.x, index, dim=0, size=1)
        x = b.emit("dmlc.reshape", start, types=[TensorType((1, SEQUENCE, WIDTH), "bf16")])
        kept, found = [], []
        for layer in self.layers:
            x, here = layer.forward(b, x)
            kept.append(here)
        d = x
        for layer, here in zip(reversed(self.layers), reversed(kept)):
            d, grads = layer.backward(b, d, here)
            found += [grads[name] for name in layer.weights]
        return found

    def finish(self) -> Module:
        weights = [w for layer in reversed(self.layers) for w in layer.weights.values()]
        self.cast = {w: self.b.emit("dmlc.cast", w, to="bf16") for w in weights if w.tensor.rank == 2}
        for layer in self.layers:
            for name in ("norm0", "norm1"):
                layer.weights[name] = self.cast[layer.weights[name]] = self.b.emit("dmlc.cast", layer.weights[name], to="bf16")
        block = Block([TensorType((), "i64")])
        loop = self.b.op("dmlc.microbatch", [], {"count": 1, "acc": ("f32",) * len(weights)}, [w.type for w in weights], regions=[Region([block])])
        inner = Builder(block, None, self.b.ids, loc=WHERE)
        inner.op("dmlc.yield", self.passes(inner, block.args[0]), {}, ())
        last = self.b.emit("dmlc.full", value=1, types=[TensorType((), "i64")])
        grads = self.passes(self.b, last)
        results = [v for w, total, g in zip(weights, loop.results, grads) for v in self._update(w, total, g)]
        self.b.op("func.return", results, {}, ())
        return self.module

    def _update(self, weight: Value, total: Value, gradient: Value) -> list[Value]:
        """The gradient's part, one step of Adam on it, and the whole weight again."""
        b = self.b
        whole = b.emit("dmlc.add", total, b.emit("dmlc.cast", gradient, to="f32"))
        cut = {"axes": ("data",), "dims": (0,), "sizes": (weight.shape[0],), "grains": (1,)}
        part = self._waited(b, "comm.reduce_scatter", whole, {**cut, "combiner": "sum"})
        start = b.emit("dmlc.full", value=0, types=[TensorType((), "i64")])
        mine = b.emit("dmlc.shard_slice", weight, start, dim=0, size=part.shape[0])
        attrs = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "dmlc.phase": "update"}
        new, m, v = b.op("dmlc.adam_update", [mine, part, *self.states[weight], *self.scalars], attrs).results
        return [self._waited(b, "comm.all_gather", new, cut), m, v]


def llama_step(layers: int = 32, data: int = 8, parts: int = 8, device: str = "a100") -> Module:
    """The step as a module of `data` x `parts` ranks."""
    return Step(layers, data, parts, device).finish()


def llama_text(layers: int = 32, data: int = 8, parts: int = 8, device: str = "a100") -> str:
    return print_module(llama_step(layers, data, parts, device))

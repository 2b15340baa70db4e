"""Small training steps for tests: residual blocks with dropout, chains of layers of different widths, differentiated, without an optimizer."""

from __future__ import annotations

import random

import dmlc.ops  # noqa: F401
from dmlc.ir.attributes import DenseResource
from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Module, Value
from dmlc.ir.types import TensorType
from dmlc.passmanager import Context, PassManager, parse_pipeline


class Draft:
    """Collects arguments and ops of a `main` with one result, the loss."""

    def __init__(self, dtype: str = "f32"):
        self.module, self.dtype = Module(), dtype
        self.function = self.module.add_function("main")
        self.b = Builder(self.function.body, None, IdPool(self.function))

    def argument(self, name: str, shape: tuple[int, ...], role: str, dtype: str = "", **attrs) -> Value:
        return self.function.body.add_arg(TensorType(shape, dtype or self.dtype), name, {"dmlc.role": role, **{f"dmlc.{k}": v for k, v in attrs.items()}})

    def input(self, name: str, *shape: int) -> Value:
        return self.argument(name, shape, "input", batch_dim=0)

    def param(self, name: str, *shape: int) -> Value:
        return self.argument(name, shape, "param", names=(name,), value=DenseResource(name, TensorType(shape, self.dtype)))

    def finish(self, loss: Value) -> Module:
        """The module with its gradients as results."""
        self.b.op("func.return", [loss], {}, ())
        self.function.result_attrs[0]["dmlc.name"] = "loss"
        self.module.attrs["dmlc.mode"] = "train"
        return run_passes(self.module, "autodiff,canonicalize,cse,dce")


def run_passes(module: Module, text: str, context: Context | None = None) -> Module:
    PassManager(parse_pipeline(text)).run(module, context or Context())
    return module


def blocks(layers: int = 3, batch: int = 4, time: int = 6, width: int = 8, dtype: str = "f32", dropout: float = 0.25) -> Module:
    """Pre-norm residual blocks (norm, wide layer, gelu, narrow layer, dropout), a head and a mean square."""
    d = Draft(dtype)
    x = d.input("x", batch, time, width)
    seed, step = d.argument("rng_seed", (), "seed", "i64"), d.argument("rng_step", (), "state", "i64", init=0)
    for k in range(layers):
        scale, shift = d.param(f"s{k}", width), d.param(f"t{k}", width)
        wide, narrow = d.param(f"u{k}", 4 * width, width), d.param(f"d{k}", width, 4 * width)
        y = d.b.emit("dmlc.layer_norm", x, scale, shift, eps=1e-5, dims=1)
        h = d.b.op("dmlc.gelu", [d.b.emit("dmlc.linear", y, wide)], {"dmlc.name": f"layers.{k}.gelu"}).result
        h = d.b.emit("dmlc.linear", h, narrow)
        if dropout:
            mask = d.b.op(
                "dmlc.dropout_mask", [seed, step], {"p": dropout, "shape": h.shape, "stream": k, "dmlc.name": f"mask{k}"}, [TensorType(h.shape, "i1")]
            ).result
            zero = d.b.op("dmlc.full", [], {"value": 0.0}, [TensorType((), dtype)]).result
            h = d.b.emit("dmlc.select", mask, h, zero)
        x = d.b.op("dmlc.add", [x, h], {"dmlc.name": f"layers.{k}.out"}).result
    out = d.b.emit("dmlc.linear", x, d.param("head", 5, width))
    return d.finish(_mean_square(d, out))


def chain(rng: random.Random, layers: int) -> Module:
    """A chain of layers of random widths, each with an activation or two: no two segments are alike."""
    d = Draft()
    width = rng.choice([4, 8, 16])
    x = d.input("x", 8, width)
    for k in range(layers):
        wider = rng.choice([4, 8, 16, 32])
        h = d.b.emit("dmlc.linear", x, d.param(f"w{k}", wider, width))
        for _ in range(rng.randrange(1, 4)):
            h = d.b.emit(rng.choice(["dmlc.gelu", "dmlc.tanh", "dmlc.silu", "dmlc.exp", "dmlc.sigmoid"]), h)
        if rng.random() < 0.5:
            h = d.b.emit("dmlc.softmax", h, dim=1)
        x, width = d.b.emit("dmlc.linear", h, d.param(f"v{k}", width, wider)), width
    return d.finish(_mean_square(d, x))


def _mean_square(d: Draft, out: Value) -> Value:
    square = d.b.emit("dmlc.mul", out, out)
    total = d.b.emit("dmlc.reduce_sum", square, dims=tuple(range(out.tensor.rank)), keepdim=False)
    scale = d.b.op("dmlc.full", [], {"value": 1.0 / 64}, [TensorType((), d.dtype)]).result
    return d.b.emit("dmlc.mul", total, scale)

"""Recurrent layers and cells. The input products of all steps are one matrix product; the steps are a loop (`torch_regions`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dmlc.frontend.torch_graph import Call, aten, operator_name
from dmlc.frontend.torch_regions import loop
from dmlc.ir.core import BlockArgument, Value


@dataclass
class Weights:
    """Of one direction of one layer, each [gates * hidden, …], gates in PyTorch's order; `projection` [outputs, hidden] of an LSTM's output."""

    inputs: Value
    hidden: Value
    input_bias: Value | None = None
    hidden_bias: Value | None = None
    projection: Value | None = None


Step = Callable[[Call, Value, list[Value], Weights], list[Value]]  # input product, states, weights -> states; the first one is the output


def _plus(c: Call, x: Value, bias: Value | None) -> Value:
    return x if bias is None else c.emit("add", x, bias, label="bias")


def _gate(c: Call, x: Value, i: int, count: int) -> Value:
    size = x.shape[-1] // count
    return c.slice(x, x.tensor.rank - 1, i * size, (i + 1) * size)


def _summed(c: Call, x: Value, states: list[Value], w: Weights) -> Value:
    """Input product plus the state's product with its bias."""
    return c.emit("add", x, _plus(c, c.emit("linear", states[0], w.hidden, label="recurrent"), w.hidden_bias))


def lstm_step(c: Call, x: Value, states: list[Value], w: Weights) -> list[Value]:
    """Gates i, f, g, o: c' = f c + i g, h' = o tanh(c')."""
    gates = _summed(c, x, states, w)
    i, f, g, o = (c.emit("tanh" if k == 2 else "sigmoid", _gate(c, gates, k, 4)) for k in range(4))
    cell = c.emit("add", c.emit("mul", f, states[1]), c.emit("mul", i, g), label="cell")
    hidden = c.emit("mul", o, c.emit("tanh", cell), label="hidden")
    if w.projection is not None:
        hidden = c.emit("linear", hidden, w.projection, label="projection")
    return [hidden, cell]


def gru_step(c: Call, x: Value, states: list[Value], w: Weights) -> list[Value]:
    """Gates r, z, n: n = tanh(x_n + r (W h + b)), h' = (1 - z) n + z h, which is n + z (h - n)."""
    product = _plus(c, c.emit("linear", states[0], w.hidden, label="recurrent"), w.hidden_bias)
    reset, update = (c.emit("sigmoid", c.emit("add", _gate(c, x, k, 3), _gate(c, product, k, 3))) for k in (0, 1))
    new = c.emit("tanh", c.emit("add", _gate(c, x, 2, 3), c.emit("mul", reset, _gate(c, product, 2, 3))))
    return [c.emit("add", new, c.emit("mul", update, c.emit("sub", states[0], new)), label="hidden")]


def tanh_step(c: Call, x: Value, states: list[Value], w: Weights) -> list[Value]:
    return [c.emit("tanh", _summed(c, x, states, w), label="hidden")]


def relu_step(c: Call, x: Value, states: list[Value], w: Weights) -> list[Value]:
    return [c.emit("relu", _summed(c, x, states, w), label="hidden")]


STEPS: dict[str, Step] = {"lstm": lstm_step, "gru": gru_step, "rnn_tanh": tanh_step, "rnn_relu": relu_step}


# ---------------------------------------------------------------- layers


@aten("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
def layers(c: Call) -> list[Value]:
    """The last layer's outputs, then for each kind of state the last ones of all layers and directions [layers * directions, batch, size]."""
    step, x = STEPS[operator_name(c.node).split(".")[0]], c.value("input")
    x = c.transpose(x, (1, 0, 2)) if c["batch_first"] else x
    starts = c.values("hx") if isinstance(c.arguments["hx"], (list, tuple)) else [c.value("hx")]
    _tag_batch(c, starts)
    ways, count = (2 if c["bidirectional"] else 1), c["num_layers"]
    weights, lasts = _weights(c, count * ways, projected=len(starts) == 2), []
    for layer in range(count):
        outputs = []
        for way in range(ways):
            k = layer * ways + way
            states, rows = _direction(c, step, x, [_row(c, s, k) for s in starts], weights[k], way == 1)
            outputs.append(rows)
            lasts.append(states)
        x = outputs[0] if ways == 1 else c.emit("concat", *outputs, dim=2)
        x = _dropped(c, x) if layer + 1 < count else x
    x = c.transpose(x, (1, 0, 2)) if c["batch_first"] else x
    return [x, *(_stacked(c, list(column)) for column in zip(*lasts))]


def _tag_batch(c: Call, starts: Sequence[Value]) -> None:
    """Start states that are the program's inputs have their batch in dim 1, and the input of a layer that has its steps first."""
    given = [v for v in starts if isinstance(v, BlockArgument)]
    first = c.value("input")
    for v in [*given, *([first] if given and not c["batch_first"] else [])]:
        if isinstance(v, BlockArgument) and v.attrs.get("dmlc.role") == "input":
            v.attrs["dmlc.batch_dim"] = 1


def _weights(c: Call, count: int, projected: bool) -> list[Weights]:
    """One group a layer and direction: two matrices, two biases where there are some, a projection where the LSTM has one."""
    given = c.values("params")
    size = len(given) // count
    groups = [given[k * size : (k + 1) * size] for k in range(count)]
    biases, projection = (2 if c["has_biases"] else 0), size - 2 - (2 if c["has_biases"] else 0)
    assert projection == 0 or (projected and projection == 1), f"{size} weights a layer"
    return [Weights(*g[:2], *(g[2:4] if biases else (None, None)), g[-1] if projection else None) for g in groups]


def _row(c: Call, x: Value, i: int) -> Value:
    return c.reshape(c.slice(x, 0, i, i + 1), x.shape[1:])


def _stacked(c: Call, rows: Sequence[Value]) -> Value:
    parts = [c.reshape(r, (1, *r.shape)) for r in rows]
    return parts[0] if len(parts) == 1 else c.emit("concat", *parts, dim=0)


def _direction(c: Call, step: Step, x: Value, starts: list[Value], w: Weights, backward: bool) -> tuple[list[Value], Value]:
    """The last states, and the outputs of all steps [t, batch, size]."""
    inputs = _plus(c, c.emit("linear", x, w.inputs, label="inputs"), w.input_bias)

    def body(states: list[Value], rows: list[Value]) -> tuple[list[Value], list[Value]]:
        after = step(c, rows[0], states, w)
        return after, after[:1]

    states, (rows,) = loop(c, starts, [inputs], body, backward)
    return states, rows


def _dropped(c: Call, x: Value) -> Value:
    """Dropout between layers, in training."""
    if not c["dropout"] or not c["train"]:
        return x
    return c.emit("dropout", x, *c.importer.seed_and_step(), p=float(c["dropout"]), stream=c.importer.stream(), label="dropout")


# ---------------------------------------------------------------- cells: one step


@aten("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def cell(c: Call) -> Value | list[Value]:
    name = operator_name(c.node).split(".")[0].removesuffix("_cell")
    given = [c.value(n) if n in c else None for n in ("w_ih", "w_hh", "b_ih", "b_hh")]
    w = Weights(*given)  # type: ignore[arg-type]
    states = c.values("hx") if name == "lstm" else [c.value("hx")]
    inputs = _plus(c, c.emit("linear", c.value("input"), w.inputs, label="inputs"), w.input_bias)
    after = STEPS[name](c, inputs, states, w)
    return after if name == "lstm" else after[0]

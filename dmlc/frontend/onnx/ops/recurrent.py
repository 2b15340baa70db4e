"""RNN, GRU and LSTM: a loop over the steps. The input products of all steps are one matrix product before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dmlc.frontend.onnx.emit import type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.regions import loop, stacked
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import Tensor
from dmlc.ir.location import DmlcError

VERSIONS = (7, 14, 22)

Activation = Callable[[Tensor], Tensor]
Step = Callable[[Tensor, list[Tensor]], list[Tensor]]


@dataclass
class Direction:
    """One direction: input product of all steps [t, b, gates * h], `product` of a state with the recurrent weight [gates * h, h], its bias,
    peepholes, start states."""

    inputs: Tensor
    weight: Tensor
    product: Activation
    bias: Tensor | None
    peepholes: Tensor | None
    states: list[Tensor]
    activations: list[Activation]
    hidden: int
    backward: bool


ALPHA = {"affine": 1.0, "leakyrelu": 0.01, "thresholdedrelu": 1.0, "scaledtanh": 1.0, "hardsigmoid": 0.2, "elu": 1.0}  # the functions that take one, and its default
BETA = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}


def _activation(n: Node, name: str, a: float, b: float) -> Activation:
    made: dict[str, Activation] = {
        **{key: lambda t, key=key: n.emit(f"dmlc.{key}", t) for key in ("sigmoid", "tanh", "relu", "softplus")},
        "leakyrelu": lambda t: n.emit("dmlc.leaky_relu", t, slope=a),
        "hardsigmoid": lambda t: n.emit("dmlc.hardsigmoid", t, alpha=a, beta=b),
        "elu": lambda t: n.emit("dmlc.elu", t, alpha=a),
        "affine": lambda t: n.pointwise("dmlc.add", n.pointwise("dmlc.mul", t, a), b),
        "scaledtanh": lambda t: n.pointwise("dmlc.mul", n.emit("dmlc.tanh", n.pointwise("dmlc.mul", t, b)), a),
        "thresholdedrelu": lambda t: n.select(n.pointwise("dmlc.gt", t, a), t, 0.0),
        "softsign": lambda t: n.pointwise("dmlc.div", t, n.pointwise("dmlc.add", n.emit("dmlc.abs", t), 1.0)),
    }
    if name.lower() not in made:
        raise Unsupported(f"the activation {name}")
    return made[name.lower()]


def _activations(n: Node, defaults: Sequence[str], directions: int) -> list[list[Activation]]:
    names = n.attr("activations", tuple(defaults) * directions)
    if len(names) != len(defaults) * directions:
        raise DmlcError(f"{len(names)} activations for {directions} directions")
    alphas, betas = iter(n.attr("activation_alpha", ())), iter(n.attr("activation_beta", ()))  # only functions that take one consume it
    numbers = [(next(alphas, ALPHA[k]) if k in ALPHA else 0.0, next(betas, BETA[k]) if k in BETA else 0.0) for k in map(str.lower, names)]
    made = [_activation(n, name, *both) for name, both in zip(names, numbers)]
    clip = n.attr("clip", 0.0)
    if clip:  # as onnxruntime does, the cell of an LSTM goes into its last activation unclipped
        made = [f if i % len(defaults) == 2 else _clipped(n, f, clip) for i, f in enumerate(made)]
    return [made[i : i + len(defaults)] for i in range(0, len(made), len(defaults))]


def _clipped(n: Node, f: Activation, clip: float) -> Activation:
    return lambda t: f(n.emit("dmlc.clamp", t, min=-clip, max=clip))


def linear_product(n: Node, i: int, d: int) -> Activation:
    """Product with direction d of operand i, whose rows are gates."""
    weight = n.pick(n.param(i), 0, d)
    return lambda t: n.emit("dmlc.linear", t, weight)


def recurrent(
    n: Node, gates: int, defaults: Sequence[str], state_operands: Sequence[int], make_step: Callable[[Node, Direction], Step], product: Callable[[Node, int, int], Activation] = linear_product
) -> list[Tensor]:
    """Operands X, W, R, B, sequence_lens, then start states. Results Y and the last states."""
    kinds = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    direction = n.attr("direction", "forward")
    if direction not in kinds:
        raise DmlcError(f"direction '{direction}' is not known")
    backwards, batch_first = kinds[direction], bool(n.attr("layout", 0))
    x = n.transpose(n[0], (1, 0, 2)) if batch_first else n[0]
    steps = type_of(x).shape[0]
    valid = _valid(n, steps)
    activations = _activations(n, defaults, len(backwards))
    directions = [_direction(n, x, d, gates, state_operands, activations[d], b, batch_first, product) for d, b in enumerate(backwards)]
    runs = [_run(n, d, make_step, steps, valid) for d in directions]
    dim = 2 if batch_first else 1
    y = stacked(n, [n.transpose(rows, (1, 0, 2)) if batch_first else rows for *_, rows in runs], dim)
    return [y, *(stacked(n, [run[i] for run in runs], 1 if batch_first else 0) for i in range(len(state_operands)))]


def _valid(n: Node, steps: int) -> Tensor | None:
    """Whether a step belongs to a sample's sequence, [t, b, 1]; None where all steps do."""
    if not n.has(4):
        return None
    lengths = n.maybe_known(4)
    if lengths is not None and (lengths >= steps).all():
        return None
    (batch,) = n.shape(4)
    return n.emit("dmlc.lt", n.iota((steps, batch, 1), 0), n.reshape(n.cast(n[4], "i64"), (1, batch, 1)))


def _direction(
    n: Node, x: Tensor, d: int, gates: int, state_operands: Sequence[int], activations: list[Activation], backward: bool, batch_first: bool, product: Callable[[Node, int, int], Activation]
) -> Direction:
    hidden = n.attr("hidden_size", n.shape(2)[-1])
    if not {hidden, gates * hidden} <= {*n.shape(1), *n.shape(2)}:
        raise DmlcError(f"weights {list(n.shape(1))} and {list(n.shape(2))} do not fit a hidden size of {n.attr('hidden_size', hidden)}")
    inputs = product(n, 1, d)(x)
    bias = n.pick(n.param(3), 0, d) if n.has(3) else None
    if bias is not None:
        inputs = n.pointwise("dmlc.add", inputs, n.slice(bias, 0, 0, gates * hidden))
        bias = n.slice(bias, 0, gates * hidden, 2 * gates * hidden)
    batch = type_of(x).shape[1]
    states = [n.pick(n[i], 1 if batch_first else 0, d) if n.has(i) else n.full(0.0, n.dtype(0), (batch, hidden)) for i in state_operands]
    peepholes = n.pick(n.param(7), 0, d) if gates == 4 and n.has(7) else None
    return Direction(inputs, n.pick(n.param(2), 0, d) if gates == 3 else n[2], product(n, 2, d), bias, peepholes, states, activations, hidden, backward)


def _run(n: Node, d: Direction, make_step: Callable[[Node, Direction], Step], steps: int, valid: Tensor | None) -> list[Tensor]:
    """The last states, and every step's hidden state in the order of time (zero where a sequence has ended, whose states stay)."""
    step = make_step(n, d)

    def body(index: Tensor, states: list[Tensor], rows: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        after = step(rows[0], states)
        if valid is None:
            return after, [after[0]]
        kept: list[Tensor] = [n.select(rows[1], new, old) for new, old in zip(after, states)]
        return kept, [n.select(rows[1], after[0], 0.0)]

    return loop(n, steps, d.states, [d.inputs] if valid is None else [d.inputs, valid], body, d.backward)


def _gate(n: Node, t: Tensor, i: int, hidden: int) -> Tensor:
    return n.slice(t, 1, i * hidden, (i + 1) * hidden)


def _plus(n: Node, t: Tensor, bias: Tensor | None) -> Tensor:
    return t if bias is None else n.pointwise("dmlc.add", t, bias)


@op("RNN", *VERSIONS)
def rnn(n: Node) -> list[Tensor]:
    def make(n: Node, d: Direction) -> Step:
        def step(x: Tensor, states: list[Tensor]) -> list[Tensor]:
            return [d.activations[0](n.pointwise("dmlc.add", x, _plus(n, d.product(states[0]), d.bias)))]

        return step

    return recurrent(n, 1, ("Tanh",), (5,), make)


@op("GRU", *VERSIONS)
def gru(n: Node) -> list[Tensor]:
    """Gates z, r, h: H = (1 - z) h + z H."""
    before_reset = bool(n.attr("linear_before_reset", 0))

    def make(n: Node, d: Direction) -> Step:
        def step(x: Tensor, states: list[Tensor]) -> list[Tensor]:
            f, g = d.activations
            (h,) = states
            update, fresh = _gru_gates(n, d, x, h, f, g, before_reset)
            kept = n.pointwise("dmlc.mul", update, h)
            return [n.pointwise("dmlc.add", n.pointwise("dmlc.mul", n.pointwise("dmlc.sub", 1, update), fresh), kept)]

        return step

    return recurrent(n, 3, ("Sigmoid", "Tanh"), (5,), make)


def _gru_gates(n: Node, d: Direction, x: Tensor, h: Tensor, f: Activation, g: Activation, before_reset: bool) -> tuple[Tensor, Tensor]:
    """Gate z and the candidate state."""
    if before_reset:
        product = _plus(n, d.product(h), d.bias)
        update, reset = (f(n.pointwise("dmlc.add", _gate(n, x, i, d.hidden), _gate(n, product, i, d.hidden))) for i in (0, 1))
        candidate = n.pointwise("dmlc.mul", reset, _gate(n, product, 2, d.hidden))
        return update, g(n.pointwise("dmlc.add", _gate(n, x, 2, d.hidden), candidate))
    split = 2 * d.hidden
    x = _plus(n, x, d.bias)
    product = n.emit("dmlc.linear", h, n.slice(d.weight, 0, 0, split))
    update, reset = (f(n.pointwise("dmlc.add", _gate(n, x, i, d.hidden), _gate(n, product, i, d.hidden))) for i in (0, 1))
    candidate = n.emit("dmlc.linear", n.pointwise("dmlc.mul", reset, h), n.slice(d.weight, 0, split, 3 * d.hidden))
    return update, g(n.pointwise("dmlc.add", _gate(n, x, 2, d.hidden), candidate))


@op("LSTM", *VERSIONS)
def lstm(n: Node) -> list[Tensor]:
    """Gates i, o, f, c: C = f C + i c, H = o h(C); peepholes add a share of the cell to i, f (old cell) and o (new cell).
    With `input_forget` f is 1 - i."""
    return recurrent(n, 4, ("Sigmoid", "Tanh", "Tanh"), (5, 6), lstm_step)


def lstm_step(n: Node, d: Direction) -> Step:
    f, g, h = d.activations
    coupled = bool(n.attr("input_forget", 0))

    def peep(gate: Tensor, i: int, cell: Tensor) -> Tensor:
        if d.peepholes is None:
            return gate
        return n.pointwise("dmlc.add", gate, n.pointwise("dmlc.mul", n.slice(d.peepholes, 0, i * d.hidden, (i + 1) * d.hidden), cell))

    def step(x: Tensor, states: list[Tensor]) -> list[Tensor]:
        hidden, cell = states
        gates = n.pointwise("dmlc.add", x, _plus(n, d.product(hidden), d.bias))
        i, o, forget, c = (_gate(n, gates, k, d.hidden) for k in range(4))
        taken = f(peep(i, 0, cell))
        kept = n.pointwise("dmlc.sub", 1, taken) if coupled else f(peep(forget, 2, cell))
        cell = n.pointwise("dmlc.add", n.pointwise("dmlc.mul", kept, cell), n.pointwise("dmlc.mul", taken, g(c)))
        return [n.pointwise("dmlc.mul", f(peep(o, 1, cell)), h(cell)), cell]

    return step



"""Random cases of single operators for `onnx_modes`: one function an operator draws its modes, operands and operator set."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Generator = Callable[[Random, np.random.Generator], "Case"]
GENERATORS: dict[str, Generator] = {}
NEWEST = onnx.defs.onnx_opset_version()


@dataclass
class Case:
    """A model of one node, its inputs, and how far floats may lie apart in parts of the largest. `may_refuse`: a size of the result depends on data."""

    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    tolerance: float = 1e-5
    may_refuse: bool = False
    said: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.said


def case(operator: str, opset: int, x: np.ndarray, operands: Mapping[str, np.ndarray | None], dynamic: frozenset[str] | set[str] = frozenset(), outputs: int = 1, **more: Any) -> Case:
    """One node on x; operands that are None are left out, those in `dynamic` are inputs, others initializers. `more` are attributes."""
    tolerance, may_refuse = more.pop("tolerance", 1e-5), more.pop("may_refuse", False)
    names = ["x", *(n if a is not None else "" for n, a in operands.items())]
    while names and not names[-1]:
        names.pop()
    given = {"x": x, **{n: a for n, a in operands.items() if a is not None}}
    inputs = {n: a for n, a in given.items() if n == "x" or n in dynamic}
    node = helper.make_node(operator, names, [f"y{i}" for i in range(outputs)], **{k: v for k, v in more.items() if v is not None})
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()],
        [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outputs)],
        [numpy_helper.from_array(a, n) for n, a in given.items() if n not in inputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8 if opset < 21 else 10)
    shown = {n: (a.tolist() if a.size < 20 else a.shape) for n, a in given.items() if n != "x"}
    said = f"opset {opset}, x {x.dtype} {list(x.shape)}, {shown}, inputs {sorted(inputs)}, { {k: v for k, v in more.items() if v is not None} }"
    return Case(model, inputs, tolerance, may_refuse, said)


def generator(operator: str) -> Callable[[Generator], Generator]:
    def register(f: Generator) -> Generator:
        GENERATORS[operator] = f
        return f

    return register


def opset(r: Random, first: int = 7) -> int:
    """Up to the newest that onnxruntime has most operators of; older ones as often."""
    return r.choice([o for o in (7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, min(25, NEWEST)) if o >= first])


def shape(r: Random, low: int = 1, high: int = 4, largest: int = 5) -> tuple[int, ...]:
    return tuple(r.choice([1, 2, 3, 4, largest]) for _ in range(r.randint(low, high)))


def floats(g: np.random.Generator, *size: int) -> np.ndarray:
    return g.standard_normal(size).astype(np.float32)


def values(r: Random, g: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    dtype = r.choice([np.float32, np.float32, np.int64, np.int32, np.float64])
    return floats(g, *size).astype(dtype) if np.dtype(dtype).kind == "f" else g.integers(-9, 9, size).astype(dtype)


def maybe(r: Random, value: Any) -> Any:
    return value if r.random() < 0.5 else None


def signed(r: Random, axis: int, rank: int, since: int, at: int) -> int:
    """The axis, or the same counted from the end where the version takes that."""
    return axis - rank if at >= since and r.random() < 0.4 else axis


def index(r: Random, g: np.random.Generator, size: int, places: tuple[int, ...], negative: bool = True) -> np.ndarray:
    return g.integers(-size if negative else 0, size, places).astype(r.choice([np.int64, np.int32]))


# ---------------------------------------------------------------- sizes


@generator("Resize")
def resize(r: Random, g: np.random.Generator) -> Case:
    at = opset(r, 10)
    mode = r.choice(["nearest", "linear"] if at == 10 else ["nearest", "linear", "cubic"])
    spatial = 2 if mode == "cubic" else r.choice([1, 2, 3])
    size = (r.choice([1, 2]), r.choice([1, 2, 3]), *(r.choice([2, 3, 4, 5, 6]) for _ in range(spatial)))
    rank = len(size)
    target = [*size[:2], *(r.choice([1, 2, 3, 5, 8, 9]) for _ in range(spatial))]
    scales = [1.0, 1.0, *(r.choice([0.5, 0.75, 1.5, 2.0, 2.5, 3.0, 1.0]) for _ in range(spatial))]
    x = floats(g, *size)
    if at == 10:
        return case("Resize", at, x, {"scales": np.array(scales, np.float32)}, mode=mode)
    rules = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "tf_crop_and_resize", *(["half_pixel_symmetric"] if at >= 19 else []), *(["tf_half_pixel_for_nn"] if at < 13 else [])]
    rule = r.choice(rules)
    crop = rule == "tf_crop_and_resize"
    low, high = [r.choice([0.0, 0.25, -0.125]) for _ in range(spatial)], [r.choice([1.0, 0.75, 1.25]) for _ in range(spatial)]
    roi = np.array([0, 0, *low, 1, 1, *high], np.float32) if crop else np.zeros(0, np.float32) if at < 13 else maybe(r, np.zeros(0, np.float32))
    by_size = r.random() < 0.5 and not (at == 11 and crop)
    operands = {"roi": roi, "scales": np.zeros(0, np.float32) if by_size and at < 13 else None if by_size else np.array(scales, np.float32)}
    operands |= {"sizes": np.array(target)} if by_size else {}
    more: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": rule, "cubic_coeff_a": maybe(r, -0.5) if mode == "cubic" else None, "extrapolation_value": 2.5 if crop else None}
    more["nearest_mode"] = r.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]) if mode == "nearest" else None
    more["exclude_outside"] = maybe(r, 1) if mode == "cubic" and not crop else None
    if at >= 18 and not crop and r.random() < 0.4:
        axes = list(range(2, rank))
        more["keep_aspect_ratio_policy"] = r.choice(["stretch", "not_larger", "not_smaller"]) if by_size else None
        plain = more["keep_aspect_ratio_policy"] in (None, "stretch")  # onnxruntime loses negative axes with the others
        more["axes"] = [signed(r, a, rank, 18, at) if plain else a for a in axes]
        operands = {n: a[2:] if a is not None and a.size == rank else a for n, a in operands.items()}
    if at >= 18 and mode != "nearest" and spatial == 2 and not crop:
        more["antialias"] = maybe(r, 1)
    return case("Resize", at, x, operands, tolerance=1e-4, **more)


@generator("Pad")
def pad(r: Random, g: np.random.Generator) -> Case:
    at = opset(r, 7)
    size = shape(r, 1, 4)
    mode = r.choice(["constant", "reflect", "edge", *(["wrap"] if at >= 19 else [])])
    most = [n - 1 if mode == "reflect" else min(n, 3) for n in size]
    low = -1 if mode == "constant" else 0
    one = [[r.randint(low if n > 2 else 0, max(0, m)) for n, m in zip(size, most)] for _ in range(2)]
    x = floats(g, *size) if at < 11 else values(r, g, size)
    if at < 11:
        return case("Pad", at, x, {}, mode=mode, pads=[*one[0], *one[1]], value=maybe(r, 1.5) if mode == "constant" else None)
    operands: dict[str, np.ndarray | None] = {"pads": np.array([*one[0], *one[1]]), "value": maybe(r, np.array(3, x.dtype)) if mode == "constant" else None}
    if at >= 18 and r.random() < 0.5:
        axes = r.sample(range(len(size)), r.randint(1, len(size)))
        operands["pads"] = np.array([one[0][a] for a in axes] + [one[1][a] for a in axes])
        operands["axes"] = np.array([signed(r, a, len(size), 18, at) for a in axes])
    return case("Pad", at, x, operands, mode=mode if r.random() < 0.9 or mode != "constant" else None)


@generator("Slice")
def slice_(r: Random, g: np.random.Generator) -> Case:
    at, size = opset(r, 7), shape(r, 1, 4)
    axes = r.sample(range(len(size)), r.randint(1, len(size)))
    steps = [r.choice([1, 1, 2, 3, -1, -2]) if at >= 10 else 1 for _ in axes]
    ends = [-(2**63), -9, -2, -1, 0, 1, 2, 4, 9, 2**31 - 1, 2**63 - 1]
    start, end = [r.choice([-9, -3, -1, 0, 1, 2, 9]) for _ in axes], [r.choice(ends[1:] if at < 10 else ends) for _ in axes]
    x = values(r, g, size) if at >= 10 else floats(g, *size)
    if at < 10:
        return case("Slice", at, x, {}, starts=start, ends=end, axes=axes)
    named = np.array([signed(r, a, len(size), 10, at) for a in axes])
    return case("Slice", at, x, {"starts": np.array(start), "ends": np.array(end), "axes": named, "steps": np.array(steps) if r.random() < 0.7 or -1 in steps or -2 in steps else None})


# ---------------------------------------------------------------- gathers and scatters


@generator("Gather")
def gather(r: Random, g: np.random.Generator) -> Case:
    at, size = opset(r, 7), shape(r, 1, 4)
    axis = r.randrange(len(size))
    places = index(r, g, size[axis], shape(r, 0, 3), at >= 11)
    return case("Gather", at, values(r, g, size), {"i": places}, set(maybe(r, ["i"]) or []), axis=signed(r, axis, len(size), 11, at))


@generator("GatherElements")
def gather_elements(r: Random, g: np.random.Generator) -> Case:
    at, size = opset(r, 11), shape(r, 1, 4)
    axis = r.randrange(len(size))
    places = tuple(r.randint(1, 4) if d == axis else r.randint(1, n) for d, n in enumerate(size))
    return case("GatherElements", at, values(r, g, size), {"i": index(r, g, size[axis], places)}, set(maybe(r, ["i"]) or []), axis=signed(r, axis, len(size), 11, at))


@generator("GatherND")
def gather_nd(r: Random, g: np.random.Generator) -> Case:
    at, size = opset(r, 11), shape(r, 1, 4)
    batch = r.randint(0, min(2, len(size) - 1)) if at >= 12 else 0
    depth = r.randint(1, len(size) - batch)
    lead = size[:batch] + shape(r, 0 if batch else 1, 2)
    places = np.stack([g.integers(-size[batch + d], size[batch + d], lead) for d in range(depth)], -1).astype(np.int64)
    return case("GatherND", at, values(r, g, size), {"i": places}, set(maybe(r, ["i"]) or []), batch_dims=batch if at >= 12 else None)


def reduction(r: Random, at: int) -> str | None:
    return r.choice([None, "none", "add", "mul", *(["max", "min"] if at >= 18 else [])]) if at >= 16 else None


@generator("ScatterElements")
def scatter_elements(r: Random, g: np.random.Generator) -> Case:
    at, size = opset(r, 11), shape(r, 1, 3)
    axis, how = r.randrange(len(size)), reduction(r, at)
    x = values(r, g, size)
    places = tuple(r.randint(1, n) for n in size)
    i = np.stack([g.permutation(size[axis]) for _ in range(int(np.prod(places)))], 0).reshape(*places, size[axis]) if how in (None, "none") else None
    if i is not None:  # without a reduction no place is written twice
        moved = np.take_along_axis(i, np.arange(places[axis]).reshape([-1 if d == axis else 1 for d in range(len(size))])[..., None], -1)[..., 0] * 0
        line = np.stack([g.permutation(size[axis])[: places[axis]] for _ in range(max(1, int(np.prod(places) // places[axis])))])
        moved = np.moveaxis(line.reshape(*(n for d, n in enumerate(places) if d != axis), places[axis]), -1, axis)
        i = np.where(g.random(moved.shape) < 0.3, moved - size[axis], moved)
    else:
        i = index(r, g, size[axis], places)
    operands = {"i": i.astype(np.int64), "u": values(r, g, places).astype(x.dtype)}
    return case("ScatterElements", at, x, operands, {"u", *(maybe(r, ["i"]) or [])}, axis=signed(r, axis, len(size), 11, at), reduction=how)


@generator("ScatterND")
def scatter_nd(r: Random, g: np.random.Generator) -> Case:
    at, size = opset(r, 11), shape(r, 1, 3)
    how, depth = reduction(r, at), r.randint(1, len(size))
    total = int(np.prod(size[:depth]))
    count = r.randint(1, total) if how in (None, "none") else r.randint(1, 6)
    flat = g.permutation(total)[:count] if how in (None, "none") else g.integers(0, total, count)
    places = np.stack(np.unravel_index(flat, size[:depth]), -1).astype(np.int64)
    places = np.where(g.random(places.shape) < 0.3, places - np.array(size[:depth]), places)
    x = values(r, g, size)
    operands = {"i": places, "u": values(r, g, (count, *size[depth:])).astype(x.dtype)}
    return case("ScatterND", at, x, operands, {"u", *(maybe(r, ["i"]) or [])}, reduction=how)


# ---------------------------------------------------------------- order


@generator("TopK")
def topk(r: Random, g: np.random.Generator) -> Case:
    at, size = opset(r, 7), shape(r, 1, 4)
    axis = r.randrange(len(size))
    k = r.randint(1, size[axis])
    x = floats(g, *size) if at < 11 or r.random() < 0.5 else g.integers(-4, 4, size).astype(r.choice([np.int64, np.int32]))
    if at < 10:
        return case("TopK", at, x, {}, outputs=2, axis=axis, k=k)
    more = {"largest": r.choice([0, 1]), "sorted": 1} if at >= 11 else {}
    return case("TopK", at, x, {"k": np.array([k])}, outputs=2, axis=signed(r, axis, len(size), 11, at), **more)


@generator("NonMaxSuppression")
def non_max_suppression(r: Random, g: np.random.Generator) -> Case:
    """Of constants: how many boxes are kept is a size."""
    batch, classes, boxes = r.choice([1, 2]), r.choice([1, 2]), r.choice([1, 4, 7])
    corners = g.random((batch, boxes, 4)).astype(np.float32)
    if r.random() < 0.5:
        corners[:, ::2] = corners[:, :1]
    operands = {"scores": g.random((batch, classes, boxes)).astype(np.float32), "most": maybe(r, np.array([r.choice([0, 1, 3])])) if r.random() < 0.3 else np.array([r.choice([1, 3])])}
    operands |= {"iou": maybe(r, np.array([r.choice([0.0, 0.3, 0.5])], np.float32)), "score": maybe(r, np.array([0.4], np.float32))}
    found = case("NonMaxSuppression", opset(r, 10), corners, operands, center_point_box=r.choice([0, 1, None]))
    return all_constant(found)


@generator("Unique")
def unique(r: Random, g: np.random.Generator) -> Case:
    """Of constants."""
    size = shape(r, 1, 3)
    x = g.integers(-2, 3, size).astype(r.choice([np.int64, np.float32]))
    axis = maybe(r, signed(r, r.randrange(len(size)), len(size), 11, 11))
    return all_constant(case("Unique", opset(r, 11), x, {}, outputs=4, axis=axis, sorted=r.choice([0, 1, None])))


def all_constant(found: Case) -> Case:
    for name, a in found.inputs.items():
        found.model.graph.initializer.append(numpy_helper.from_array(a, name))
    del found.model.graph.input[:]
    found.inputs = {}
    return found


# ---------------------------------------------------------------- Einsum


@generator("Einsum")
def einsum(r: Random, g: np.random.Generator) -> Case:
    """One to three terms with common and repeated letters, dots of several dims, with and without a result."""
    sizes = {c: r.choice([1, 2, 3, 4]) for c in string.ascii_lowercase[:5] + "AB"}
    dots = shape(r, 0, 2) if r.random() < 0.4 else None
    terms, operands = [], []
    for _ in range(r.choice([1, 2, 2, 2, 3])):
        letters = [r.choice("abcdeA") for _ in range(r.randint(1, 3))]
        own = dots[r.randint(0, len(dots)) :] if dots is not None and r.random() < 0.8 else None
        at = r.randint(0, len(letters))
        own = tuple(1 if r.random() < 0.2 else n for n in own) if own is not None else None
        terms.append("".join(letters[:at]) + ("..." if own is not None else "") + "".join(letters[at:]))
        operands.append(floats(g, *(sizes[c] for c in letters[:at]), *(own or ()), *(sizes[c] for c in letters[at:])))
    used = sorted({c for t in terms for c in t if c.isalpha()})
    result = r.sample(used, r.randint(0, len(used)))
    at = r.randint(0, len(result))
    spread = "..." if any("..." in t for t in terms) else ""
    text = ("," if r.random() < 0.8 else " , ").join(terms) + (r.choice(["->", " -> "]) + "".join(result[:at]) + spread + "".join(result[at:]) if r.random() < 0.8 else "")
    others = {f"x{i}": a for i, a in enumerate(operands[1:])}
    return case("Einsum", opset(r, 12), operands[0], others, set(others), equation=text, tolerance=1e-4)


# ---------------------------------------------------------------- recurrent layers

ACTIVATIONS = ("Sigmoid", "Tanh", "Relu", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu", "Softsign", "Softplus", "Affine")


def recurrent(operator: str, gates: int, functions: int) -> Generator:
    def generate(r: Random, g: np.random.Generator) -> Case:
        direction = r.choice(["forward", "reverse", "bidirectional"])
        d, hidden, batch, steps, width = 1 + (direction == "bidirectional"), 3, r.choice([1, 2]), r.choice([1, 2, 4]), 2
        operands: dict[str, np.ndarray | None] = {"w": floats(g, d, gates * hidden, width), "r": floats(g, d, gates * hidden, hidden)}
        operands["b"] = maybe(r, floats(g, d, 2 * gates * hidden))
        operands["lens"] = g.integers(1, steps + 1, batch).astype(np.int32) if r.random() < 0.4 else None
        operands["h"] = maybe(r, floats(g, d, batch, hidden))
        if operator == "LSTM":
            operands |= {"c": maybe(r, floats(g, d, batch, hidden)), "p": maybe(r, floats(g, d, 3 * hidden))}
        names = [r.choice(ACTIVATIONS) for _ in range(functions)] * d if r.random() < 0.6 else None
        more: dict[str, Any] = {"direction": direction, "hidden_size": hidden, "activations": names, "clip": maybe(r, 0.4)}
        if names:  # all numbers given: without them onnxruntime takes 0 for some functions, against the text
            taking = [n for n in names if n in ("LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu", "Affine")]
            more["activation_alpha"] = [r.choice([0.1, 0.3, 0.5]) for _ in taking] or None
            more["activation_beta"] = [r.choice([0.1, 0.3, 0.5]) for n in taking if n in ("ScaledTanh", "HardSigmoid", "Affine")] or None
        if operator == "GRU":
            more["linear_before_reset"] = r.choice([0, 1, None])
        if operator == "LSTM":
            more["input_forget"] = r.choice([0, 0, 1])
        return case(operator, opset(r, 7), floats(g, steps, batch, width), operands, {"lens"}, outputs=3 if operator == "LSTM" else 2, tolerance=1e-4, **more)

    return generate


GENERATORS |= {"RNN": recurrent("RNN", 1, 1), "GRU": recurrent("GRU", 3, 2), "LSTM": recurrent("LSTM", 4, 3)}

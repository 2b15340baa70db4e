"""Kinds of nodes of random ONNX graphs that are layers: products, convolutions, pools, norms, recurrent layers, quantisation, branches and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from dmlc.tools.random_onnx import Graph, Val

# ---------------------------------------------------------------- products


def product(g: Graph) -> None:
    v = g.pick(lambda v: v.dtype in ("float32", "float64") and v.rank > 0 and v.largest < 60)
    if v is None:
        return
    k, n, way = v.shape[-1], g.rng.choice((1, 2, 5)), g.rng.randrange(4)
    if way == 0:
        g.emit("MatMul", [v, g.const(g.numbers(*g.rng.choice(((k, n), (k,), (2, k, n))), dtype=v.dtype))], exact=True)
    elif way == 1 and v.rank == 2:
        a, b = g.rng.randrange(2), g.rng.randrange(2)
        inner = v.shape[0] if a else k
        bias = [g.const(g.numbers(n, dtype=v.dtype))] if g.rng.random() < 0.5 else []
        attributes = {"alpha": 0.5, "beta": 2.0} if g.rng.random() < 0.5 else {}
        g.emit("Gemm", [v, g.const(g.numbers(*((n, inner) if b else (inner, n)), dtype=v.dtype)), *bias], exact=True, transA=a, transB=b, **attributes)
    elif way == 2:
        w = g.pick(lambda w: w.dtype == v.dtype and w.rank > 1 and w.shape[-2] == k and w.largest < 60)
        if w is not None:
            g.emit("MatMul", [v, w], exact=True)
    elif v.rank in (2, 3):
        letters = "abc"[: v.rank]
        equation = g.rng.choice((f"{letters},{letters[-1]}z->z{letters[:-1]}", f"{letters},{letters[-1]}z", f"...{letters[-1]},{letters[-1]}z->...z", f"{letters},{letters[-1]}z->{letters[0]}"))
        g.emit("Einsum", [v, g.const(g.numbers(k, n, dtype=v.dtype))], exact=True, equation=equation)


# ---------------------------------------------------------------- windows


def image(v: Val) -> bool:
    return v.dtype == "float32" and v.rank in (3, 4) and v.largest < 60 and min(v.shape[2:]) > 1


def convolution(g: Graph) -> None:
    v = g.pick(image)
    if v is None:
        return
    spatial, channels = v.rank - 2, v.shape[1]
    kernel = [g.rng.choice((1, 2, 3)) for _ in range(spatial)]
    groups = channels if g.rng.random() < 0.25 else 2 if channels % 2 == 0 and g.rng.random() < 0.3 else 1
    transposed = g.rng.random() < 0.3
    out = groups * g.rng.choice((1, 2))
    weight = (channels, out // groups, *kernel) if transposed else (out, channels // groups, *kernel)
    attributes: dict[str, Any] = {"strides": [g.rng.choice((1, 2)) for _ in kernel], "group": groups}
    attributes |= {"auto_pad": g.rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))} if g.rng.random() < 0.3 else {"pads": [g.rng.choice((0, 1)) for _ in range(2 * spatial)]}
    if not transposed or "pads" in attributes:
        attributes["dilations"] = [g.rng.choice((1, 1, 2)) for _ in kernel] if "pads" in attributes else [1] * spatial
    if transposed and g.rng.random() < 0.4:
        attributes["output_padding"] = [s - 1 for s in attributes["strides"]]
    bias = [g.const(g.numbers(out))] if g.rng.random() < 0.5 else []
    g.emit("ConvTranspose" if transposed else "Conv", [v, g.const(g.numbers(*weight)), *bias], exact=True, **attributes)


def pool(g: Graph) -> None:
    v = g.pick(image)
    if v is None:
        return
    operator, spatial = g.rng.choice(("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool")), v.rank - 2
    if operator.startswith("Global"):
        g.emit(operator, [v], exact=operator == "GlobalMaxPool")
        return
    kernel = [g.rng.choice((2, 3)) for _ in range(spatial)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": [g.rng.choice((1, 2, 3)) for _ in kernel]}
    attributes |= {"auto_pad": g.rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))} if g.rng.random() < 0.3 else {"pads": [g.rng.choice((0, 1)) for _ in range(2 * spatial)]}
    if operator != "LpPool" and g.rng.random() < 0.4:
        attributes["ceil_mode"] = 1
    if operator == "AveragePool":
        attributes["count_include_pad"] = g.rng.randrange(2)
    if operator == "MaxPool" and "pads" in attributes and g.rng.random() < 0.3:
        attributes["dilations"] = [2] * spatial
    pads, wide = attributes.get("pads", [0] * 2 * spatial), attributes.get("dilations", [1])[0]
    covered = [n + pads[d] + pads[spatial + d] for d, n in enumerate(v.shape[2:])]
    if all((k - 1) * wide < n for k, n in zip(kernel, covered)) or attributes.get("auto_pad", "").startswith("SAME"):
        g.emit(operator, [v], exact=operator == "MaxPool", **attributes)


def resize(g: Graph) -> None:
    v = g.pick(lambda v: v.dtype == "float32" and v.rank == 4)
    if v is None:
        return
    mode = g.rng.choice(("nearest", "linear", "cubic"))
    place = g.rng.choice(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": place}
    if mode == "nearest":
        attributes["nearest_mode"] = g.rng.choice(("round_prefer_floor", "floor", "ceil", "round_prefer_ceil"))
    if mode == "cubic" and g.rng.random() < 0.5:
        attributes["exclude_outside"] = 1
    if g.rng.random() < 0.5:
        g.emit("Resize", [v, "", g.const([1, 1, g.rng.choice((0.5, 2, 3)), g.rng.choice((1, 2, 1.5))], "float32")], **attributes)
    else:
        g.emit("Resize", [v, "", "", g.const([*v.shape[:2], g.rng.randint(1, 8), g.rng.randint(1, 8)], "int64")], **attributes)


# ---------------------------------------------------------------- norms


def norm(g: Graph) -> None:
    """An epsilon large enough that rounding of nearly equal values is not what the result shows."""
    v = g.pick(lambda v: v.dtype == "float32" and v.rank > 1 and v.largest < 60)
    if v is None:
        return
    operator, channels, eps = g.rng.choice(("BatchNormalization", "InstanceNormalization", "LayerNormalization", "LRN", "GroupNormalization")), v.shape[1], 0.25
    vector = lambda n: g.const(g.numbers(n, low=2, high=16))  # noqa: E731
    if operator == "BatchNormalization":
        g.emit(operator, [v, *(vector(channels) for _ in range(4))], epsilon=eps)
    elif operator == "InstanceNormalization" and v.rank > 2:
        g.emit(operator, [v, vector(channels), vector(channels)], epsilon=eps)
    elif operator == "LayerNormalization":
        d = g.rng.randint(1, v.rank - 1)
        scale, shift = (g.const(g.numbers(*v.shape[d:])) for _ in range(2))
        g.emit(operator, [v, scale, shift], axis=g.rng.choice((d, d - v.rank)), epsilon=eps)
    elif operator == "LRN" and v.rank == 4:
        g.emit(operator, [v], size=3, alpha=0.5, beta=0.75, bias=1.5)
    elif operator == "GroupNormalization" and channels % 2 == 0 and v.rank > 2:
        n = channels if g.opset >= 21 else 2
        g.emit(operator, [v, vector(n), vector(n)], num_groups=2, epsilon=eps)


def recurrent(g: Graph) -> None:
    v = g.pick(lambda v: v.dtype == "float32" and v.rank == 3 and v.largest < 30)
    if v is None:
        return
    operator, gates = g.rng.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    direction, h = g.rng.choice(("forward", "reverse", "bidirectional")), 2
    d = 1 + (direction == "bidirectional")
    operands: list[Val | str] = [v, g.const(g.numbers(d, gates * h, v.shape[2], scale=32)), g.const(g.numbers(d, gates * h, h, scale=32))]
    if g.rng.random() < 0.6:
        operands.append(g.const(g.numbers(d, 2 * gates * h)))
        if g.rng.random() < 0.5:
            operands.append(g.const([g.rng.randint(1, v.shape[0]) for _ in range(v.shape[1])], "int32"))
    attributes = {"linear_before_reset": g.rng.randrange(2)} if operator == "GRU" else {}
    g.emit(operator, operands, g.rng.choice((1, 2)), hidden_size=h, direction=direction, **attributes)


# ---------------------------------------------------------------- quantisation


def quantised(g: Graph) -> None:
    """To integers and back, per tensor or per channel; and products of integers in between."""
    v = g.pick(lambda v: v.dtype == "float32" and v.exact and v.rank > 0)
    if v is None:
        return
    dtype, d = g.rng.choice(("uint8", "int8")), g.rng.randrange(v.rank)
    zero: Any = np.array(g.rng.choice((0, 3)), dtype)
    scale: Any = np.array(0.25, np.float32)
    attributes: dict[str, Any] = {}
    if g.rng.random() < 0.4 and g.opset >= 13:
        n = v.shape[d]
        scale, zero, attributes = np.array([g.rng.choice((0.25, 0.5, 1.0)) for _ in range(n)], np.float32), np.full(n, zero), {"axis": d}
    names = [g.const(scale), g.const(zero)]
    for made in g.emit("QuantizeLinear", [v, *names], exact=True, **attributes):
        if made.rank > 0 and g.rng.random() < 0.4:
            _integer_product(g, made)
        g.emit("DequantizeLinear", [made, *names], exact=True, **attributes)


def _integer_product(g: Graph, v: Val) -> None:
    weight = g.const(g.numbers(v.shape[-1], 3, dtype=g.rng.choice(("uint8", "int8"))))
    if g.rng.random() < 0.5:
        g.emit("MatMulInteger", [v, weight, g.const(2, v.dtype)] if g.rng.random() < 0.5 else [v, weight])
    elif v.rank > 1:
        kind = str(g.constants[weight].dtype)
        # scales that keep every quotient off a tie
        scales = [g.const(x, "float32") for x in (0.25, 0.5, 0.7)]
        g.emit("QLinearMatMul", [v, scales[0], g.const(1, v.dtype), weight, scales[1], g.const(0, kind), scales[2], g.const(2, v.dtype)])


def dynamic(g: Graph) -> None:
    """Scale and zero point from the data's own range."""
    v = g.pick(lambda v: v.dtype == "float32" and v.exact and v.largest > 0)
    if v is not None:
        made = g.emit("DynamicQuantizeLinear", [v], 3)
        if made:
            g.emit("DequantizeLinear", [*made])


# ---------------------------------------------------------------- branches and loops


def branch(g: Graph) -> None:
    """Two branches that read a value of the graph, chosen by a constant or by the data."""
    v = g.pick(lambda v: v.dtype in ("float32", "int64"))
    condition = g.pick(lambda c: c.dtype == "bool" and c.array.size == 1)
    if v is None:
        return
    chosen: Val | str = condition if condition is not None and g.rng.random() < 0.7 else g.const(g.rng.random() < 0.5)
    bodies = {}
    for name, operator in (("then_branch", "Neg"), ("else_branch", "Abs")):
        out = f"{name}{len(g.nodes)}"
        info = helper.make_tensor_value_info(out, helper.np_dtype_to_tensor_dtype(v.array.dtype), v.shape)
        bodies[name] = helper.make_graph([helper.make_node(operator, [v.name], [out])], name, [], [info])
    g.emit("If", [chosen], exact=True, captured=[v], **bodies)


def condition(g: Graph) -> None:
    """One truth value out of the data."""
    v = g.pick(lambda v: v.exact and v.dtype == "float32")
    if v is None:
        return
    for total in g.emit("ReduceMax", [v], exact=True, keepdims=0):
        g.emit("Greater", [total, g.const(0.3, "float32")])


def loop(g: Graph) -> None:
    """A fixed number of rounds with one carried value and one that is stacked."""
    v = g.pick(lambda v: v.dtype == "float32" and v.largest < 20 and v.array.size < 200)
    if v is None:
        return
    n, float_ = len(g.nodes), TensorProto.FLOAT
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Identity", [f"cond{n}"], [f"on{n}"]), helper.make_node("Cast", [f"i{n}"], [f"f{n}"], to=float_),
        helper.make_node("Add", [f"s{n}", f"f{n}"], [f"t{n}"]), helper.make_node("Neg", [f"t{n}"], [f"row{n}"]),
    ]  # fmt: skip
    inputs = [info(f"i{n}", TensorProto.INT64, ()), info(f"cond{n}", TensorProto.BOOL, ()), info(f"s{n}", float_, v.shape)]
    outputs = [info(f"on{n}", TensorProto.BOOL, ()), info(f"t{n}", float_, v.shape), info(f"row{n}", float_, v.shape)]
    g.emit("Loop", [g.const(3, "int64"), g.const(True), v], 2, exact=True, body=helper.make_graph(nodes, "body", inputs, outputs))


def scan(g: Graph) -> None:
    """Running sums over the rows of a value, in either direction."""
    v = g.pick(lambda v: v.dtype == "float32" and v.rank > 1 and v.largest < 20)
    if v is None:
        return
    n, shape, info = len(g.nodes), v.shape[1:], helper.make_tensor_value_info
    nodes = [helper.make_node("Add", [f"s{n}", f"x{n}_"], [f"t{n}"]), helper.make_node("Identity", [f"t{n}"], [f"row{n}"])]
    body = helper.make_graph(nodes, "body", [info(f"s{n}", 1, shape), info(f"x{n}_", 1, shape)], [info(f"t{n}", 1, shape), info(f"row{n}", 1, shape)])
    attributes = {"scan_input_directions": [1]} if g.rng.random() < 0.5 else {}
    g.emit("Scan", [g.const(np.zeros(shape, np.float32)), v], 2, exact=True, body=body, num_scan_inputs=1, **attributes)


LAYERS: list[tuple[Callable[[Graph], object], int]] = [
    *((kind, 3) for kind in (product, convolution)),
    *((kind, 2) for kind in (pool, norm, quantised)),
    *((kind, 1) for kind in (resize, recurrent, dynamic, branch, condition, loop, scan)),
]

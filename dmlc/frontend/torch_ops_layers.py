"""aten operators behind layers: matrix products, convolutions, pools, norms, interpolation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dmlc.frontend.torch_graph import Call, aten, operator_name
from dmlc.ir.core import Value
from dmlc.ops.contraction import terms_of

# ---------------------------------------------------------------- matrix products: none has a bias, so bias is an add


def biased(c: Call, y: Value, name: str = "bias", channel: int = -1) -> Value:
    """y plus a vector along dim `channel`, if the call has one."""
    if name not in c:
        return y
    bias = c.value(name, y.dtype)
    if channel >= 0:
        bias = c.reshape(bias, (*bias.shape, *(1,) * (y.tensor.rank - 1 - channel)))
    return c.emit("add", y, bias, label="bias")


@aten("linear")
def linear(c: Call) -> Value:
    return biased(c, c.emit("linear", c.value("input"), c.value("weight")))


@aten("matmul", "mm", "bmm", "mv", "dot", "vdot", "inner")
def matmul(c: Call) -> Value:
    return product(c, *(c.importer.env[c.arguments[n]] for n in list(c.arguments)[:2]))


def product(c: Call, a: Value, b: Value) -> Value:
    """torch.matmul: vectors count as one row on the left, one column on the right."""
    if a.tensor.rank >= 2 and b.tensor.rank >= 2:
        return c.emit("matmul", a, b)
    a = c.reshape(a, (1, *a.shape)) if a.tensor.rank == 1 else a
    b = c.reshape(b, (*b.shape, 1)) if b.tensor.rank == 1 else b
    return c.reshape(c.emit("matmul", a, b), c.type.shape)


@aten("addmm", "baddbmm", "addmv", "addbmm")
def addmm(c: Call) -> Value:
    """beta self + alpha (a @ b)."""
    name = operator_name(c.node).split(".")[0]
    first, second = {"addmm": ("mat1", "mat2"), "addmv": ("mat", "vec")}.get(name, ("batch1", "batch2"))
    y = product(c, c.value(first), c.value(second)) if name != "addmv" else _times_vector(c)
    if name == "addbmm":
        y = c.emit("reduce_sum", y, dims=(0,), keepdim=False, label="sum")
    y = y if c["alpha"] == 1 else c.emit("mul", y, c.full(c["alpha"], y.dtype), label="alpha")
    bias = c.value("self", y.dtype)
    if c["beta"] == 0:
        return y
    bias = bias if c["beta"] == 1 else c.emit("mul", bias, c.full(c["beta"], y.dtype), label="beta")
    return c.emit("add", y, bias, label="bias")


def _times_vector(c: Call) -> Value:
    matrix, vector = c.value("mat"), c.value("vec")
    return c.reshape(c.emit("matmul", matrix, c.reshape(vector, (*vector.shape, 1))), c.type.shape)


@aten("outer", "ger")
def outer(c: Call) -> Value:
    a, b = c.value("self", c.type.dtype), c.value("vec2", c.type.dtype)
    return c.emit("mul", c.reshape(a, (*a.shape, 1)), c.reshape(b, (1, *b.shape)))


@aten("einsum")
def einsum(c: Call) -> Value:
    """In explicit letters; an ellipsis becomes letters of its own, a result that is left out is spelled."""
    operands = c.values("tensors")
    equation = c["equation"].replace(" ", "")
    left, arrow, right = equation.partition("->")
    free = [s for s in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" if s not in equation]
    terms = left.split(",")
    spans = [v.tensor.rank - len(t.replace("...", "")) for t, v in zip(terms, operands)]
    widest = "".join(free[: max([s for t, s in zip(terms, spans) if "..." in t], default=0)])
    spelled = [t.replace("...", widest[len(widest) - s :]) for t, s in zip(terms, spans)]
    if not arrow:
        letters = "".join(spelled)
        right = widest + "".join(sorted(s for s in set(letters) - set(widest) if letters.count(s) == 1))
    equation = ",".join(spelled) + "->" + right.replace("...", widest)
    if any(len(set(t)) != len(t) for t in terms_of(equation)[0]):
        raise c.error(f"a letter stands twice in a term of '{equation}', which is not supported")
    return c.emit("contract", *operands, equation=equation)


# ---------------------------------------------------------------- convolutions and pools


def each(value: int | Sequence[int], n: int) -> tuple[int, ...]:
    """One number a spatial dim."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * n if len(values) == 1 else values


def pairs(padding: Sequence[int]) -> tuple[int, ...]:
    return tuple(p for side in padding for p in (side, side))


def _same_padding(kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """PyTorch's "same": the odd cell goes to the end."""
    totals = [d * (k - 1) for k, d in zip(kernel, dilation)]
    return tuple(p for t in totals for p in (t // 2, t - t // 2))


@aten("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def convolution(c: Call) -> Value:
    x, weight = c.value("input"), c.value("weight")
    n = weight.tensor.rank - 2
    batched = x if x.tensor.rank == n + 2 else c.reshape(x, (1, *x.shape))
    dilation, padding = each(c["dilation"], n), c["padding"]
    if isinstance(padding, str):
        padding = _same_padding(weight.shape[2:], dilation) if padding == "same" else (0,) * (2 * n)
    else:
        padding = pairs(each(padding, n))
    attrs = {"stride": each(c["stride"], n), "padding": padding, "dilation": dilation, "groups": c["groups"]}
    if "transpose" in str(c.node.target) or c["transposed"]:
        y = c.emit("conv_transpose", batched, weight, **attrs, output_padding=each(c["output_padding"], n))
    else:
        y = c.emit("conv", batched, weight, **attrs)
    return c.reshape(biased(c, y, channel=1), c.type.shape)


def _pooled(c: Call, name: str, n: int, **attrs) -> Value:
    kernel = each(c["kernel_size"], n)
    stride = each(c["stride"], n) if c["stride"] else kernel
    x = c.x()
    batched = x if x.tensor.rank == n + 2 else c.reshape(x, (1, *x.shape))
    padding = each(c["padding"], n)
    if c["ceil_mode"]:  # a window may reach beyond the padding, also the only one; nothing is there
        steps = attrs.get("dilation", (1,) * n)
        kernel = tuple(min(k, (m + 2 * p - 1) // d + 1) for k, m, p, d in zip(kernel, batched.shape[2:], padding, steps))
    y = c.emit(name, batched, kernel=kernel, stride=stride, padding=pairs(padding), ceil_mode=bool(c["ceil_mode"]), **attrs)
    return c.reshape(y, c.type.shape)


@aten("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(c: Call) -> Value:
    n = int(operator_name(c.node).split("pool")[1][0])
    return _pooled(c, "max_pool", n, dilation=each(c["dilation"], n))


@aten("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool_with_indices(c: Call) -> list[Value]:
    """The indices are not available."""
    return [max_pool(c)]


@aten("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(c: Call) -> Value:
    n = int(operator_name(c.node).split("pool")[1][0])
    if c["divisor_override"] is not None:
        raise c.error("divisor_override is not supported")
    return _pooled(c, "avg_pool", n, count_include_pad=bool(c["count_include_pad"]))


@aten("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(c: Call) -> Value:
    """One cell is the mean of all; sizes that divide are plain windows."""
    x = c.x()
    n = int(operator_name(c.node).split("pool")[1][0])
    spatial, wanted = x.shape[-n:], c.type.shape[-n:]
    if all(m == 1 for m in wanted):
        return c.mean(x, range(x.tensor.rank - n, x.tensor.rank), keepdim=True)
    batched = x if x.tensor.rank == n + 2 else c.reshape(x, (1, *x.shape))
    if all(m and k % m == 0 for k, m in zip(spatial, wanted)):
        kernel = tuple(k // m for k, m in zip(spatial, wanted))
        y = c.emit("avg_pool", batched, kernel=kernel, stride=kernel, padding=(0,) * (2 * n), ceil_mode=False, count_include_pad=True)
    else:
        y = c.emit("adaptive_avg_pool", batched, types=[batched.tensor.with_shape((*batched.shape[:2], *wanted))])
    return c.reshape(y, c.type.shape)


@aten("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(c: Call) -> list[Value]:
    """Sizes that divide are plain windows; else, a dim after the other, a maximum of each cell's range. The indices are not available."""
    x = c.x()
    n = int(operator_name(c.node).split("pool")[1][0])
    first, spatial, wanted = x.tensor.rank - n, x.shape[-n:], c.type.shape[-n:]
    if all(m == 1 for m in wanted):
        return [c.emit("reduce_max", x, dims=tuple(range(first, x.tensor.rank)), keepdim=True)]
    if all(m and k % m == 0 for k, m in zip(spatial, wanted)):
        kernel = tuple(k // m for k, m in zip(spatial, wanted))
        batched = x if first == 2 else c.reshape(x, (1, *x.shape))
        y = c.emit("max_pool", batched, kernel=kernel, stride=kernel, padding=(0,) * (2 * n), ceil_mode=False, dilation=(1,) * n)
        return [c.reshape(y, c.type.shape)]
    for d, (k, m) in enumerate(zip(spatial, wanted), first):
        cells = [c.slice(x, d, i * k // m, -(-(i + 1) * k // m)) for i in range(m)]
        x = c.emit("concat", *(c.emit("reduce_max", cell, dims=(d,), keepdim=True) for cell in cells), dim=d)
    return [x]


@aten(
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"
)
def upsample(c: Call) -> Value:
    """Scales are the ratio of sizes unless the call gives them; PyTorch's nearest rounds down without a half-pixel shift."""
    x, name = c.x(), operator_name(c.node)
    given = c["scale_factors"] or [c[k] for k in ("scales_d", "scales_h", "scales_w", "scales") if c[k] is not None]
    n = x.tensor.rank - 2
    attrs: dict = {"scales": (1.0, 1.0, *map(float, given)) if len(given) == n else ()}
    if "nearest" in name:
        attrs |= {"mode": "nearest", "coordinate": "asymmetric", "nearest_mode": "floor"}
    else:
        attrs |= {"mode": "cubic" if "cubic" in name else "linear", "coordinate": "align_corners" if c["align_corners"] else "half_pixel"}
    return c.emit("resize", x, types=[c.type], **attrs)


# ---------------------------------------------------------------- norms: weight and bias are always operands


def weight_and_bias(c: Call, shape: Sequence[int], dtype: str) -> tuple[Value, Value]:
    """The affine operands; ones and zeros where the layer has none."""
    weight = c.value("weight") if "weight" in c else c.full(1, dtype, shape)
    bias = c.value("bias") if "bias" in c else c.full(0, dtype, shape)
    return weight, bias


@aten("layer_norm", "native_layer_norm")
def layer_norm(c: Call) -> Value | list[Value]:
    x, shape = c.x(), tuple(c["normalized_shape"])
    weight, bias = weight_and_bias(c, shape, x.dtype)
    y = c.emit("layer_norm", x, weight, bias, eps=float(c["eps"]), dims=len(shape))
    return [y] if "native" in str(c.node.target) else y


@aten("rms_norm", "_fused_rms_norm")
def rms_norm(c: Call) -> Value:
    x, shape = c.x(), tuple(c["normalized_shape"])
    weight = c.value("weight") if "weight" in c else c.full(1, x.dtype, shape)
    eps = c["eps"] if "eps" in c else {"f64": 2.0**-52, "f32": 2.0**-23, "bf16": 2.0**-7, "f16": 2.0**-10}[x.dtype]
    last = (*x.shape[: x.tensor.rank - len(shape)], math.prod(shape))
    y = c.emit("rms_norm", c.reshape(x, last), c.reshape(weight, last[-1:]), eps=float(eps))
    return c.reshape(y, x.shape)


@aten("group_norm")
def group_norm(c: Call) -> Value:
    x = c.x()
    weight, bias = weight_and_bias(c, x.shape[1:2], x.dtype)
    return c.emit("group_norm", x, weight, bias, groups=c["num_groups"], eps=float(c["eps"]))


@aten("instance_norm")
def instance_norm(c: Call) -> Value:
    """A group a channel."""
    x = c.x()
    if not c["use_input_stats"]:
        raise c.error("running statistics are not supported")
    weight, bias = weight_and_bias(c, x.shape[1:2], x.dtype)
    return c.emit("group_norm", x, weight, bias, groups=x.shape[1], eps=float(c["eps"]))


@aten("batch_norm", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit_functional", "_native_batch_norm_legit.no_stats")
def batch_norm(c: Call) -> Value | list[Value | None]:
    x, name = c.x(), operator_name(c.node)
    weight, bias = weight_and_bias(c, x.shape[1:2], x.dtype)
    training = c["training"] or "no_stats" in name
    if "no_training" in name or not training:
        y = c.emit("batch_norm", x, weight, bias, c.value("running_mean"), c.value("running_var"), eps=float(c["eps"]))
        return y if name.startswith("batch_norm") else [y]
    tracks = "functional" in name
    y, mean, variance = c.op("dmlc.batch_norm_train", x, weight, bias, eps=float(c["eps"]), **({"correction": 1} if tracks else {})).results
    if not tracks:
        return y if name.startswith("batch_norm") else [y]
    updates = [_running(c, "running_mean", mean), _running(c, "running_var", variance)]
    return [y, None, None, *updates]  # the saved statistics are the gradient's own business


def _running(c: Call, name: str, new: Value) -> Value:
    """The statistic's buffer after this batch."""
    old = c.value(name)
    return c.emit("running_average", old, c.cast(new, old.dtype), momentum=float(c["momentum"]), label=name)


@aten("_weight_norm", "_weight_norm_interface")
def weight_norm(c: Call) -> Value | list[Value]:
    """v g / |v|, the length taken over all dims but one (Salimans and Kingma 2016, https://arxiv.org/abs/1602.07868)."""
    v, g = c.value("v"), c.value("g")
    dims = tuple(d for d in range(v.tensor.rank) if d != c["dim"] % v.tensor.rank or c["dim"] == -1)  # -1: over all
    length = c.emit("sqrt", c.emit("reduce_sum", c.emit("mul", v, v), dims=dims, keepdim=True, label="sum"))
    y = c.emit("mul", v, c.emit("div", g, length, rounding="none"))
    return [y, length] if "interface" in str(c.node.target) else y


@aten("glu")
def glu(c: Call) -> Value:
    x, dim = c.x(), c.dim()
    half = x.shape[dim] // 2
    return c.emit("mul", c.slice(x, dim, 0, half), c.emit("sigmoid", c.slice(x, dim, half, 2 * half)))

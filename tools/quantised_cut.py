"""A quantised ONNX network cut at its quantised tensors.

Where activations are rounded to 8 bits, a difference in the last bit of a float can move one of them by a step, which the following layers
enlarge: two correct programs drift apart. So the network is compared piece by piece: each piece reads the quantised tensors that the reference
computed, and what it makes of them must be the reference's next quantised tensors, to within one step, and its outputs, to float tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

MADE = "/made"  # ends the name of a quantised tensor as the piece before it makes it


def quantised_results(model: Any) -> list[str]:
    """The results of nodes that round to a few bits: integers, and the scales and zero points found with them."""
    return [o for n in model.graph.node if n.op_type in ("QuantizeLinear", "DynamicQuantizeLinear") or n.op_type.startswith("QLinear") for o in n.output if o]


def exposed(model: Any, path: Path) -> Path:
    """The model with its quantised tensors as further outputs, written to `path`."""
    import onnx

    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    have = {o.name for o in whole.graph.output}
    whole.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in quantised_results(model) if name not in have)
    onnx.save(whole, str(path))
    return path


def cut(model: Any, values: Mapping[str, Any], path: Path) -> Path:
    """The model reading its quantised tensors as inputs and giving those it makes as outputs, their names ending in `MADE`; written to `path`.

    `values`: arrays of the quantised tensors, for their types and shapes.
    """
    import onnx

    pieces, names = onnx.ModelProto(), set(quantised_results(model))
    pieces.CopyFrom(model)
    for node in pieces.graph.node:
        for i, output in enumerate(node.output):
            if output in names:
                node.output[i] = output + MADE
    for name in sorted(names):
        element = onnx.helper.np_dtype_to_tensor_dtype(values[name].dtype)
        pieces.graph.input.append(onnx.helper.make_tensor_value_info(name, element, values[name].shape))
    kept = [o.name + MADE if o.name in names else o.name for o in model.graph.output]
    del pieces.graph.output[:]
    outputs = dict.fromkeys([*kept, *(name + MADE for name in sorted(names))])
    pieces.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in outputs)
    onnx.save(pieces, str(path))
    return path


def differences(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> tuple[int, float]:
    """The largest difference of integers, in steps, and of floats, in parts of their scale; `actual` may have names that end in `MADE`."""
    import numpy

    from dmlc.passmanager.check import relative_error

    steps, floats = 0, 0.0
    for name, found in actual.items():
        want = expected[name.removesuffix(MADE)]
        if want.dtype.kind in "iu" and found.dtype.kind in "iu" and want.shape == found.shape:
            steps = max(steps, int(numpy.abs(want.astype(numpy.int64) - found.astype(numpy.int64)).max(initial=0)))
        else:
            floats = max(floats, relative_error(want, found))
    return steps, floats

"""Random ONNX graphs over many kinds of operators, with the values that onnxruntime gives each node on its own.

A graph grows node by node. onnxruntime computes a new node's results from its operands' values; a node that it refuses, or whose results overflow, is left
out. So every value is known while the graph is made, and no program's optimiser has seen two nodes at once.

A value is exact when rounding cannot have touched it: integers, and floats made of few bits by operators that keep them so. Operators that jump (rounding,
comparison, quantisation, order) only take exact values, since others may lie on either side.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

LARGEST = 6000  # elements of a value
MAGNITUDE = 1e4  # of a value; larger ones are left out
OPSETS = (11, 13, 15, 17, 18, 20, 21, 22)
MICROSOFT = "com.microsoft"


@dataclass
class Val:
    """A value of the graph: its name, what onnxruntime says it is, whether it is free of rounding."""

    name: str
    array: np.ndarray
    exact: bool
    reads: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def rank(self) -> int:
        return self.array.ndim

    @property
    def dtype(self) -> str:
        return str(self.array.dtype)

    @property
    def floating(self) -> bool:
        return self.array.dtype.kind == "f"

    @property
    def largest(self) -> float:
        return float(np.abs(self.array.astype(np.float64)).max(initial=0.0))


@dataclass
class Graph:
    """A graph under construction. Kinds of nodes add to it through `emit`."""

    rng: random.Random
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: list[Val] = field(default_factory=list)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    made: Counter[str] = field(default_factory=Counter)

    # ------------------------------------------------------------ values

    def pick(self, fits: Callable[[Val], bool]) -> Val | None:
        """A value that fits, mostly a late one that nothing reads yet."""
        found = [v for v in self.values if fits(v)]
        if not found:
            return None
        fresh = [v for v in found if not v.reads]
        return self.rng.choice(fresh if fresh and self.rng.random() < 0.6 else found[-6:] if self.rng.random() < 0.5 else found)

    def const(self, array: Any, dtype: str | None = None) -> str:
        """The name of an initializer."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array, dtype)
        return name

    def numbers(self, *shape: int, dtype: str = "float32", low: int = -16, high: int = 16, scale: float = 8.0) -> np.ndarray:
        """Few-bit numbers: eighths, or integers for an integer type."""
        count = int(np.prod(shape, dtype=int))
        whole = np.array([self.rng.randint(low, high) for _ in range(count)], np.int64).reshape(shape)
        if np.dtype(dtype).kind == "b":
            return whole % 2 == 0
        return (whole / scale).astype(dtype) if np.dtype(dtype).kind == "f" else np.abs(whole).astype(dtype) if dtype == "uint8" else whole.astype(dtype)

    def input(self, array: np.ndarray) -> Val:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = array
        self.values.append(Val(name, array, True))
        return self.values[-1]

    def weight(self, array: np.ndarray) -> Val:
        """A constant that later nodes may read as any other value."""
        self.values.append(Val(self.const(array), array, True))
        return self.values[-1]

    # ------------------------------------------------------------ nodes

    def emit(self, operator: str, operands: Sequence[Val | str], results: int = 1, exact: bool = False, domain: str = "", captured: Sequence[Val] = (), **attributes: Any) -> list[Val]:
        """Add a node; its results, none when onnxruntime refuses it or they are no use. `exact`: it keeps few-bit values exact."""
        outputs = [f"v{len(self.values)}_{i}" for i in range(results)]
        node = helper.make_node(operator, [o if isinstance(o, str) else o.name for o in operands], outputs, name=f"n{len(self.nodes)}", domain=domain, **attributes)
        read = [*(o for o in operands if isinstance(o, Val)), *captured]
        try:
            arrays = self._computed(node, {v.name: v.array for v in read})
        except Exception:  # onnxruntime's errors have no common class
            self.refused[operator] += 1
            return []
        if any(a.size == 0 or a.size > LARGEST or not _usable(a) for a in arrays):
            return []
        kept = exact and all(v.exact for v in read)
        made = [Val(n, a, (a.dtype.kind != "f" and all(v.exact for v in read)) or (kept and _few_bits(a))) for n, a in zip(outputs, arrays)]
        self.nodes.append(node)
        self.values += made
        self.made[operator] += 1
        for v in read:
            v.reads += 1
        return made

    def _computed(self, node: onnx.NodeProto, given: dict[str, np.ndarray]) -> list[np.ndarray]:
        constants = {n: self.constants[n] for n in node.input if n in self.constants and n not in given}
        model = self.model([node], given, constants, list(node.output))
        return list(session_of(model).run(None, given))  # type: ignore[reportReturnType]

    def model(self, nodes: Sequence[onnx.NodeProto], inputs: dict[str, np.ndarray], constants: dict[str, np.ndarray], outputs: Sequence[str]) -> onnx.ModelProto:
        given = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items() if n not in constants]
        wanted = [helper.make_empty_tensor_value_info(n) for n in outputs]
        graph = helper.make_graph(list(nodes), "random", given, wanted, [numpy_helper.from_array(a, n) for n, a in constants.items()])
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def whole(self) -> tuple[onnx.ModelProto, dict[str, Val]]:
        """The model and its outputs: all that nothing reads, and at times something that is read too."""
        made = {o for n in self.nodes for o in n.output}
        wanted = {v.name: v for v in self.values if v.name in made and not v.reads}
        inner = [v for v in self.values if v.name in made and v.reads]
        if inner and self.rng.random() < 0.5:
            chosen = self.rng.choice(inner)
            wanted[chosen.name] = chosen
        return self.model(self.nodes, self.inputs, self.constants, list(wanted)), wanted


def _usable(array: np.ndarray) -> bool:
    if array.dtype.kind not in "fiub":
        return False
    return bool(np.isfinite(array).all() and np.abs(array.astype(np.float64)).max(initial=0) <= MAGNITUDE)


def _few_bits(array: np.ndarray) -> bool:
    """Multiples of 2^-10 below 2^6 (fp16: 2^-4, 2^5): sums of several of their products are exact in fp32."""
    if array.dtype.kind != "f":
        return True
    bits, limit = (2.0**4, 32) if array.dtype == np.float16 else (2.0**10, 64)
    wide = array.astype(np.float64) * bits
    return bool((wide == np.round(wide)).all() and np.abs(array).max(initial=0) <= limit)


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Without rewrites, on one thread, silent."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def random_onnx(seed: int, size: int | None = None) -> Graph:
    """A graph of about 12 nodes. The same seed with a smaller `size` is a beginning of it."""
    from dmlc.tools.random_onnx_kinds import KINDS
    from dmlc.tools.random_onnx_layers import LAYERS
    from dmlc.tools.random_onnx_movement import MOVEMENT

    rng = random.Random(seed)
    graph = Graph(rng, rng.choice(OPSETS))
    dims = [rng.choice((1, 2, 3, 4, 5, 6, 7)) for _ in range(3)]
    graph.input(graph.numbers(*dims[: rng.randint(1, 3)]))
    graph.input(graph.numbers(2, rng.choice((2, 4, 6)), rng.randint(3, 7), rng.randint(3, 7)))
    graph.input(graph.numbers(*dims[:2], dtype=rng.choice(("float32", "float64", "int64", "int32", "float16", "bool", "uint8", "int8"))))
    graph.weight(graph.numbers(dims[-1]))
    kinds, weights = zip(*KINDS, *MOVEMENT, *LAYERS)
    usual = rng.randint(8, 18)
    wanted = usual if size is None else size
    tries = 0
    while len(graph.nodes) < wanted and tries < 20 * wanted:
        rng.choices(kinds, weights)[0](graph)
        tries += 1
    return graph

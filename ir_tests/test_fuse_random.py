"""fuse on random graphs: meaning, legality, the same text from a dump, and kernels that compute what their ops compute."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from test_triton_codegen import agree, expected_of, run_kernels

import dmlc.ops  # noqa: F401
from dmlc.codegen.triton_source import kernel_functions
from dmlc.cost import CostModel
from dmlc.interpret.run import run
from dmlc.ir.builder import Builder
from dmlc.ir.core import Function, Module, Op, Value
from dmlc.ir.parser import parse_module
from dmlc.ir.printer import print_module
from dmlc.ir.types import TensorType
from dmlc.ir.verifier import verify
from dmlc.passes.fuse import Fuse, decide
from dmlc.passes.outline_kernels import OutlineKernels
from dmlc.passmanager import Context
from dmlc.passmanager.check import seeded_inputs
from dmlc.simulate import Choice, UnitGraph

SHAPES = [(4, 6, 8), (4, 6, 8), (6, 8), (4, 6, 1), (4, 1, 8), (8,), (4, 6), (1, 1, 1), ()]
UNARY = ["tanh", "sigmoid", "gelu", "relu", "neg", "cos", "abs"]
BINARY = ["add", "mul", "sub", "maximum", "minimum"]
GRAPHS = 60
RUN = 15  # graphs whose kernels are run


def random_graph(seed: int) -> Module:
    """About 14 ops over values that broadcast against each other, some results of which are read twice or returned."""
    rng = random.Random(seed)
    module = Module()
    types = [TensorType(rng.choice(SHAPES), "f32") for _ in range(4)]
    function = module.add_function("main", types, [f"x{i}" for i in range(len(types))])
    b, values = Builder(function.body), list(function.args)
    for _ in range(14):
        values.append(_random_op(rng, b, values))
    results = dict.fromkeys([v for v in values[4:] if not v.uses] + rng.sample(values[4:], 2))
    b.insert(Op("func.return", list(results)))
    verify(module)
    return module


def _random_op(rng: random.Random, b: Builder, values: list[Value]) -> Value:
    x = rng.choice(values[-6:])
    rank, kind = len(x.shape), rng.random()
    if kind < 0.35:
        return b.emit(f"dmlc.{rng.choice(UNARY)}", x)
    if kind < 0.7:
        fitting = [v for v in values if _broadcast(x, v)]
        return b.emit(f"dmlc.{rng.choice(BINARY)}", x, rng.choice(fitting))
    if kind < 0.85 and rank:
        dim = rank - 1 if rng.random() < 0.8 else rng.randrange(rank)
        return b.emit(f"dmlc.reduce_{rng.choice(['sum', 'max', 'min'])}", x, dims=(dim,), keepdim=rng.random() < 0.6)
    if kind < 0.92 and rank:
        return b.emit(f"dmlc.{rng.choice(['softmax', 'log_softmax'])}", x, dim=rank - 1)
    if kind < 0.96 and rank >= 2:
        return b.emit("dmlc.transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))
    return b.emit("dmlc.reshape", x, types=[TensorType((*x.shape, 1), "f32")]) if rank < 3 else b.emit("dmlc.copy", x)


def _broadcast(x: Value, y: Value) -> bool:
    return all(n == m or 1 in (n, m) for n, m in zip(reversed(x.shape), reversed(y.shape)))


def fused(module: Module) -> Module:
    module = module.clone()
    Fuse().run(module, Context())
    verify(module)
    return module


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_meaning_order_and_text(seed: int):
    module = random_graph(seed)
    after = fused(module)
    inputs = seeded_inputs(module, seed)
    expected, actual = run(module, inputs, promote="f64"), run(after, inputs, promote="f64")
    assert list(expected) == list(actual)
    assert all(np.array_equal(expected[k], actual[k], equal_nan=True) for k in expected)
    again = parse_module(print_module(module), "dump")
    assert print_module(fused(again)) == print_module(after), "a dump and the program in memory fuse alike"


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_choices_are_legal(seed: int):
    module = random_graph(seed)
    cost = CostModel.of(module)
    graph = UnitGraph.of(module.main, cost)
    choice = decide(graph.block, Choice(), cost)
    assert graph.legal(choice) is None
    assert all(len(ids) == len(set(ids)) for ids in choice.groups)
    assert decide(graph.block, choice, cost) == choice, "what is decided stays"


def test_groups_are_found():
    """The graphs above are a test only if most of them fuse."""
    counts = [sum(op.name == "kernel.fused" for op in fused(random_graph(seed)).main.ops()) for seed in range(GRAPHS)]
    assert sum(n > 0 for n in counts) > GRAPHS * 3 // 4


def test_kernels_compute_what_their_ops_compute(tmp_path: Path):
    functions: dict[str, Function] = {}
    for seed in range(RUN):
        module = fused(random_graph(seed))
        OutlineKernels().run(module, Context())
        for function in kernel_functions(module):
            function.op.attrs["sym_name"] = f"g{seed}_{function.name}"
            functions[function.name] = function
    generator = torch.Generator().manual_seed(0)
    inputs = {name: [torch.randn(a.shape, generator=generator) for a in f.args] for name, f in functions.items()}
    outputs = run_kernels(tmp_path, list(functions.values()), inputs)
    for (name, storage), results in outputs.items():
        agree(functions[name], results, expected_of(functions[name], inputs[name]), f"{name} on {storage} inputs")

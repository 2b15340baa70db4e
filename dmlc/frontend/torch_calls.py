"""Which calls of an exported program are imported, left out or not supported, and what became of them."""

from __future__ import annotations

import operator

import torch

from dmlc.frontend.torch_control import CONTROL, bodies_of
from dmlc.frontend.torch_graph import handler_of, location_of, operator_name
from dmlc.frontend.trace import Trace
from dmlc.ir.core import Block, Op
from dmlc.ir.location import Loc

CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range_for_size", "sym_constrain_range")
SCOPES = ("wrap_with_set_grad_enabled", "wrap_with_autocast")  # regions whose body is taken as it is


def ignored(node: torch.fx.Node) -> bool:
    """Checks, and computations on sizes, which are read off the types instead."""
    if operator_name(node).split(".")[0] in CHECKS:
        return True
    return isinstance(node.meta.get("val"), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)) and handler_of(node) is None


def ops_after(block: Block, before: Op | None) -> list[Op]:
    found, op = [], block.first if before is None else before.next
    while op is not None:
        found.append(op)
        op = op.next
    return found


def note_calls(graph: torch.fx.GraphModule, trace: Trace) -> None:
    """Every call of a program that cannot be imported, with what is wrong with it."""
    for node in graph.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem or ignored(node):
            continue
        if str(node.target) in (*SCOPES, *CONTROL):
            for body in bodies_of(graph, node):
                note_calls(body, trace)
            continue
        with trace.node(str(node.target), str(location_of(node))) as entry:
            entry.problem = problem_of(node)
            entry.waits = not entry.problem


def problem_of(node: torch.fx.Node) -> str:
    """Why a call is not supported; empty when it is."""
    if getattr(getattr(node.target, "_schema", None), "is_mutable", True):
        return "writes to its arguments"
    return "" if handler_of(node) is not None else "no importer for it"


def unsupported(graph: torch.fx.GraphModule) -> list[tuple[str, Loc]]:
    """Every call that has no handler or that writes to its arguments, with its place."""
    missing = []
    for node in graph.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem or ignored(node):
            continue
        if str(node.target) in (*SCOPES, *CONTROL):
            missing += [m for body in bodies_of(graph, node) for m in unsupported(body)]
        elif problem := problem_of(node):
            missing.append((f"{node.target} ({problem})" if problem.startswith("writes") else str(node.target), location_of(node)))
    return missing

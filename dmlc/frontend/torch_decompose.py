"""An exported program without mutation, aliasing and operators that no table here knows, where PyTorch itself says what these are made of."""

from __future__ import annotations

import contextlib
import logging
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch.export.graph_signature import InputKind

from dmlc.frontend.torch_calls import SCOPES, ignored
from dmlc.frontend.torch_graph import handler_of, location_of
from dmlc.ir.location import DmlcError

ROUNDS = 4  # what a definition is made of may have to be taken apart in its turn


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without warnings that concern PyTorch's own developers."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def functional(program: torch.export.ExportedProgram, train: bool = False) -> torch.export.ExportedProgram:
    """Without mutation and aliasing; only operators without a handler are decomposed. A graph that has nothing of these is taken as it is: tracing it
    again costs as much as the export. It dissolves regions without gradients: to `train` a program, none may work on what depends on a parameter."""
    if is_functional(program):
        return program
    if train and (region := region_without_gradients(program)) is not None:
        raise DmlcError("a region without gradients works on what depends on a parameter, in a program that draws or writes: use detach() instead", location_of(region))
    with quiet(), torch.no_grad():
        wanted = unknown(program)
        changed = _apart(program, wanted)
        if not unknown(changed):
            return changed
        helped = {t for t in wanted if unknown(_apart(program, {t})) <= wanted - {t}}  # the others are named as the model has them
        return _apart(program, helped)


def region_without_gradients(program: torch.export.ExportedProgram) -> torch.fx.Node | None:
    """The first such region that takes a value which depends on a parameter."""
    params = {s.arg.name for s in program.graph_signature.input_specs if s.kind == InputKind.PARAMETER}
    depend: set[torch.fx.Node] = set()
    for node in program.graph.nodes:
        if node.name in params or any(n in depend for n in node.all_input_nodes):
            depend.add(node)
            if str(node.target) == SCOPES[0] and node.args[0] is False:
                return node
    return None


def _apart(program: torch.export.ExportedProgram, targets: set[Any]) -> torch.export.ExportedProgram:
    """With the operators `targets`, and unknown ones that these are made of, replaced by what defines them. One that cannot be traced stays."""
    left, changed = unknown(program) - targets, program
    for _ in range(ROUNDS):
        table = definitions(unknown(changed) - left)
        if not table and changed is not program:
            break
        try:
            changed = changed.run_decompositions(table)
        except Exception:  # whatever a definition's own code or the tracer raises
            return program.run_decompositions({})
    return changed


def unknown(program: torch.export.ExportedProgram) -> set[Any]:
    """Operators that no handler takes. Those with regions are no operators of a library: nothing defines them."""
    return {n.target for n in calls(program.graph_module) if isinstance(n.target, torch._ops.OpOverload) and handler_of(n) is None}


def definitions(targets: set[Any]) -> dict[Any, Callable]:
    """PyTorch's definition of operators in simpler ones, where there is one: that of a composite, else `torch._decomp`."""
    if not targets:
        return {}
    composites = torch.export.default_decompositions()
    found: dict[Any, Callable] = {t: composites[t] for t in targets if _is_composite(t) and t in composites}
    return {**get_decompositions(list(targets - found.keys())), **found}


def _is_composite(target: torch._ops.OpOverload) -> bool:
    """Whether PyTorch computes it by other operators for every device."""
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    except RuntimeError:  # defined in Python only
        return False


def calls(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """The calls of a graph and of the regions in it."""
    found = []
    for part in graph.modules():
        if isinstance(part, torch.fx.GraphModule):
            found += [n for n in part.graph.nodes if n.op == "call_function" and n.target is not operator.getitem and not ignored(n)]
    return found


def is_functional(program: torch.export.ExportedProgram) -> bool:
    """Whether every call is known, writes to nothing, keeps no statistics and draws no numbers."""
    if program.graph_signature.buffers_to_mutate or program.graph_signature.user_inputs_to_mutate:
        return False
    made = [n for n in calls(program.graph_module) if str(n.target) not in SCOPES]
    schemas = [getattr(n.target, "_schema", None) for n in made]
    return all(s is not None and not s.is_mutable and handler_of(n) is not None and not trains(n) for n, s in zip(made, schemas))


def trains(node: torch.fx.Node) -> bool:
    """Whether a call runs in training mode: it may then write or draw without a schema that says so."""
    modes = [i for i, a in enumerate(node.target._schema.arguments) if a.name in ("train", "training", "use_input_stats")]  # type: ignore[union-attr]
    return any(i >= len(node.args) or node.args[i] is not False for i in modes)

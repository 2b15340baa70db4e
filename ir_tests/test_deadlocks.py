"""A training step in which one rank's program is wrong: the interpreter finds it and names both places.

The step is the hand-written one over two ranks (structural/microbatch.mlir, @split): five collectives, one of them in a loop, with starts and waits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_structural import modules, step_inputs

from dmlc.interpret.run import run_ranks
from dmlc.ir.core import Module, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.parser import parse_module
from dmlc.ir.verifier import verify
from dmlc.ops.comm import is_collective, is_start

torch.set_num_threads(1)
Fault = Callable[[Module], None]


def step() -> Module:
    return modules("microbatch")["split"]


def collectives(module: Module) -> list[Op]:
    return [op for op in module.walk() if is_collective(op)]


def diagnosis(module: Module, fault: Fault, rank: int = 1) -> DmlcError:
    """What the interpreter says when `rank` runs the program with the fault and the others run it without."""
    wrong, inputs = module.clone(), step_inputs(7)
    fault(wrong)
    run_ranks(module, inputs)  # as it is, it runs
    with pytest.raises(DmlcError) as caught:
        run_ranks(module, inputs, others={rank: wrong})
    return caught.value


def places(error: DmlcError) -> set[str]:
    """The places that the message names."""
    return set(re.findall(r"microbatch:\d+:\d+", str(error)))


def place(op: Op) -> str:
    return str(op.loc)


def zeros_for(op: Op) -> list[Value]:
    """Values of the types that a collective or a wait gives, made in its place."""
    found = []
    for r in op.results:
        zero = Op("dmlc.full", (), (r.type,), {"value": 0.0})
        op.block.insert_before(op, zero)  # type: ignore[union-attr]
        found.append(zero.result)
    return found


def forget_wait(which: int) -> Fault:
    """The rank begins the collective and goes on with zeros."""

    def apply(module: Module) -> None:
        (wait,) = collectives(module)[which].result.users
        wait.replace(zeros_for(wait))

    return apply


def forget(which: int) -> Fault:
    """Neither begun nor waited for: the rank goes on with zeros."""

    def apply(module: Module) -> None:
        op = collectives(module)[which]
        if is_start(op):
            (wait,) = op.result.users
            wait.replace(zeros_for(wait))
            op.erase()
        else:
            op.replace(zeros_for(op))

    return apply


def delay(which: int, behind: int) -> Fault:
    """Begun behind a later one; the region that contains it is what it is put behind."""

    def apply(module: Module) -> None:
        all_of_them = collectives(module)
        op, anchor = all_of_them[which], all_of_them[behind]
        while anchor.block is not op.block:
            anchor = anchor.parent  # type: ignore[assignment]
        op.remove()
        anchor.block.insert_after(anchor, op)  # type: ignore[union-attr]

    return apply


def test_the_step_has_the_collectives_the_faults_name() -> None:
    names = [op.name.removeprefix("comm.") for op in collectives(step())]
    assert names == ["all_reduce_start", "reduce_scatter_start", "reduce_scatter_start", "all_gather_start", "all_reduce"]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("which", "behind"), [(0, 1), (0, 2), (3, 4)])
def test_two_collectives_swapped_on_one_rank(which: int, behind: int, rank: int) -> None:
    module = step()
    error = diagnosis(module, delay(which, behind), rank)
    meant, came = collectives(module)[which], collectives(module)[which + 1]
    assert "ranks of one group issue different collectives at the same place" in str(error)
    assert {place(meant), place(came)} <= places(error)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("which", range(4))
def test_a_missing_wait(which: int, rank: int) -> None:
    """The one that begins and forgets is named, and where the others wait."""
    module = step()
    error = diagnosis(module, forget_wait(which), rank)
    start = collectives(module)[which]
    (wait,) = start.result.users
    assert f"rank {rank} begins '{start.name}' [{start.id}] and never waits for it" in str(error)
    assert f"rank {1 - rank} waits for it in 'comm.wait' [{wait.id}]" in str(error)
    assert {place(start), place(wait)} <= places(error)


@pytest.mark.parametrize("which", range(4))
def test_a_missing_start(which: int) -> None:
    """The rank's next collective meets the one it lacks."""
    module = step()
    error = diagnosis(module, forget(which))
    assert {place(collectives(module)[which]), place(collectives(module)[which + 1])} <= places(error)


def test_the_last_one_is_missing() -> None:
    module = step()
    error = diagnosis(module, forget(4))
    assert "the ranks deadlock" in str(error) and "lacks ranks [1] (which have finished)" in str(error)
    assert place(collectives(module)[4]) in places(error)


@pytest.mark.parametrize("count", [0, 2])
def test_one_rank_does_another_number_of_iterations(count: int) -> None:
    def fault(module: Module) -> None:
        loops = [op for op in module.walk() if op.name == "dmlc.microbatch"]
        loops[1].attrs["count"] = count

    module = step()
    error = diagnosis(module, fault)
    assert place(collectives(module)[1]) in places(error)


@pytest.mark.parametrize(
    ("which", "attrs"),
    [(0, {"combiner": "max"}), (1, {"dims": (1,), "sizes": (5,)}), (2, {"grains": (2,)}), (3, {"sizes": (5,)}), (4, {"combiner": "min"})],
    ids=str,
)
def test_one_rank_means_something_else_by_it(which: int, attrs: dict[str, Any]) -> None:
    module = step()
    error = diagnosis(module, lambda m: collectives(m)[which].attrs.update(attrs))
    assert "issue different collectives" in str(error) and places(error) == {place(collectives(module)[which])}


GROUPS = """builtin.module attributes {dmlc.spmd} {
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=2]>} : () -> ()
func.func @main(%x: tensor<4xf64>) -> tensor<4xf64> {
%u = comm.all_reduce %x {axes = ["data"]} : (tensor<4xf64>) -> tensor<4xf64>
%v = comm.all_reduce %u {axes = ["model"]} : (tensor<4xf64>) -> tensor<4xf64>
func.return %v : tensor<4xf64>
}
}
"""


def test_a_wrong_group_on_one_rank() -> None:
    """Rank 3 reduces over the other axis first: the others of its groups wait where it is not, and rank 0 is kept from nothing."""
    module = parse_module(GROUPS, "groups.mlir")
    verify(module)
    wrong = module.clone()
    for op in collectives(wrong):
        op.attrs["axes"] = ("model",) if op.attrs["axes"] == ("data",) else ("data",)
    assert run_ranks(module, {"x": np.ones(4)})[1][0][0].tolist() == [4.0] * 4
    with pytest.raises(DmlcError) as caught:
        run_ranks(module, {"x": np.ones(4)}, others={3: wrong})
    message = str(caught.value)
    assert "groups.mlir:4:" in message and "groups.mlir:5:" in message, message
    assert re.search(r"rank 3\b", message) and re.search(r"rank [12]\b", message), message

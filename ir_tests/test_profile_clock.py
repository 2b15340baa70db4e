"""How a program is timed: where marks go in its source, how a step's log is read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dmlc.codegen.output import timing

SOURCE = '''"""A program."""


class Program:
    def __init__(self, mesh, device):
        self.comm = None

    def __call__(self, weights, inputs):
        x = inputs["x"]
        a = x + 1
        b = a * 2
        del a
        total = None
        for i in range(2):
            c = b + i
            d = c * c
            total = d if total is None else total + d
        total = total + 0
        if total > 5:
            e = total - 1
        else:
            e = total + 1
        return [e]
'''


def test_marks_stand_behind_the_lines_of_each_op(tmp_path):
    path, log = tmp_path / "model.py", []
    path.write_text(SOURCE)
    lines = {text: number for number, text in enumerate(map(str.strip, SOURCE.splitlines()), 1)}
    ops = ["a = x + 1", "b = a * 2", "total = None", "c = b + i", "d = c * c", "total = d if total is None else total + d", "e = total - 1", "e = total + 1"]
    table = {lines[text]: text for text in ops}
    program = timing.timed_class(path, table, log.append, iter(range(100)).__next__)(None, None)
    assert program({}, {"x": 1}) == [40]
    assert [table.get(line, line) for line, _ in log] == [0, *ops[:2], "total = None", *ops[3:6], *ops[3:6], "e = total - 1"]
    assert [when for _, when in log] == list(range(len(log)))
    assert path.read_text() == SOURCE, "the file stays as it is"
    log.clear()
    assert program({}, {"x": -2}) == [6] and table[log[-1][0]] == "e = total + 1"


CLOCK: Any = timing.HostClock
LINES = {
    1: {"op": "start", "kind": "comm.all_reduce_start", "row": "comm data"},
    2: {"op": "other", "kind": "comm.all_reduce_start", "row": "comm data"},
    3: {"op": "exp", "kind": "dmlc.exp", "row": "compute", "with": ["add"]},
    4: {"op": "wait", "kind": "comm.wait", "row": "compute"},
    5: {"op": "sync", "kind": "comm.all_reduce", "row": "comm data"},
    6: {"op": "send", "kind": "comm.send", "row": "comm data"},
}


def events(log: list[tuple], done: list[int]) -> dict[tuple[str, int], tuple]:
    return {(e[0], e[1]): tuple(e[2:]) for e in timing.events_of(log, done, LINES, CLOCK)}


def test_a_step_is_read_from_its_log():
    log = [
        (0, 100),
        ("called", 0, 8, 110),
        (1, 112),
        ("called", 1, 3, 118),
        (2, 120),
        (3, 150),
        ("waited", 0, 5),
        (4, 190),
        ("called", 2, 4, 195),
        ("waited", 2, 6),
        (5, 230),
    ]
    found = events(log, [180, 210, 215])
    assert found["start", 0] == (10, 80, 12, 0), "until it was done; all its line took is packing"
    assert found["other", 0] == (80, 110, 8, 0), "queued behind the first"
    assert found["exp", 0] == (20, 50, 0, 0) and found["add", 0] == (50, 50, 0, 0), "what the same line does takes no time of its own"
    assert found["wait", 0] == (50, 90, 0, 5)
    assert found["sync", 0] == (110, 115, 4, 6), "after the one in flight on its row"


def test_a_call_back_that_comes_late_does_not_make_a_collective_longer_than_its_wait():
    log = [(0, 100), ("called", 0, 1, 105), (1, 106), ("waited", 0, 10), (4, 140)]
    assert events(log, [400])["start", 0] == (5, 30, 6, 0)
    log = [(0, 100), ("called", 0, 1, 105), ("waited", 0, 10), (5, 140)]
    assert events(log, [400])["sync", 0] == (5, 30, 1, 10)


def test_messages_and_runs_of_a_loop():
    log = [(0, 100), (6, 110), (3, 120), (3, 135), (6, 140)]
    found = events(log, [])
    assert found["send", 0] == (0, 10, 0, 0) and found["send", 1] == (35, 40, 0, 0)
    assert found["exp", 0] == (10, 20, 0, 0) and found["exp", 1] == (20, 35, 0, 0)


class Program:
    """Counts the calls it gets."""

    def __init__(self, mesh: Any = None, device: Any = None):
        self.comm, self.calls = Collectives(mesh), 0

    def __call__(self, weights: Any, inputs: Any) -> str:
        self.calls += 1
        return "results"


class Collectives:
    def __init__(self, mesh: Any):
        self.mesh = mesh


def test_a_profiled_program_takes_turns_and_saves_once(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(SOURCE)
    (tmp_path / "lines.json").write_text('{"lines": {"10": {"op": "a", "kind": "dmlc.add", "row": "compute"}}, "merged": {}}')
    monkeypatch.setattr(timing, "HERE", tmp_path)
    saved: list[Any] = []
    plain = Program()
    profiled = timing.Profiled(plain, SimpleNamespace(rank=0), SimpleNamespace(type="cpu"), 2, saved.append)
    assert profiled.needed == timing.WARM + 4
    for number in range(profiled.needed + 3):
        assert len(saved) == int(number >= profiled.needed)
        assert profiled({}, {"x": 1}) in ("results", [40])
    assert saved == [profiled] and plain.calls == timing.WARM + 2 + 3
    assert len(profiled.plain) == len(profiled.marked) == len(profiled.events) == 2 and all(len(step) == 1 for step in profiled.events)
    assert profiled.plain_seconds == [t / 1e9 for t in profiled.plain]


def test_a_rank_alone_has_collectives_that_copy():
    import torch

    from dmlc.codegen.output.alone import Alone

    alone, x = Alone("gloo"), torch.arange(4.0)
    out = [torch.empty(4) for _ in range(3)]
    work = alone.all_gather(out, x, group=None, async_op=True)
    assert work.wait() and all(torch.equal(o, x) for o in out)
    part, whole = torch.empty(2), torch.empty(4)
    alone.reduce_scatter(part, [x[:2], x[2:]], alone.ReduceOp.SUM)
    alone.all_to_all_single(whole, x)
    assert torch.equal(part, x[:2]) and torch.equal(whole, x)
    called: list[Any] = []
    alone.all_reduce(x, alone.ReduceOp.SUM).get_future().then(called.append)
    assert len(called) == 1 and alone.get_backend() == "gloo" and not alone.is_initialized()


def test_what_no_distributed_call_stands_for_is_an_error():
    from dmlc.codegen.output.alone import Alone

    with pytest.raises(AttributeError):
        Alone("gloo").scatter  # noqa: B018

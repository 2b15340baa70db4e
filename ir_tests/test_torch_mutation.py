"""Programs that write to their buffers and inputs: new values are results that say what they replace, and nothing is made of the old ones beforehand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from dmlc.interpret.run import run
from dmlc.models.catalogue import Architecture, builders
from dmlc.models.common import normal, seeded
from dmlc.tools import architectures as tool

torch.set_num_threads(1)


class Decoder(nn.Module):
    """One step of attention over a cache of keys and values, which is a buffer: x [batch, 8] -> [batch, 8]."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.register_buffer("keys", normal(4, 6, 8, seed=2))
        self.register_buffer("values", normal(4, 6, 8, seed=3))
        self.register_buffer("steps", torch.tensor(1.0))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        self.keys[:, 2], self.values[:, 2] = k, v
        self.steps += 1
        weights = (torch.einsum("bd,btd->bt", q, self.keys) / self.steps.exp()).softmax(-1)
        return self.out(torch.einsum("bt,btd->bd", weights, self.values))


class Accumulator(nn.Module):
    """Adds to its second input in place."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(5, 5)

    def forward(self, x, total):
        total.add_(self.scale(x))
        return total.tanh()


ROWS = [
    Architecture("decoder", "decoder", lambda: (seeded(Decoder()), (normal(4, 8),))),
    Architecture("accumulator", "recurrent", lambda: (seeded(Accumulator()), (normal(4, 5), normal(4, 5, seed=2)))),
]
globals().update(builders(ROWS))


def steps_of(program, eager, inputs, count: int) -> None:
    """What a step writes is what the next one reads."""
    held, inputs = program.weights, dict(inputs)
    replaces = {a["dmlc.name"]: a["dmlc.updates"] for a in program.module.main.result_attrs if "dmlc.updates" in a}
    state: dict[str, np.ndarray] = {}
    for _ in range(count):
        given = {**inputs, **state}
        wanted = eager(*(torch.from_numpy(np.array(given[n])) for n in inputs)).detach().numpy()
        found = run(program.module, given, weights=held)
        assert tool.difference({"output": wanted}, {"output": found["output"]}) < 1e-5
        state = {replaces[name]: x for name, x in found.items() if name in replaces}
    buffers = dict(eager.named_buffers())
    assert all(tool.difference({n: b.detach().numpy()}, {n: state[n]}) < 1e-5 for n, b in buffers.items())


@pytest.mark.parametrize(("devices", "plan"), [(1, "auto"), (8, "dp=2,tp=4")])
@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_steps_hand_on_what_they_write(row, devices, plan):
    loaded = tool.load(f"{__name__}:{row.name}")
    eager = copy.deepcopy(loaded.reference.eager)  # type: ignore[union-attr]
    program = tool.compiled(loaded, devices, plan)
    assert sum("dmlc.updates" in a for a in program.module.main.result_attrs) == (3 if row.name == "decoder" else 1)
    steps_of(program, eager, loaded.examples, 3)

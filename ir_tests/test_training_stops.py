"""What gradients do not pass: detached values, regions without gradients, the padding row of a table; against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dmlc.frontend.torch_export import export, import_exported
from dmlc.ir.location import DmlcError
from dmlc.models.catalogue import Architecture, builders
from dmlc.models.common import normal, seeded
from dmlc.tools import architectures as tool

torch.set_num_threads(1)


class Detached(nn.Module):
    """The factor is made of the same weights; half of it is a constant to gradients."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        y = self.a(x)
        return self.b(y) * (y + y.detach()).sigmoid()


class WithoutGradients(Detached):
    def forward(self, x):
        y = self.a(x)
        with torch.no_grad():
            largest = y.exp().amax(-1, keepdim=True)
            center = self.b(y).mean()
        return self.b(y / largest) - center * y


class Nested(Detached):
    """The inner region has gradients: they reach b, and stop at y."""

    def forward(self, x):
        with torch.no_grad():
            y = self.a(x)
            with torch.enable_grad():
                z = self.b(y)
            w = z.exp()
        return z * w + self.a(x)


class Counted(WithoutGradients):
    """A buffer is written, so that the graph is traced again."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1.0
        return super().forward(x)


class Table(nn.Module):
    """Words and types look up rows; row 2 of the first is padding."""

    def __init__(self):
        super().__init__()
        self.words, self.types = nn.Embedding(9, 6, padding_idx=2), nn.Embedding(3, 6)

    def forward(self, ids):
        return (self.words(ids) * self.types(ids % 3)).sum(1)


def ids() -> torch.Tensor:
    return torch.tensor([[2, 1, 3], [4, 2, 2], [8, 7, 2], [5, 6, 0], [1, 1, 2], [0, 2, 4], [2, 2, 2], [3, 8, 6]])


ROWS = [
    Architecture("detached", "encoder", lambda: (seeded(Detached()), (normal(8, 6),)), loss="mse"),
    Architecture("without_gradients", "encoder", lambda: (seeded(WithoutGradients()), (normal(8, 6),)), loss="mse"),
    Architecture("nested", "encoder", lambda: (seeded(Nested()), (normal(8, 6),)), loss="mse"),
    Architecture("table", "encoder", lambda: (seeded(Table()), (ids(),)), loss="mse"),
]
globals().update(builders(ROWS))


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_gradients_stop_where_autograd_stops_them(row):
    loaded = tool.load(f"{__name__}:{row.name}", "mse")
    programs = [tool.compiled(loaded, *devices_and_plan, "mse") for devices_and_plan in ((1, "auto"), (4, "dp=2,tp=2"))]
    batch = tool.batch_of(programs[0])
    wanted = tool.gradients(loaded, "mse", batch)
    assert all(tool.backward_error(p, batch, wanted) < 1e-5 for p in programs)
    assert any(op.name == "dmlc.stop_gradient" for op in loaded.module.main.ops())
    assert not any(op.name == "dmlc.stop_gradient" for p in programs for op in p.module.main.ops())


def test_the_padding_row_keeps_its_value_in_the_forward_pass():
    loaded = tool.load(f"{__name__}:table")
    assert loaded.reference is not None
    assert tool.forward_error(tool.compiled(loaded, 2, "dp=2"), loaded.reference(loaded.examples)) < 1e-6
    assert not any(op.name == "dmlc.stop_gradient" for op in loaded.module.main.ops())


def test_what_is_not_supported_is_said():
    table = nn.Embedding(5, 4, scale_grad_by_freq=True)
    for module, given, said in ((table, ids() % 5, "scaled by how often a row is read"), (Counted(), normal(4, 6), "a region without gradients works on what depends on a parameter")):
        with pytest.raises(DmlcError, match=said):
            import_exported(export(module, (given,), {}, None, True, "a test"), train=True)

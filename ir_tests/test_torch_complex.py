"""Complex numbers and what else large models are made of, through the PyTorch door: against eager PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch_cases import Call, check

from dmlc.frontend.torch_export import import_exported
from dmlc.frontend.torch_reference import Promoted
from dmlc.interpret.run import run
from dmlc.ir.location import DmlcError
from dmlc.passmanager.check import relative_error

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(3, 4, 6, generator=G), torch.randn(3, 4, 6, generator=G)


class Rotary(torch.nn.Module):
    """Positions as complex factors: a buffer, or made from angles."""

    def __init__(self, made: bool, persistent: bool = False):
        super().__init__()
        angles = torch.outer(torch.arange(4.0), 10.0 ** -torch.arange(3.0))
        self.register_buffer("turns", angles if made else torch.polar(torch.ones_like(angles), angles), persistent=persistent)
        self.scale = torch.nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        turns = self.turns if self.turns.is_complex() else torch.polar(torch.ones_like(self.turns), self.turns)
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(self.scale * z * turns[None]).flatten(-2).type_as(x)


@pytest.mark.parametrize("made", [False, True])
def test_rotary_positions_as_complex_factors(made):
    check(Rotary(made), X)


def test_complex_arithmetic():
    def function(x, y):
        z, w = torch.complex(x, y), torch.view_as_complex(torch.stack([y, x + 1], -1).contiguous())
        one = (z * w, z + w, z - x, z * 2.0, 2j * z, z / y.abs().add(1), z.conj() * w, -z, z @ w.mT, z.mul(0.5) @ w[0].mT)
        moved = (z.reshape(12, 6), z.transpose(0, 1), z[:, 1], z[None], torch.cat([z, w], 1), z.sum(1), z.expand(2, 3, 4, 6), z.to(torch.complex64))
        return z.abs(), z.real, w.imag, *(torch.view_as_real(v) for v in (*one, *moved))

    check(function, X, Y)


@pytest.mark.parametrize("normalization", ["backward", "ortho", "forward"])
def test_fourier_transforms(normalization):
    def function(x, y):
        z = torch.complex(x, y)
        turned = (
            torch.fft.fft(x, norm=normalization),
            torch.fft.ifft(z, dim=1, norm=normalization),
            torch.fft.fftn(z, norm=normalization),
            torch.fft.rfft2(x, norm=normalization),
        )
        return torch.fft.fftn(x, dim=(1, 2)).real, *(torch.view_as_real(v) for v in turned)

    check(function, X, Y)


def test_what_complex_numbers_cannot_do_is_said():
    x = torch.randn(2, 3, dtype=torch.complex64)
    for function, args, said in (
        (lambda z: torch.view_as_real(z), (x,), "the input 'args_0' is complex"),
        (lambda y: torch.complex(y, y), (X,), "the output 'output' is complex"),
        (lambda y: torch.complex(y, y).tan().real, (X,), "aten.tan.default: it is not supported for complex numbers"),
        (lambda y: torch.view_as_real(torch.cat([torch.complex(y, y), y])), (X,), "aten.cat.default: it is not supported for complex numbers"),
    ):
        with pytest.raises(DmlcError, match=said):
            import_exported(torch.export.export(Call(function), args))
    program = torch.export.export(Rotary(False, persistent=True).train(), (X,))
    with pytest.raises(DmlcError, match="the buffer 'turns' is complex, which cannot be trained"):
        import_exported(program, train=True)


def test_assignments_grids_and_normed_weights():
    def function(x, y):
        table = torch.zeros(4, 6)
        table[1:3, 2:] = x[0, 1:3, 2:] * 2
        table[0] = 3.5
        grids = (*torch.meshgrid(x[0, 0], y[0, :, 0], indexing="ij"), *torch.meshgrid(x[0, 0], y[0, :, 0], y[:, 0, 0], indexing="xy"))
        return table, *grids

    check(function, X, Y)
    for dim in (0, 1, 2, None):
        check(torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(4, 5, 3), dim=dim), X)  # type: ignore[arg-type]
    image = torch.randn(2, 3, 6, 7, generator=G)
    check(lambda x: (F.unfold(x, 3, padding=1), F.unfold(x, (2, 3), dilation=2, stride=(2, 1)), F.unfold(x[0], (1, 2))), image)
    check(lambda x: (F.avg_pool2d(x, 20, ceil_mode=True), F.avg_pool2d(x, 9, padding=1, ceil_mode=True), F.max_pool2d(x, 4, 7, dilation=3, ceil_mode=True)), image)


@pytest.mark.parametrize("ends", [[2, 2, 5, 8], [0, 3, 3, 6]])
def test_counts_and_products_by_group(ends):
    """The second leaves rows behind the last group."""
    from transformers.integrations import moe  # noqa: F401  (registers its operator)

    numbers, matrices = torch.tensor([[0.0, 1.0, 4.0], [2.5, -1.0, 9.0]]), torch.randn(4, 6, 5, generator=G)

    def function(x, numbers, matrices, ends):
        return numbers.histc(4, 0, 4), numbers.histc(bins=5, min=-1, max=1), torch.ops.transformers.grouped_mm_fallback(x[0], matrices, ends)

    rows = torch.randn(3, 8, 6, generator=G)
    check(function, rows, numbers, matrices, torch.tensor(ends, dtype=torch.int32))


def test_grouped_products_of_pytorch_itself():
    """It exports them in bf16 only."""
    module = Call(lambda x, y, ends: (torch._grouped_mm(x[0], y, offs=ends), torch._grouped_mm(x, y)))
    args = torch.randn(2, 16, 16, generator=G).bfloat16(), torch.randn(2, 16, 16, generator=G).bfloat16(), torch.tensor([3, 16], dtype=torch.int32)
    result = import_exported(torch.export.export(module, args), eager=module)
    expected = result.reference(result.inputs)
    for name, found in run(result.module, result.inputs, weights=result.weights).items():
        assert relative_error(expected[name], found) < 1e-2


@pytest.mark.parametrize("case", ["rows", "columns", "summed", "batched"])
def test_grouped_products_of_the_reference_in_double_are_pytorchs(case):
    draw = torch.Generator().manual_seed(0)
    shapes = {"rows": ((8, 16), (3, 16, 8)), "columns": ((3, 8, 16), (16, 8)), "summed": ((16, 8), (8, 16)), "batched": ((3, 8, 16), (3, 16, 8))}[case]
    x, y = (torch.randn(s, generator=draw) for s in shapes)
    ends = None if case == "batched" else torch.tensor([3, 3, 8], dtype=torch.int32)
    wanted = torch._grouped_mm(x, y, offs=ends)
    with Promoted():
        found = torch._grouped_mm(x.double(), y.double(), offs=ends)
    assert found.dtype == torch.float64 and torch.allclose(found.float(), wanted, atol=1e-5)

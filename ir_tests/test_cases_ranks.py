"""Faults of other tools, from public issue trackers, through the whole inference pipeline on one and more ranks with the numbers of the reports:
distribution (D) and torch.export (E). Passes alone and importers have their cases in files of their own (`test_buckets`, `test_schedule`, `test_torch_import`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pipeline_cases import everywhere, exported, ops_of, passes, run_exported

from dmlc.interpret.run import run
from dmlc.ir.parser import parse_module
from dmlc.passmanager.context import Context
from dmlc.passmanager.manager import PassManager

torch.set_num_threads(1)


def placed(mesh: str, signature: str, result: str, *lines: str) -> str:
    """A program placed by hand; `signature` with the sharding of each argument."""
    body = "\n".join(lines)
    return f'dmlc.mesh {{sym_name = "mesh", axes = #dmlc.axes<[{mesh}]>}} : () -> ()\nfunc.func @main({signature}) -> {result} {{\n{body}\nfunc.return %y : {result}\n}}'


def lies(name: str, type_: str, *dims: str) -> str:
    return f"%{name}: tensor<{type_}> {{dmlc.sharding = #dmlc.sharding<@mesh, [{', '.join('{' + d + '}' for d in dims)}]>}}"


@pytest.mark.parametrize(
    ("lines", "meant"),
    [
        (["%y = dmlc.add %d, %b : (tensor<2x3xf64>, tensor<3xf64>) -> tensor<2x3xf64>"], lambda d, b: d + b),
        (["%y = dmlc.relu %d : (tensor<2x3xf64>) -> tensor<2x3xf64>"], lambda d, b: np.maximum(d, 0)),
        (["%y = dmlc.mul %d, %d : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>"], lambda d, b: d * d),
        (
            [
                "%n = dmlc.neg %d {dmlc.place = {linear = {model = 0 : i64}}} : (tensor<2x3xf64>) -> tensor<2x3xf64>",
                "%s = dmlc.add %n, %d {dmlc.place = {linear = {model = 0 : i64}}} : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>",
                "%t = dmlc.add %s, %d : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<2x3xf64>",
                "%y = dmlc.add %t, %b : (tensor<2x3xf64>, tensor<3xf64>) -> tensor<2x3xf64>",
            ],
            lambda d, b: d + b,
        ),
    ],
    ids=["bias", "relu", "product", "linear"],
)
def test_d5_what_follows_a_partial_sum(lines: list[str], meant: Any) -> None:
    model = '"model"'
    text = placed(
        '"model"=2',
        ", ".join([lies("x", "2x4xf64", "", model), lies("w", "4x3xf64", model, ""), lies("b", "3xf64", "")]),
        "tensor<2x3xf64>",
        '%d = dmlc.matmul %x, %w {dmlc.place = {k = ["model"]}} : (tensor<2x4xf64>, tensor<4x3xf64>) -> tensor<2x3xf64>',
        *lines,
    )
    rng = np.random.default_rng(0)
    x, w, b = rng.standard_normal((2, 4)), rng.standard_normal((4, 3)), rng.standard_normal(3)
    module = parse_module(text)
    PassManager(passes("partition,mask-elim")).run(module, Context())
    np.testing.assert_allclose(run(module, {"x": x, "w": w, "b": b})["result0"], meant(x @ w, b), atol=1e-12)


def test_d5_a_gemm_with_a_bias_adds_it_once() -> None:
    """Rows of the matrix are split by the plan itself here: the bias is not."""
    with_bias = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 64))
    torch.nn.init.constant_(with_bias[2].bias, 100.0)
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    module, (y,) = run_exported(with_bias, x, devices=4, plan="tp=4")
    with torch.no_grad():
        np.testing.assert_allclose(y, with_bias(x).numpy(), atol=1e-4)
    assert any(op.dialect == "comm" and "combiner" in op.attrs for op in module.main.ops())


@pytest.mark.parametrize(
    ("shape", "to", "split", "place", "ranks", "traffic"),
    [
        ("12x8", "16x6", 1, "", 4, True),
        ("12x8", "16x6", 0, "", 4, True),
        ("6x256", "1536", 0, 'dmlc.place = {f0 = ["model"]}', 4, False),
        ("8x6", "2x4x6", 0, 'dmlc.place = {f0 = ["model"]}', 2, False),
        ("8x6", "2x4x6", 0, "", 4, True),
    ],
)
def test_d6_views_across_a_split_dim(shape: str, to: str, split: int, place: str, ranks: int, traffic: bool) -> None:
    dims = ["", ""]
    dims[split] = '"model"'
    sizes = [int(n) for n in shape.split("x")]
    text = placed(f'"model"={ranks}', lies("x", f"{shape}xf64", *dims), f"tensor<{to}xf64>", f"%y = dmlc.reshape %x {{{place}}} : (tensor<{shape}xf64>) -> tensor<{to}xf64>")
    module = parse_module(text)
    PassManager(passes("partition")).run(module, Context())
    x = np.random.default_rng(0).standard_normal(sizes)
    np.testing.assert_array_equal(run(module, {"x": x}, poison_pads=True)["result0"], x.reshape([int(n) for n in to.split("x")]))
    assert any(op.name.startswith("comm.all") for op in module.main.ops()) == traffic


CROSSING = """
func.func @main(%x: tensor<8x6xf32> {dmlc.batch_dim = 0 : i64}, %w: tensor<6x6xf32> {dmlc.role = "param"}, %v: tensor<6x6xf32> {dmlc.role = "param"}) -> (tensor<8x6xf32>, tensor<6x6xf32>) {
%a = dmlc.matmul %x, %w {dmlc.place = {i = ["data"], k = ["model"]}} : (tensor<8x6xf32>, tensor<6x6xf32>) -> tensor<8x6xf32>
%b = dmlc.matmul %x, %v {dmlc.place = {i = ["data"], k = ["model"]}} : (tensor<8x6xf32>, tensor<6x6xf32>) -> tensor<8x6xf32>
%r = dmlc.exp %a {dmlc.place = {e1 = ["model", "data"]}} : (tensor<8x6xf32>) -> tensor<8x6xf32>
%s = dmlc.exp %b {dmlc.place = {e0 = ["model"], e1 = ["data"]}} : (tensor<8x6xf32>) -> tensor<8x6xf32>
%g = dmlc.contract %r, %s {equation = "bi,bj->ij", dmlc.place = {b = ["data"]}} : (tensor<8x6xf32>, tensor<8x6xf32>) -> tensor<6x6xf32>
%t = dmlc.cumsum %r {dim = 0 : i64} : (tensor<8x6xf32>) -> tensor<8x6xf32>
func.return %t, %g : tensor<8x6xf32>, tensor<6x6xf32>
}
"""


def test_d9_one_order_of_collectives_on_crossing_groups() -> None:
    """Reductions, gathers and all-to-alls over both axes of a 2 x 2 mesh: no rank waits for ever, and the order is the text's, not a hash's."""
    mesh = '"data"=2, "model"=2'
    text = f'dmlc.mesh {{sym_name = "mesh", axes = #dmlc.axes<[{mesh}]>}} : () -> ()\n' + CROSSING
    module, context = parse_module(text), Context()
    expected = run(module, inputs := {"x": np.random.default_rng(0).standard_normal((8, 6)) / 4}, promote="f64")
    PassManager(passes("partition,mask-elim,canonicalize,cse,dce,tensor-fusion,schedule")).run(module, context)
    kinds = {op.name.split(".")[1].removesuffix("_start") for op in module.main.ops() if op.dialect == "comm" and op.operands}
    assert len(kinds - {"wait"}) >= 3
    for name, got in run(module, inputs, promote="f64").items():
        np.testing.assert_allclose(got, expected[name], rtol=1e-12)


HASHED = """
import sys
from dmlc.cli import opt
code, out, err = opt.run([sys.argv[1], "--passes", sys.argv[2], "--remarks"], "")
assert code == 0, err
print(out)
"""


def test_d9_order_does_not_depend_on_hashes(tmp_path: Path) -> None:
    """The same text under two hash seeds, and with the devices' plan chosen by the solver."""
    request = 'builtin.module attributes {dmlc.cluster = "h100", dmlc.request = {devices = 4 : i64, plan = "dp=2,tp=2"}} {\n' + CROSSING + "}\n"
    path = tmp_path / "crossing.mlir"
    path.write_text(_without_places(request))

    def printed(seed: str) -> str:
        done = subprocess.run([sys.executable, "-c", HASHED, str(path), "inference"], capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": seed})
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = printed("1")
    assert first == printed("2") and "comm." in first


def _without_places(text: str) -> str:
    return re.sub(r",? ?dmlc\.place = \{[^}]*\}", "", text).replace("{}", "")


# ---------------------------------------------------------------- E: torch.export


class Heads(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        b, h, s, d = q.shape
        return y.transpose(1, 2).reshape(b, s, h * d).view(-1, h * d)


@everywhere
def test_e1_a_view_of_attention(devices: int, plan: str) -> None:
    """After decomposition the result has other strides than when it was traced: the view has to be a reshape."""
    q, k, v = (torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))
    module, (y,) = run_exported(Heads(), q, k, v, devices=devices, plan=plan)
    assert len(ops_of(module, "dmlc.attention")) == 1
    np.testing.assert_allclose(y, Heads()(q, k, v).numpy(), atol=1e-5)


class Tied(torch.nn.Module):
    """A table that is the output projection too; two tables that are only equal."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(11, 6)
        self.out = torch.nn.Linear(6, 11, bias=False)
        self.out.weight = self.table.weight
        self.left, self.right = torch.nn.Linear(6, 6, bias=False), torch.nn.Linear(6, 6, bias=False)
        self.right.weight.data = self.left.weight.data.clone()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.right(torch.relu(self.left(self.table(ids)))))


@everywhere
def test_e3_a_tied_weight_is_one_argument(devices: int, plan: str) -> None:
    model, ids = Tied().eval(), torch.tensor([[1, 5, 10], [0, 2, 3]])
    arguments = exported(model, ids).module.main.args
    tables = [a for a in arguments if a.shape == (11, 6)]
    assert [set(a.attrs["dmlc.names"]) for a in tables] == [{"table.weight", "out.weight"}] and len(tables[0].users) == 2
    assert len([a for a in arguments if a.shape == (6, 6)]) == 2
    module, (y,) = run_exported(model, ids, devices=devices, plan=plan)
    assert sum("table.weight" in a.attrs.get("dmlc.names", ()) for a in module.main.args) == 1
    with torch.no_grad():
        np.testing.assert_allclose(y, model(ids).numpy(), atol=1e-5)

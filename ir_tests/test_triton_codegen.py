"""Generated kernels: under Triton's interpreter against PyTorch in float64, ahead-of-time for two GPUs, and the text of hard cases.

The interpreter and the compiler each get one process of their own for all kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import facets
import kernel_cases
import pytest
import torch

import dmlc.ops  # noqa: F401
from dmlc.codegen import aot
from dmlc.codegen.bf16_interpreter import narrow, widen
from dmlc.codegen.folder import prelude_text, source_of
from dmlc.codegen.triton_source import emit_functions, emit_kernel
from dmlc.interpret.evaluate import DTYPES, evaluate, promoted
from dmlc.ir.core import Function, Module, Op
from dmlc.ir.parser import parse_module
from dmlc.ops.base import is_composite
from dmlc.ops.iteration import facts_of, iteration_space
from dmlc.ops.kernel import REDUCTIONS, in_kernel

TOLERANCE = {"f64": 1e-12, "f32": 1e-5, "f16": 1e-3, "bf16": 8e-3}  # absolute; four times as much of an element: a few roundings of its dtype


def functions_of(text: str) -> dict[str, Function]:
    return {f.name: f for f in parse_module(text, "kernels").functions}


def single_op_functions() -> dict[str, Function]:
    """Every sample of reductions, counters and composites as a kernel of that op alone (pointwise texts have a test of their own)."""
    module, found = Module(), {}
    for case in facets.cases():
        op = facets.build(case)
        block = op.block
        assert block is not None
        if in_kernel(op) and facts_of(op) is not None and op.operands and (is_composite(op) or op.name in (*REDUCTIONS, "dmlc.iota")):
            name = "op_" + case.id.replace("-", "_")
            function = module.add_function(name, case.sample.operands)
            copy = op.clone(dict(zip(block.args, function.args)))
            function.body.append(copy)
            function.body.append(Op("func.return", copy.results))
            found[name] = function
    return {name: f for name, f in found.items() if _one_kernel(f)}


def _one_kernel(function: Function) -> bool:
    """Whether the op's dims fit: reductions of other dims than the last do not."""
    return not isinstance(iteration_space(function.body.ops[:-1], function.results), str)


FUNCTIONS = functions_of(kernel_cases.PROGRAM)
SINGLE = single_op_functions()


def inputs_of(function: Function) -> list[torch.Tensor]:
    if function.name in kernel_cases.SPECIAL:
        return kernel_cases.SPECIAL[function.name]
    if function.name in SINGLE:
        name, number = function.name.removeprefix("op_").rsplit("_", 1)
        case = next(c for c in facets.cases(lambda d: d.name == f"dmlc.{name}") if c.number == int(number))
        return facets.operands(case)
    generator = torch.Generator().manual_seed(len(function.name))
    return [_random(a.tensor, generator) for a in function.args]


def _random(type_, generator: torch.Generator) -> torch.Tensor:
    if type_.is_float:
        return torch.randn(type_.shape, generator=generator, dtype=torch.float64).to(DTYPES[type_.dtype])
    high = 2 if type_.dtype == "i1" else 100
    return torch.randint(0, high, type_.shape, generator=generator).to(DTYPES[type_.dtype])


def expected_of(function: Function, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The ops' PyTorch texts with every float in float64."""
    env = dict(zip(function.args, [x.double() if x.is_floating_point() else x for x in inputs]))
    for op in function.body.ops[:-1]:
        env.update(zip(op.results, evaluate(op, [env[v] for v in op.operands], promoted)))
    return [env[v] for v in function.results]


def agree(function: Function, actual: list[torch.Tensor] | str, expected: list[torch.Tensor], what: str) -> None:
    assert not isinstance(actual, str), f"{what}: {actual}"
    for value, got, want in zip(function.results, actual, expected, strict=True):
        assert got.dtype == DTYPES[value.dtype] and tuple(got.shape) == value.shape, f"{what}: {got.dtype} {tuple(got.shape)}"
        close = TOLERANCE[value.dtype] if got.is_floating_point() else 0.0
        same = torch.allclose(got, want.to(got.dtype), rtol=4 * close, atol=close, equal_nan=got.is_floating_point())
        assert same, f"{what}:\n{got}\nexpected\n{want}"


def write_folder(folder: Path, functions: list[Function]) -> Path:
    (folder / "prelude.py").write_text(prelude_text())
    (folder / "bf16_interpreter.py").write_text(source_of("dmlc.codegen", "bf16_interpreter.py"))
    (folder / "kernels.py").write_text(emit_functions(functions))
    return folder


def run_kernels(folder: Path, functions: list[Function], inputs: dict[str, list[torch.Tensor]]) -> dict:
    """Results of kernels under the interpreter, keyed by name and storage (dense, strided)."""
    write_folder(folder, functions)
    torch.save(inputs, folder / "inputs.pt")
    runner = Path(__file__).with_name("kernel_runner.py")
    done = subprocess.run([sys.executable, str(runner), str(folder)], env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "outputs.pt")


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory) -> dict:
    functions = [*FUNCTIONS.values(), *SINGLE.values()]
    return run_kernels(tmp_path_factory.mktemp("kernels"), functions, {f.name: inputs_of(f) for f in functions})


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("storage", ["dense", "strided"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_interpreted_kernel_equals_pytorch(interpreted, name: str, storage: str):
    function = FUNCTIONS[name]
    agree(function, interpreted[name, storage], expected_of(function, inputs_of(function)), f"{name} on {storage} inputs")


@pytest.mark.parametrize("op_name", sorted({f.body.ops[0].name for f in SINGLE.values()}))
def test_op_alone_equals_pytorch(interpreted, op_name: str):
    for name, function in SINGLE.items():
        for storage in ("dense", "strided") if function.body.ops[0].name == op_name else ():
            agree(function, interpreted[name, storage], expected_of(function, inputs_of(function)), f"{name} on {storage} inputs")


def test_families_are_covered():
    names = {f.body.ops[0].name for f in SINGLE.values()}
    assert {
        *REDUCTIONS,
        "dmlc.iota",
        "dmlc.softmax",
        "dmlc.log_softmax",
        "dmlc.layer_norm",
        "dmlc.rms_norm",
        "dmlc.batch_norm",
        "dmlc.cross_entropy",
        "dmlc.logsumexp",
    } <= names


def test_nan_passes_maximum_clamp_and_relu(interpreted):
    nan = float("nan")
    larger, swapped, clamped, crossed, relu, smaller = interpreted["not_a_number", "dense"]
    wanted = {
        "larger": (larger, [0, 0.5, 9, nan]),
        "swapped": (swapped, [0, 0.5, 9, nan]),
        "clamped": (clamped, [0.5, 0.5, 9, nan]),
        "crossed": (crossed, [-1, -1, -1, nan]),
        "relu": (relu, [0, 0.5, 9, nan]),
        "smaller": (smaller, [-5, 0, 0, nan]),
    }
    for name, (got, want) in wanted.items():
        assert torch.equal(torch.nan_to_num(got, -7.0), torch.nan_to_num(torch.tensor(want), -7.0)), name


def test_squares_of_half_precision_do_not_overflow(interpreted):
    assert torch.equal(interpreted["rms_thousands", "dense"][0], torch.ones(2, 8, dtype=torch.float16))


# ---------------------------------------------------------------- PyTorch in place of Triton


def load_kernels(folder: Path, code: str, **environment: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_file_works_without_triton(tmp_path):
    write_folder(tmp_path, [FUNCTIONS["bias_gelu"], FUNCTIONS["softmax_wide"]])
    code = "import sys; sys.modules['triton'] = None\nimport torch, kernels\nprint(kernels.bias_gelu(torch.zeros(5, 300), torch.zeros(300)).sum().item(), kernels.triton)"
    assert load_kernels(tmp_path, code) == "0.0 None\n"


def test_out_is_filled_on_both_ways(tmp_path):
    write_folder(tmp_path, [FUNCTIONS["bias_gelu"]])
    code = """import torch, kernels
x, b = torch.randn(5, 300), torch.randn(300)
want = torch.nn.functional.gelu(x + b, approximate="tanh")
for out in (torch.empty(5, 300), torch.empty(300, 5).t()):
    assert kernels.bias_gelu(x, b, out=out) is out
    assert torch.allclose(out, want, atol=1e-6)
print(kernels.runs_triton(x))"""
    assert load_kernels(tmp_path, code, TRITON_INTERPRET="0") == "False\n"
    assert load_kernels(tmp_path, code, TRITON_INTERPRET="1") == "True\n"
    assert load_kernels(tmp_path, code, TRITON_INTERPRET="1", DMLC_KERNELS="torch") == "False\n"


# ---------------------------------------------------------------- text


def test_templates():
    for name, template in kernel_cases.TEMPLATES.items():
        assert emit_kernel(FUNCTIONS[name]).launch.template == template, name


def test_nothing_is_launched_for_no_elements():
    emitted = emit_kernel(FUNCTIONS["empty_rows"])
    assert emitted.kernel == "" and "[(triton" not in emitted.wrapper
    assert emit_kernel(FUNCTIONS["empty_columns"]).kernel, "rows without elements still have sums"


def chain(x: str, other: str) -> Function:
    text = f"""func.func private @chain(%x: tensor<{x}>, %y: tensor<{other}>) -> tensor<{x}> {{
      %s = dmlc.sub %x, %y : (tensor<{x}>, tensor<{other}>) -> tensor<{x}>
      func.return %s : tensor<{x}>
    }}"""
    return functions_of(text)["chain"]


@pytest.mark.parametrize(
    ("x", "other", "wide"),
    [
        ("2147483664xi8", "i8", True),
        ("4096x64x112x112xf32", "64x1x1xf32", True),
        ("67108864x63xbf16", "63xbf16", True),
        ("2147483647xi8", "i8", True),  # the last block reaches past 2^31
        ("2147482624xi8", "i8", False),
        ("1024x64x112x112xf32", "64x1x1xf32", False),
    ],
)
def test_offsets_are_as_wide_as_the_largest_address(x: str, other: str, wide: bool):
    emitted = emit_kernel(chain(x, other))
    assert (".to(tl.int64) * BLOCK" in emitted.kernel) == wide


def test_wide_rows_have_wide_offsets():
    text = """func.func private @rows(%x: tensor<70000x70000xbf16>) -> tensor<70000x70000xbf16> {
      %s = dmlc.softmax %x {dim = 1 : i64} : (tensor<70000x70000xbf16>) -> tensor<70000x70000xbf16>
      func.return %s : tensor<70000x70000xbf16>
    }"""
    assert "row = tl.program_id(0).to(tl.int64) * ROWS" in emit_kernel(functions_of(text)["rows"]).kernel


ROUNDING = """builtin.module {header} {{
  func.func private @epilogue(%x: tensor<8xbf16>, %y: tensor<8xbf16>) -> tensor<8xbf16> {{
    %c = dmlc.full {{value = 256.0 : f64}} : () -> tensor<bf16>
    %s = dmlc.add %x, %y : (tensor<8xbf16>, tensor<8xbf16>) -> tensor<8xbf16>
    %d = dmlc.sub %s, %c : (tensor<8xbf16>, tensor<bf16>) -> tensor<8xbf16>
    func.return %d : tensor<8xbf16>
  }}
}}"""


@pytest.mark.parametrize(("header", "value"), [("", 1.0), ('attributes {dmlc.rounding = "every-value"}', 0.0)])
def test_rounding_inside_a_kernel_is_a_choice(tmp_path, header: str, value: float):
    """256 + 1 rounds to 256 in bf16: the unfused program gives 0, a kernel that keeps fp32 gives 1."""
    write_folder(tmp_path, parse_module(ROUNDING.format(header=header), "rounding").functions)
    code = "import torch, kernels\nx = torch.full((8,), 256.0, dtype=torch.bfloat16)\nprint(kernels.epilogue(x, torch.ones_like(x))[0].item())"
    assert float(load_kernels(tmp_path, code, TRITON_INTERPRET="1")) == value


def test_emission_is_deterministic():
    again = functions_of(kernel_cases.PROGRAM)
    assert emit_functions(list(FUNCTIONS.values())) == emit_functions(list(again.values()))


# ---------------------------------------------------------------- ahead of time


def test_kernels_build_for_two_gpus_without_spills(tmp_path):
    pytest.importorskip("triton")
    one_an_op = {f.body.ops[0].name: f for f in reversed(SINGLE.values())}  # the first sample of each
    functions = [*FUNCTIONS.values(), *one_an_op.values()]
    write_folder(tmp_path, functions)
    report = aot.build(tmp_path / "kernels.py", cache=tmp_path / "cache")
    assert aot.faults(report) == []
    assert set(report["kernels"]) == {f.name for f in functions} - {"empty_rows"}
    assert all(set(targets) == {"sm_80", "sm_90"} and targets["sm_80"]["registers"] > 0 for targets in report["kernels"].values())
    assert aot.build(tmp_path / "kernels.py", cache=tmp_path / "cache") == report


def test_faults_name_kernel_and_target():
    report = {"kernels": {"k": {"sm_80": {"spilled_bytes": 64, "shared_bytes": 16}, "sm_90": {"spilled_bytes": 0, "shared_bytes": 1 << 20}}}}
    assert aot.faults(report) == ["k spills 64 bytes on sm_80", "k needs 1048576 bytes of shared memory on sm_90"]


# ---------------------------------------------------------------- bf16


def test_bf16_rounding_is_pytorchs():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20000, generator=generator) * torch.exp(30 * torch.randn(20000, generator=generator))
    x[:4] = torch.tensor([float("nan"), float("inf"), 3.4e38, 1e-45])
    bits, known = torch.from_numpy(narrow(x.numpy()).view("int16")), ~x.isnan()
    assert torch.equal(bits[known], x.bfloat16().view(torch.int16)[known])
    back = torch.from_numpy(widen(narrow(x.numpy())))
    assert torch.equal(torch.nan_to_num(back), torch.nan_to_num(x.bfloat16().float()))

"""kernels.py of an output folder: for every kernel a Triton function, the same in PyTorch, and a wrapper that picks one and launches it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from dmlc.codegen.in_place import kernel_in_place, updating_op
from dmlc.codegen.triton_body import KernelBody, Names, sizes_of
from dmlc.codegen.triton_launch import Launch, plan_launch
from dmlc.codegen.triton_templates import TILE_NAME, kernel_lines
from dmlc.codegen.triton_text import POINTERS, helpers_in
from dmlc.ir.core import Function, Module, Op, Value
from dmlc.ops.base import definition
from dmlc.ops.kernel import SOURCES
from dmlc.ops.pointwise import Pointwise
from dmlc.ops.size_text import python_text
from dmlc.ops.text import TORCH_DTYPES, literal, render_torch

LARGE = 1 << 18  # elements from which a tensor no longer stays in a processor core's cache

HEADER = '''"""Kernels of the program: each as a Triton function, as PyTorch operations, and a wrapper that picks one.

On a GPU the Triton function runs; on a processor the PyTorch operations, or, with TRITON_INTERPRET=1 set, Triton's interpreter.
DMLC_KERNELS=torch takes the PyTorch operations everywhere.
"""

from __future__ import annotations

import os

import torch
{imports}
try:
    import triton
    import triton.language as tl
except ImportError:  # the PyTorch operations need no Triton
    triton = tl = None

INTERPRET = os.environ.get("TRITON_INTERPRET") == "1"
MODE = os.environ.get("DMLC_KERNELS", "auto")
PIECE = 65536  # elements: a few tensors of that size fit in a processor core's cache

if INTERPRET and triton is not None:
    import bf16_interpreter

    bf16_interpreter.install()


def jit(function):
    return function if triton is None else triton.jit(function)


def runs_triton(x: torch.Tensor) -> bool:
    """Whether the Triton function runs for operands that lie where x lies."""
    return MODE != "torch" and triton is not None and (x.is_cuda or INTERPRET)


def tile(tuned: int, size: int, columns: int = 1) -> int:
    """Rows (or elements) a program works on: as tuned for GPUs; the interpreter pays for each program, so there as many as make 65,536 elements."""
    if not INTERPRET:
        return tuned
    return 1 << (max(min(size, 65536 // columns), 1) - 1).bit_length()


def destination(out: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor:
    """Where a kernel writes a result: `out` if it is dense, else a new tensor."""
    return torch.empty(shape, dtype=dtype, device=like.device) if out is None or not out.is_contiguous() else out


def delivered(value: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """`value`, copied to `out` if the caller wants it there and it is not."""
    return value if out is None or out is value else out.copy_(value)


def in_pieces(function, *operands: torch.Tensor):
    """Many elementwise operations on large tensors, piece by piece: on a processor what is between them stays in the cache."""
    large = [x for x in operands if x.dim()]
    if large[0].is_cuda or not all(x.is_contiguous() for x in large):
        return function(*operands)
    flat = [x.reshape(-1) if x.dim() else x for x in operands]
    results = None
    for at in range(0, large[0].numel(), PIECE):
        made = function(*(x[at : at + PIECE] if x.dim() else x for x in flat))
        made = made if isinstance(made, tuple) else (made,)
        results = results or [torch.empty(large[0].numel(), dtype=x.dtype) for x in made]
        for result, x in zip(results, made):
            result[at : at + PIECE] = x
    shaped = tuple(x.reshape(large[0].shape) for x in results)
    return shaped if len(shaped) > 1 else shaped[0]
'''


@dataclass(frozen=True)
class Emitted:
    """One kernel's texts."""

    body: KernelBody
    launch: Launch
    kernel: str
    reference: str
    wrapper: str


def kernel_functions(module: Module) -> list[Function]:
    """The functions that `kernel.call`s name, in order of the first call."""
    functions = {f.name: f for f in module.functions}
    names = dict.fromkeys(op.attrs["kernel"] for op in module.walk() if op.name == "kernel.call")
    return [functions[n] for n in names]


def emit_kernels(module: Module, prelude: str = "prelude") -> str:
    """Source of kernels.py. `prelude` is the module of the output folder that holds the helpers of the ops' PyTorch texts.

    The file lists under AHEAD_OF_TIME what a compiler needs to build each kernel without a device (`dmlc.codegen.aot`).
    """
    return emit_functions(kernel_functions(module), prelude)


def emit_functions(functions: Iterable[Function], prelude: str = "prelude") -> str:
    """`emit_kernels` for given functions."""
    kernels = [emit_kernel(f) for f in functions]
    text = "\n\n\n".join(part for k in kernels for part in (k.kernel, k.reference, k.wrapper) if part)
    parts = [HEADER.format(imports=_imports(kernels, prelude)), *helpers_in(text), text, _table(kernels)]
    return "\n\n".join(p.strip("\n") + "\n" for p in parts if p)


def emit_kernel(function: Function) -> Emitted:
    body = KernelBody(function)
    launch = plan_launch(body)
    kernel = "" if body.empty else _kernel_text(body, launch)
    return Emitted(body, launch, kernel, _reference_text(function), _wrapper_text(body, launch))


def _signature(body: KernelBody) -> list[str]:
    return [f"{body.names[v]}_ptr" for v in body.read] + [f"{n}_ptr" for n in body.output_names]


def _kernel_text(body: KernelBody, launch: Launch) -> str:
    lines = kernel_lines(body, launch)
    head = f"@jit\ndef {body.name}_kernel({', '.join([*_signature(body), *body.sizes])}, {TILE_NAME[launch.template]}: tl.constexpr):"
    return "\n".join([head, *(f"    {line}" for line in lines)])


def _reference_text(function: Function) -> str:
    """The kernel's ops one by one in PyTorch, composites whole."""
    from dmlc.interpret.evaluate import HELPERS

    names = Names()
    sizes = sizes_of(function)
    names.taken.update({*HELPERS, *sizes})  # a value called like a helper would hide it
    texts: dict[Value, str] = {a: names.fresh(a.name) for a in function.args}
    outs = reference_outs(function)
    head = f"def {function.name}_torch({', '.join([*texts.values(), *sizes, *(f'{o}=None' for o in outs)])}):"
    lines = []
    like = texts[next((a for a in function.args if a.tensor.rank > 0), function.args[0])]
    for op in function.body.ops[:-1]:
        made = [names.fresh(op.name.split(".", 1)[1]) for _ in op.results]
        device = f".to({like}.device)" if op.name in SOURCES else ""
        text = render_torch(op, [texts[v] for v in op.operands], outs=_in_place_outs(function, op))
        lines.append(f"    {', '.join(made)} = {text}{device}")
        texts.update(zip(op.results, made))
    return "\n".join([head, *lines, f"    return {', '.join(texts[v] for v in function.results)}"])


def reference_outs(function: Function) -> list[str]:
    """Where the PyTorch form leaves some of its results, for a kernel that can work in place; named as in the wrapper."""
    return [out_name(function, i) for i in sorted(kernel_in_place(function))]


def out_name(function: Function, index: int) -> str:
    return "out" if len(function.results) == 1 else f"out_{index}"


def _in_place_outs(function: Function, op: Op) -> list[str]:
    """The same in the order of the results of the op that works in place."""
    if op is not updating_op(function) or not kernel_in_place(function):
        return []
    return [out_name(function, list(function.results).index(r)) for r in op.results]


def describe(value: Value) -> str:
    return f"{value.dtype}[{', '.join(map(python_text, value.shape))}]"


def _wrapper_text(body: KernelBody, launch: Launch) -> str:
    inputs, like = [body.names[v] for v in body.inputs], body.names[_reference(body)]
    outs = ["out"] if len(body.outputs) == 1 else [f"out_{i}" for i in range(len(body.outputs))]
    arrow = f"{', '.join(f'{n} {describe(v)}' for n, v in zip(inputs, body.inputs))} -> {', '.join(map(describe, body.outputs))}"
    lines = [f"def {body.name}({', '.join([*inputs, *body.sizes, *(f'{o}=None' for o in outs)])}):", f'    """{arrow}"""']
    lines += _torch_path(body, inputs, outs, like)
    if not body.empty and body.read:
        dense = [f"{body.names[v]}.{'contiguous()' if v.tensor.rank else f'to({like}.device)'}" for v in body.read]
        lines.append(f"    {', '.join(body.names[v] for v in body.read)} = {', '.join(dense)}")
    for name, out, value in zip(body.output_names, outs, body.outputs):
        lines.append(f"    {name} = destination({out}, {literal(tuple(value.shape))}, {TORCH_DTYPES[value.dtype]}, {like})")
    if not body.empty:
        lines += _launch_lines(body, launch)
    lines.append(f"    return {', '.join(f'delivered({n}, {o})' for n, o in zip(body.output_names, outs))}")
    return "\n".join(lines)


def _reference(body: KernelBody) -> Value:
    """The input that says which device the kernel runs on: numbers may lie on the host."""
    return next((v for v in body.inputs if v.tensor.rank > 0), body.inputs[0])


def elementwise_in_pieces(function: Function) -> bool:
    """Whether a kernel's PyTorch operations may run on pieces of its operands, and are worth it: several of them, all elementwise on
    operands of one large shape and on numbers."""
    values = [*function.args, *(r for op in function.body.ops[:-1] for r in op.results)]
    shapes = {v.shape for v in (*values, *function.results) if v.tensor.rank}
    steps = [op for op in function.body.ops[:-1] if op.results[0].tensor.rank]
    if len(shapes) != 1 or len(steps) < 3 or not all(r.tensor.rank for r in function.results) or not any(a.tensor.rank for a in function.args):
        return False
    elementwise = all(issubclass(definition(op), Pointwise) or (op.name in SOURCES and not op.results[0].tensor.rank) for op in function.body.ops[:-1])
    size = math.prod(next(iter(shapes)))
    return elementwise and (not isinstance(size, int) or size >= LARGE)


def _torch_path(body: KernelBody, inputs: list[str], outs: list[str], like: str) -> list[str]:
    call = f"{body.name}_torch({', '.join([*inputs, *body.sizes, *reference_outs(body.function)])})"
    if elementwise_in_pieces(body.function):
        function = f"lambda *x: {body.name}_torch(*x, {', '.join(body.sizes)})" if body.sizes else f"{body.name}_torch"
        call = f"in_pieces({', '.join([function, *inputs])})"
    lines = [f"    if not runs_triton({like}):"]
    if len(outs) == 1:
        return [*lines, f"        return delivered({call}, out)"]
    pairs = ", ".join(outs)
    return [*lines, f"        return tuple(delivered(value, out) for value, out in zip({call}, ({pairs})))"]


def _launch_lines(body: KernelBody, launch: Launch) -> list[str]:
    name = TILE_NAME[launch.template]
    extra = f", {launch.columns}" if launch.columns else ""
    arguments = [
        *(body.names[v] for v in body.read),
        *body.output_names,
        *body.sizes,
        f"{name}=block",
        *(f"{k}={v}" for k, v in launch.options().items()),
        "enable_fp_fusion=True",
    ]
    return [
        f"    block = tile({launch.tile}, {python_text(launch.size)}{extra})",
        f"    {body.name}_kernel[(triton.cdiv({python_text(launch.size)}, block),)]({', '.join(arguments)})",
    ]


def _imports(kernels: Iterable[Emitted], prelude: str) -> str:
    """What the PyTorch texts use beyond torch."""
    from dmlc.interpret.evaluate import HELPERS

    text = "\n".join(k.reference for k in kernels)
    names = [n for n in sorted(HELPERS) if n not in ("torch",) and not n.startswith("_") and re.search(rf"(?<![\w.]){n}\b(?=[.(])", text)]
    return f"from {prelude} import {', '.join(names)}\n" if names else ""


def _table(kernels: Iterable[Emitted]) -> str:
    lines = ["# What it takes to build each kernel without a device.", "AHEAD_OF_TIME = {"]
    for k in kernels:
        if k.kernel:
            body = k.body
            pointers = {f"{body.names[v]}_ptr": POINTERS[v.dtype] for v in body.read} | {
                f"{n}_ptr": POINTERS[v.dtype] for n, v in zip(body.output_names, body.outputs)
            }
            pointers |= dict.fromkeys(body.sizes, "i32")
            any_number = {"any": list(body.sizes)} if body.sizes else {}  # open sizes: multiples of nothing
            entry = {"pointers": pointers, "constants": {TILE_NAME[k.launch.template]: k.launch.tile}, **any_number, **k.launch.options()}
            lines.append(f'    "{body.name}": {{"kernel": {body.name}_kernel, {str(entry)[1:-1]}}},'.replace("'", '"'))
    return "\n".join([*lines, "}"])

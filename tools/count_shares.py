"""Counts what one rank of a compiled program holds, computes and sends, from the text of `program.mlir` alone.

    python -m dmlc.tools.count_shares OUT/program.mlir OUT/ir/17-dce.mlir --activation 8x64x256

The second file is the global program, the dump before `plan` (or a compile for one device). It is a check on dmlc, so it shares no code with it:
its own reader of the short text form, its own formulas. Standard library only.

Weights: matrices, tables and convolution weights (rank 2 and up) whose global size is above 64 KiB. Work: two operations a multiply-add
of every contraction, convolution and attention (a causal mask is not deducted). Collectives: elements of the larger of what a rank puts in
and gets out. One whose last dim is the hidden size, or with at least batch x sequence x hidden elements, moves a full activation (a
chunk of one counts for its part); an all-reduce counts once, a gather or a scatter half, since a pair does an all-reduce's work.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

BYTES = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i16": 2, "i8": 1, "ui8": 1, "i1": 1}
LARGE = 64 * 1024
PARTIAL = 16  # a collective over hidden with less than 1/16 of an activation is not a chunk of one
FULL_COST = {"all_reduce": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5, "all_to_all": 1.0}
HEAD = 10**6  # the stage after all layers

Shape = tuple[int, ...]


# ---------------------------------------------------------------- reading


@dataclass
class Line:
    """One op: result names, op name, operand names, its text, operand and result tensors as (shape, dtype), how often it runs."""

    results: list[str]
    op: str
    operands: list[str]
    text: str
    given: list[tuple[Shape, str]]
    made: list[tuple[Shape, str]]
    times: int = 1


@dataclass
class Argument:
    name: str
    shape: Shape
    dtype: str
    role: str
    layer: int | None

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * BYTES[self.dtype]


@dataclass
class Text:
    """The functions of a module by name, and the arguments of main."""

    arguments: list[Argument]
    functions: dict[str, list[Line]]

    @property
    def main(self) -> list[Line]:
        return self.functions["main"]


OPENING, CLOSING = "([{<", ")]}>"
FUNCTION = re.compile(r"func\.func (?:private )?@([\w.$-]+)\(")
STATEMENT = re.compile(r"(?:(%[^=]*?) = )?([a-z]+\.[a-z_0-9]+)\b(.*)")
QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
TENSOR = re.compile(r"tensor<((?:[0-9?]+x)*)([a-z][a-z0-9A-Z]*)")


def read(text: str) -> Text:
    """Read a module. Raises ValueError when a size is not bound or there is no main."""
    arguments: list[Argument] = []
    functions: dict[str, list[Line]] = {}
    for name, header, body in _functions(text):
        functions[name] = list(_lines(body))
        if name == "main":
            arguments = [_argument(part) for part in split(header)]
    if "main" not in functions:
        raise ValueError("the text has no function @main")
    return Text(arguments, functions)


def _functions(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """(name, text of the arguments, lines of the body) of each function: its header is one line, its end a line with its indentation."""
    lines = iter(text.splitlines())
    for line in lines:
        match = FUNCTION.search(line)
        if match is None:
            continue
        end = line[: len(line) - len(line.lstrip())] + "}"
        body: list[str] = []
        for inner in lines:
            if inner.startswith(end) and inner.rstrip()[len(end) :].strip()[:3] in ("", "loc"):
                break
            body.append(inner.strip())
        yield match[1], line[match.end() : _closing(line, match.end())], body


def _closing(text: str, start: int) -> int:
    """Position of the bracket that closes the one opened before `start`."""
    depth = 1
    for position, character in _bare(text, start):
        depth += (character in OPENING) - (character in CLOSING)
        if depth == 0:
            return position
    raise ValueError(f"no closing bracket in: {text[:60]}")


def _bare(text: str, start: int = 0) -> Iterator[tuple[int, str]]:
    """Characters outside quoted strings and arrows."""
    for match in re.compile(QUOTED.pattern + "|->|.", re.DOTALL).finditer(text, start):
        if len(match[0]) == 1:
            yield match.start(), match[0]


def split(text: str) -> list[str]:
    """Parts at the commas outside all brackets."""
    parts, depth, begin = [], 0, 0
    for position, character in _bare(text):
        depth += (character in OPENING) - (character in CLOSING)
        if character == "," and depth == 0:
            parts.append(text[begin:position].strip())
            begin = position + 1
    return [*parts, text[begin:].strip()] if text.strip() else []


def _argument(part: str) -> Argument:
    name, _, rest = part.partition(":")
    shape, dtype = tensors(rest)[0]
    role = re.search(r'dmlc\.role = "(\w+)"', rest)
    names = re.search(r'dmlc\.names = \["([^"]*)"', rest)
    layer = re.search(r"[._](\d+)[._]", names[1] if names else name)
    return Argument(name.strip(), shape, dtype, role[1] if role else "input", int(layer[1]) if layer else None)


def tensors(text: str) -> list[tuple[Shape, str]]:
    found = []
    for dims, dtype in TENSOR.findall(text):
        if "?" in dims:
            raise ValueError("a size is open; bind it (--dim) before counting")
        found.append((tuple(int(n) for n in dims.split("x") if n), dtype))
    return found


def _lines(body: Iterable[str]) -> Iterator[Line]:
    """Ops in order. A line that ends in an opening brace holds a region; what a scan or microbatch loop holds runs `count` times."""
    times = [1]
    for line in body:
        if line.startswith("}"):
            times.pop()
            continue
        match = STATEMENT.fullmatch(line)
        if match is None:
            continue
        text = match[3]
        opens = text.endswith("{")
        results = match[1].split(", ") if match[1] else []
        plain = QUOTED.sub('""', text)
        operands = re.findall(r"%[\w.$-]+", plain.split("{")[0].split(" : ")[0])
        given, made = ([], []) if opens else _signature(plain)
        yield Line(results, match[2], operands, text, given, made, times[-1])
        if opens:
            count = re.search(r"count = (\d+)", text)
            times.append(times[-1] * (int(count[1]) if count else 1))


def _signature(text: str) -> tuple[list[tuple[Shape, str]], list[tuple[Shape, str]]]:
    """Operand and result tensors from the type at the end of the line (quoted strings taken out)."""
    arrow = text.rfind(" -> ")
    if arrow < 0:
        return [], []
    begin = text.rfind(" : (", 0, arrow)
    return tensors(text[begin:arrow]), tensors(text[arrow:].split(" loc(")[0])


# ---------------------------------------------------------------- work


def work(line: Line) -> int:
    """Floating point operations of one contraction, convolution or attention; 0 of anything else."""
    shapes = [s for s, _ in line.given]
    if line.op in ("dmlc.matmul", "dmlc.linear"):
        return 2 * math.prod(line.made[0][0]) * shapes[0][-1]
    if line.op == "dmlc.conv":
        return 2 * math.prod(line.made[0][0]) * math.prod(shapes[1][1:])
    if line.op == "dmlc.conv_transpose":
        return 2 * math.prod(shapes[0]) * math.prod(shapes[1][1:])
    if line.op == "dmlc.attention":
        queries, keys, values = shapes[:3]
        return 2 * math.prod(queries[:3]) * keys[2] * (queries[3] + values[3])
    return _einsum(line, shapes) if line.op == "dmlc.contract" else 0


def _einsum(line: Line, shapes: list[Shape]) -> int:
    equation = re.search(r'equation = "([^"]*)"', line.text)
    if equation is None:
        raise ValueError(f"a contraction without an equation: {line.text[:80]}")
    sizes = {}
    for term, shape in zip(equation[1].split("->")[0].replace(" ", "").split(","), shapes, strict=True):
        sizes.update(zip(term, shape, strict=True))
    return 2 * math.prod(sizes.values())


def total_work(text: Text, function: str = "main") -> int:
    """Work of a function and of the kernels it calls."""
    total = 0
    for line in text.functions[function]:
        called = re.search(r'kernel = "([\w.$-]+)"', line.text) if line.op == "kernel.call" else None
        total += line.times * (total_work(text, called[1]) if called else work(line))
    return total


# ---------------------------------------------------------------- collectives


@dataclass
class Traffic:
    """One operand of a collective: kind, elements, times run, layer (-1: embedding, HEAD: after the layers), part of a full activation."""

    kind: str
    elements: int
    times: int
    layer: int
    full: float


def traffic(text: Text, activation: Shape | None) -> list[Traffic]:
    """All collectives of main, one entry an operand. A collective belongs to the layer whose weights its data met last."""
    found = []
    for line, layer in _layers(text):
        if not line.op.startswith("comm.") or line.op in ("comm.wait", "comm.axis_index"):
            continue
        kind = line.op.removeprefix("comm.").removesuffix("_start")
        for given, made in zip(line.given, line.made, strict=True):
            size = max(math.prod(given[0]), math.prod(made[0]))
            full = _activations(given[0], made[0], size, activation) if activation else 0.0
            found.append(Traffic(kind, size, line.times, layer, full))
    return found


def _activations(given: Shape, made: Shape, size: int, activation: Shape) -> float:
    part = size / math.prod(activation)
    over_hidden = activation[-1] in (given[-1:] + made[-1:])
    return part if part >= 1 or (over_hidden and part >= 1 / PARTIAL) else 0.0


def _layers(text: Text) -> Iterator[tuple[Line, int]]:
    """Each op of main with its layer: that of the weights it reads, else the latest of its operands'."""
    weights = {a.name: a.layer for a in text.arguments if a.role in ("param", "buffer")}
    layer_of: dict[str, int] = {}
    for line in text.main:
        layer = max((layer_of.get(name, -1) for name in line.operands), default=-1)
        read = [weights[name] for name in line.operands if name in weights]
        numbered = [n for n in read if n is not None]
        if numbered:
            layer = max(layer, *numbered)
        elif read and layer >= 0:
            layer = HEAD
        layer_of.update(dict.fromkeys(line.results, layer))
        yield line, layer


# ---------------------------------------------------------------- report


@dataclass
class Shares:
    """Parts of one: what a rank holds of the large weights and does of the work. `whole` names large weights of which it holds all."""

    bytes: float
    work: float
    whole: list[str]
    traffic: list[Traffic] = field(default_factory=list)

    def full_a_layer(self) -> dict[int, float]:
        """Layer -> full-activation collectives, an all-reduce or a gather and a scatter counted as one."""
        layers: dict[int, float] = {t.layer: 0.0 for t in self.traffic if 0 <= t.layer < HEAD}
        for t in self.traffic:
            if t.layer in layers:
                layers[t.layer] += FULL_COST[t.kind] * t.full * t.times
        return layers


def count(rank_text: str, global_text: str, activation: Shape | None = None) -> Shares:
    """Compare a rank's program with the global one. Weights are matched by name; one that only the rank knows counts as held extra."""
    local, whole = read(rank_text), read(global_text)
    large = {a.name: a.bytes for a in whole.arguments if is_large(a)}
    known = {a.name for a in whole.arguments}
    mine = {a.name: a.bytes for a in local.arguments if a.name in large or (a.name not in known and is_large(a))}
    total, total_ops = sum(large.values()), total_work(whole)
    kept = [name for name, n in mine.items() if n >= large.get(name, 0)]
    return Shares(sum(mine.values()) / total if total else 0.0, total_work(local) / total_ops if total_ops else 0.0, kept, traffic(local, activation))


def is_large(argument: Argument) -> bool:
    return argument.role in ("param", "buffer", "const") and len(argument.shape) >= 2 and argument.bytes > LARGE


def report(shares: Shares) -> str:
    lines = [f"weights held by a rank: {shares.bytes:.3f}", f"work of a rank: {shares.work:.3f}", f"whole weights: {', '.join(shares.whole) or 'none'}"]
    kinds = Counter((t.kind, t.elements, t.full > 0) for t in shares.traffic for _ in range(t.times))
    lines += [f"{n} x {kind} of {size} elements{' (full activation)' if full else ''}" for (kind, size, full), n in sorted(kinds.items())]
    lines += [f"layer {layer}: {n:.2f} full-activation collectives" for layer, n in sorted(shares.full_a_layer().items())]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rank", type=Path, help="program.mlir of a compiled folder")
    parser.add_argument("whole", type=Path, help="the global program")
    parser.add_argument("--activation", help="batch x sequence x hidden, as in 8x64x256")
    args = parser.parse_args(arguments)
    activation = tuple(int(n) for n in args.activation.split("x")) if args.activation else None
    print(report(count(args.rank.read_text(), args.whole.read_text(), activation)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

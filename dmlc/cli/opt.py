"""run passes over a module's text

`run` is a pure function of arguments and standard input, so that tests call it in process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dmlc.cli.arguments import Parser, Usage
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
from dmlc.passmanager.base import Pass
from dmlc.passmanager.manager import PassManager, Report
from dmlc.passmanager.pipeline import find_pass, parse_pipeline, pass_names


@dataclass
class _Output:
    """What one run prints, and whether any piece of the input failed."""

    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    failed: bool = False


def parser() -> Parser:
    p = Parser(prog="dmlc opt", description="Run passes over a module's text and print the result.")
    p.add_argument("file", metavar="FILE", nargs="?", help="an IR text file, or - for standard input")
    p.add_argument("--passes", default="", metavar="TEXT", help="what to run, as in 'canonicalize,fuse{max-ops=32}'; a pipeline's name stands for its passes")
    p.add_argument("--measured", metavar="DB", help="measured times for prices: a file of dmlc profile, or its hash; default: what the text names")
    p.add_argument("--generic", action="store_true", help="print MLIR's generic form")
    p.add_argument("--check", action="store_true", help="interpret the program before and after each pass and compare")
    p.add_argument("--no-verify", action="store_true", help="do not verify the module")
    p.add_argument("--print-diff", action="store_true", help="show what each pass changes instead of the module")
    p.add_argument("--time-passes", action="store_true", help="print the seconds each pass took")
    p.add_argument("--remarks", action="store_true", help="print remarks as comments before the module (else they go to standard error)")
    p.add_argument("--dump-ir", metavar="FOLDER", help="write the module after each pass to a numbered file")
    p.add_argument("--list-passes", action="store_true", help="list all passes with their options")
    p.add_argument("--split-input-file", action="store_true", help="treat the parts between '// -----' lines as modules of their own")
    p.add_argument("--expect-error", action="store_true", help="print errors to standard output; fail when there is none")
    return p


def run(argv: Sequence[str], stdin: str = "") -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of `dmlc opt ARGV`."""
    output = _Output()
    try:
        options = parser().parse(argv)
        if options.list_passes:
            return 0, list_passes(), ""
        if options.file is None:
            parser().error("no FILE given (use - for standard input)")
        passes = parse_pipeline(options.passes, _named_pipelines())
        text = stdin if options.file == "-" else _read(options.file)
        _run_pieces(text, passes, options, output)
    except Usage as e:
        return (e.code, e.text, "") if e.code == 0 else (e.code, "", e.text)
    except DmlcError as e:
        return 1, "", f"{e}\n"
    return int(output.failed != options.expect_error), "".join(output.out), "".join(output.err)


def main(argv: Sequence[str]) -> int:
    stdin = sys.stdin.read() if "-" in argv else ""
    code, out, err = run(argv, stdin)
    sys.stderr.write(err)
    sys.stdout.write(out)
    return code


def _named_pipelines() -> dict[str, str]:
    from dmlc.pipelines import PIPELINES

    return PIPELINES


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as e:
        raise DmlcError(f"cannot read {path}: {e.strerror}") from None
    except UnicodeDecodeError:
        raise DmlcError(f"{path} is not a text file (a module is UTF-8 text)") from None


def _run_pieces(text: str, passes: tuple[Pass, ...], options: argparse.Namespace, output: _Output) -> None:
    from dmlc.ir.lexer import Source, split_input
    from dmlc.ir.parser import annotate

    name = "<stdin>" if options.file == "-" else options.file
    for number, (piece, line) in enumerate(split_input(text) if options.split_input_file else [(text, 1)]):
        if number:
            output.out.append("// -----\n")
        try:
            _run_piece(piece, name, line, passes, options, output)
        except DmlcError as e:
            output.failed = True
            (output.out if options.expect_error else output.err).append(f"{annotate(e, Source(text, name))}\n")


def _run_piece(text: str, name: str, first_line: int, passes: tuple[Pass, ...], options: argparse.Namespace, output: _Output) -> None:
    import dmlc.ops  # noqa: F401  (registers the op set)
    from dmlc.ir.parser import parse_module
    from dmlc.ir.printer import print_module
    from dmlc.ir.verifier import verify
    from dmlc.passmanager.context import Context

    module = parse_module(text, name, first_line)
    _find_measured(module, options)
    if not options.no_verify:
        verify(module)
    context = Context.for_module(module, Path() if options.file == "-" else Path(options.file).parent)
    dump = Path(options.dump_ir) if options.dump_ir else None
    manager = PassManager(passes, not options.no_verify, options.check, dump, options.print_diff)
    try:
        reports = manager.run(module, context)
    finally:
        remarks = [f"{r}\n" for r in context.remarks]
        output.out += [f"// {r}" for r in remarks] if options.remarks else []
        output.err += [] if options.remarks else remarks
    output.err += _tell(reports, options)
    output.out += [f"{r.diff}\n" for r in reports if r.diff] if options.print_diff else [print_module(module, generic=options.generic)]


def _find_measured(module: Module, options: argparse.Namespace) -> None:
    """Measured times lie beside the text, as in a folder of dumps; others are named in it."""
    from dmlc.cost.database import look_in, show

    if options.file != "-":
        look_in(Path(options.file).parent)
    if options.measured:
        module.attrs["dmlc.measured"] = show(options.measured)


def _tell(reports: Sequence[Report], options: argparse.Namespace) -> list[str]:
    checks = [f"check: {r.name}: {r.check}\n" for r in reports if r.check]
    times = [f"time: {r.name}: {r.seconds:.4f} s, {r.ops_before} ops before, {r.ops_after} after\n" for r in reports] if options.time_passes else []
    return checks + times


def list_passes() -> str:
    """One line a pass: name with its options, numerics tier, what it does."""
    from dmlc.passmanager.pipeline import print_pass_signature

    lines = []
    for name in pass_names():
        cls = find_pass(name)
        paragraph = " ".join((sys.modules[cls.__module__].__doc__ or "").strip().split("\n\n")[0].split())
        summary = paragraph.removeprefix(f"`{name}`: ").removeprefix(f"{name}: ")
        lines.append(f"{print_pass_signature(cls)}  ({cls.numerics})\n    {summary[:1].upper()}{summary[1:]}\n")
    return "".join(lines)

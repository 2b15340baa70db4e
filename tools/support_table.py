"""Which operators are imported, as tables made from the importers themselves: `dmlc/frontend/operators.md` and the summary in the README.

    python tools/support_table.py            writes both
    python tools/support_table.py --check    exit code 1 if they are not what would be written

An ONNX operator is imported for a version of its schema when a handler is registered for it, or when the specification defines it by other operators. What
is known to be refused in part is in the importers' own messages (`Unsupported("…")`), which are listed beside their operators.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT, README = "dmlc/frontend/operators.md", "README.md"
BEGIN, END = "<!-- operators: written by tools/support_table.py -->", "<!-- /operators -->"
OLDEST_OPSET = 7
DOMAINS = {"": "ai.onnx", "ai.onnx.ml": "ai.onnx.ml", "com.microsoft": "com.microsoft"}
ELSEWHERE = ("ai.onnx.training", "ai.onnx.preview.training")  # training is dmlc's own: such files are not read


@dataclass(frozen=True)
class Operator:
    """An ONNX operator: versions of its schema that are imported by a handler, by its definition, and not at all; what is refused in part."""

    name: str
    handled: tuple[int, ...]
    defined: tuple[int, ...]
    missing: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def works(self) -> bool:
        return bool(self.handled or self.defined) and not self.missing


# ---------------------------------------------------------------- what there is


def onnx_operators(domain: str) -> list[Operator]:
    """All operators of a domain that has schemas, deprecated ones and versions before operator set 7 left out; of another domain those with a handler."""
    import onnx

    from dmlc.frontend.onnx import ops  # noqa: F401  (registers the importers)
    from dmlc.frontend.onnx.schemas import has_body
    from dmlc.frontend.onnx.table import HANDLERS

    versions: dict[str, set[int]] = defaultdict(set)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == domain and not schema.deprecated:
            versions[schema.name].add(schema.since_version)
    for handled_domain, name, version in HANDLERS:
        if handled_domain == domain:
            versions[name].add(version)
    found = []
    for name, since in sorted(versions.items()):
        kept = {v for v in since if domain or v >= max((w for w in since if w <= OLDEST_OPSET), default=0)}
        handled = {v for v in kept if (domain, name, v) in HANDLERS and not refuses(HANDLERS[domain, name, v])}
        defined = {v for v in kept - handled if has_body(name, v, domain)}
        notes = sorted({note for v in sorted(kept) if (domain, name, v) in HANDLERS for note in refusals(HANDLERS[domain, name, v])})
        found.append(Operator(name, tuple(sorted(handled)), tuple(sorted(defined)), tuple(sorted(kept - handled - defined)), tuple(notes)))
    return found


def aten_operators() -> list[tuple[str, tuple[str, ...]]]:
    """Operators of PyTorch by the name a handler is registered under, with what it refuses in part."""
    from dmlc.frontend import torch_tables  # noqa: F401  (registers the importers)
    from dmlc.frontend.torch_graph import HANDLERS

    return sorted((name, refusals(handler)) for name, handler in HANDLERS.items())


def refuses(handler: Callable[..., Any]) -> bool:
    """Whether a handler does nothing but say why the operator is not supported."""
    tree = _tree(handler)
    body = [s for s in tree.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))] if tree is not None else []
    return len(body) == 1 and isinstance(body[0], ast.Raise)


def refusals(handler: Callable[..., Any]) -> tuple[str, ...]:
    """The messages of `raise Unsupported("…")` and `c.error("…")` in a handler, `…` where they fill in a value."""
    tree = _tree(handler)
    if tree is None:
        return ()
    raised = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    calls = [c for c in raised if ast.unparse(c.func) == "Unsupported" or ast.unparse(c.func).endswith(".error")]
    return tuple(dict.fromkeys(_message(c.args[0]) for c in calls if c.args))


def _tree(handler: Callable[..., Any]) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(handler))))
    except (OSError, SyntaxError, TypeError):  # made by a lambda or a factory on a shared line
        return None
    return next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)


def _message(argument: ast.expr) -> str:
    if isinstance(argument, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in argument.values)
    return str(argument.value) if isinstance(argument, ast.Constant) else "…"


# ---------------------------------------------------------------- text


def document() -> str:
    parts = ["# Operators\n\nWritten by `tools/support_table.py` from the importers; change those. `dmlc compile MODEL --explain-import` says it for one model.\n"]
    for domain, title in DOMAINS.items():
        parts.append(f"## ONNX, {title}\n\n{_counted(onnx_operators(domain))}\n\n" + _table(("operator", "versions", "by its definition", "not yet", "refused in part"), _onnx_rows(domain)))
    parts.append(f"Not read: operators of {' and '.join(ELSEWHERE)}. Training is compiled from the forward model.\n")
    aten = aten_operators()
    parts.append(f"## PyTorch (torch.export)\n\n{len(aten)} names. One without an overload stands for all its overloads.\n\n" + _aten_text(aten))
    return "\n".join(parts)


def _onnx_rows(domain: str) -> Iterable[Sequence[str]]:
    for o in onnx_operators(domain):
        yield o.name, _numbers(o.handled), _numbers(o.defined), _numbers(o.missing), "; ".join(o.notes).replace("|", "\\|")


def _aten_text(aten: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    names = ", ".join(f"`{name}`" for name, _ in aten)
    return f"{names}\n\n" + _table(("operator", "refused in part"), [(name, "; ".join(notes).replace("|", "\\|")) for name, notes in aten if notes])


def _counted(operators: Sequence[Operator]) -> str:
    whole = sum(o.works for o in operators)
    some = sum(bool(o.handled or o.defined) and not o.works for o in operators)
    return f"{whole} of {len(operators)} operators in every version from operator set {OLDEST_OPSET} on" + (f", {some} more in some." if some else ".")


def _numbers(versions: Sequence[int]) -> str:
    return ", ".join(map(str, versions))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines) + "\n"


def summary() -> str:
    """The README's table: a line a source of models."""
    rows = []
    for domain, title in DOMAINS.items():
        operators = onnx_operators(domain)
        missing = [o.name for o in operators if not (o.handled or o.defined)]
        named = ", ".join(missing[:6]) + (f" and {len(missing) - 6} more" if len(missing) > 6 else "")
        rows.append((f"ONNX {title}", f"{len(operators) - len(missing)}" + (f" of {len(operators)}" if missing else ""), named))
    rows.append(("torch.export", str(len(aten_operators())), ""))
    return _table(("operators of", "imported", "not yet"), rows)


def with_summary(text: str) -> str:
    """The README with the table between its marks. Raises `ValueError` where the marks are missing."""
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{README} lacks {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{summary()}{END}{after}"


def wanted(root: Path = ROOT) -> dict[Path, str]:
    return {root / DOCUMENT: document(), root / README: with_summary((root / README).read_text(encoding="utf-8"))}


def main(arguments: Sequence[str]) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true", help="write nothing")
    options = p.parse_args(arguments)
    stale = [path for path, text in wanted().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if options.check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run python tools/support_table.py")
        return int(bool(stale))
    for path, text in wanted().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

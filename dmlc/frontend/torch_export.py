"""PyTorch programs as modules of the IR.

A source is a `.pt2` file (`torch.export.save`), or a Python function `file.py:name` / `package.module:name` that returns
`(module, args[, kwargs[, dynamic_shapes]])`. The module is put in evaluation mode (training mode on request), exported and functionalised
without decompositions, so that attention, norms and activations arrive whole.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dmlc.frontend.result import ImportResult
from dmlc.frontend.torch_decompose import functional, quiet
from dmlc.frontend.torch_import import Importer
from dmlc.frontend.torch_meta import computing_beside, values_of
from dmlc.frontend.torch_reference import Reference
from dmlc.frontend.torch_sizes import bind, example_inputs, free_sizes, left_open, tag_batch
from dmlc.frontend.torch_training import evaluation_remark, load_loss, with_loss
from dmlc.frontend.trace import Trace
from dmlc.ir.dims import Size, substitute, symbol
from dmlc.ir.location import DmlcError, Loc, Remark
from dmlc.ir.open_sizes import OpenSizes, UnknownSize, in_force, resolve
from dmlc.ir.suggest import did_you_mean
from dmlc.ir.weights import WeightStore


def import_program(
    source: str | Path,
    dims: Mapping[str, int] | None = None,
    train: bool = False,
    open_sizes: bool = False,
    like: Mapping[str, int] | None = None,
    trace: Trace | None = None,
) -> ImportResult:
    """Import `source`. `dims` fixes free sizes by name; the others keep the example's, or with `open_sizes` stay open, priced as `like` says, else
    as in the example. Raises `DmlcError` for whatever cannot be imported. `trace` is filled with what each call became."""
    text = str(source)
    if text.endswith(".pt2"):
        program, shapes, eager = load_program(Path(text)), None, None
    else:
        eager, args, kwargs, shapes = load_model(text)
        program = export(eager, args, kwargs, shapes, train, text)
    return import_exported(program, dims, shapes, eager, train, open_sizes, like, trace)


def import_training(source: str | Path, dims: Mapping[str, int] | None = None, loss: str = "", class_dim: int = -1) -> tuple[ImportResult, ImportResult | None]:
    """The model in training mode and the same model in evaluation mode, traced with the loss function that `loss` names (`module:function`), if any.

    A `.pt2` file comes as it was exported: the second is then None, and a remark says what it lacks for training.
    """
    text = str(source)
    if text.endswith(".pt2"):
        if loss:
            raise DmlcError(f"an exported program cannot be traced with {loss}; export the model with its loss, or take a named one", Loc(text))
        program = load_program(Path(text))
        result = import_exported(program, dims, train=True)
        result.remarks += [Remark("import", said, loc=Loc(text))] if (said := evaluation_remark(program)) else []
        return result, None
    eager, args, kwargs, shapes = load_model(text)
    if loss:
        eager, kwargs = with_loss(eager.eval(), args, kwargs, load_loss(loss), class_dim, loss)
    results = [import_exported(export(eager, args, kwargs, shapes, train, text), dims, shapes, eager, train) for train in (True, False)]
    return results[0], results[1]


def import_exported(
    program: torch.export.ExportedProgram,
    dims: Mapping[str, int] | None = None,
    shapes: Any = None,
    eager: torch.nn.Module | None = None,
    train: bool = False,
    open_sizes: bool = False,
    like: Mapping[str, int] | None = None,
    trace: Trace | None = None,
) -> ImportResult:
    """Import a program that is already exported. `eager` is what it was exported from, if known: it then serves as the reference.
    To `train` it, also parameters and buffers that it never reads become arguments, since they belong to its state."""
    program = functional(program, train)
    sizes = free_sizes(program, shapes)
    bound = bind(sizes, dims or {})
    left = left_open(sizes, dims or {}, like or {}) if open_sizes else OpenSizes()
    weights, remarks = WeightStore(), []
    numbers: dict[str, Size] = {s.name: bound[s.name] for s in sizes if s.name not in left.sizes}
    while True:
        known = {s.symbol: substitute(symbol(s.name), numbers) for s in sizes}
        try:
            with in_force(left):
                module = Importer(program, known, weights, train, values_of(eager), trace).run()
                tag_batch(module)
                left.declare(module)
                examples = example_inputs(program, module)
            break
        except UnknownSize as e:
            told, changed = resolve(left, e)
            remarks += told
            numbers = {name: substitute(n, changed) for name, n in numbers.items()} | changed
            weights = WeightStore()
    remarks += [Remark("import", f"the program takes {said} only: a comparison in it comes out so") for said in left.assumed]
    return ImportResult(module, weights, examples, bound, Reference(program, eager), remarks)


# ---------------------------------------------------------------- sources


def load_program(path: Path) -> torch.export.ExportedProgram:
    loc = Loc(str(path))
    if not path.is_file():
        raise DmlcError("no such file", loc)
    try:
        with quiet():
            return torch.export.load(str(path))
    except Exception as e:  # the loader's errors on damaged files have no common class
        raise DmlcError(f"not a program saved by torch.export.save: {first_line(e)}", loc) from None


def load_model(source: str) -> tuple[torch.nn.Module, tuple, dict, Any]:
    """Call the function that `source` names. Returns module, args, kwargs, dynamic shapes."""
    place, _, name = source.rpartition(":")
    loc = Loc(source)
    if not place:
        raise DmlcError("expected a .pt2 file, file.py:function or package.module:function", loc)
    build = load_function(place, name, loc)
    with users_code(source), computing_beside() as keep:
        made = build()
        made = made if isinstance(made, tuple) else (made,)
        if isinstance(made[0], torch.nn.Module):
            keep(made[0])
    if not 2 <= len(made) <= 4 or not isinstance(made[0], torch.nn.Module):
        raise DmlcError(f"'{name}' must return (module, args[, kwargs[, dynamic_shapes]])", loc)
    parts: list[Any] = [*made, *[None] * (4 - len(made))]
    eager, args, kwargs, shapes = parts
    return eager, tuple(args) if isinstance(args, Sequence) else (args,), dict(kwargs or {}), shapes


def load_function(place: str, name: str, loc: Loc) -> Callable[..., Any]:
    """The function `name` of a file or package."""
    namespace = load_namespace(place, loc)
    found = getattr(namespace, name, None)
    if not callable(found):
        names = [n for n, v in vars(namespace).items() if callable(v) and not n.startswith("_")]
        raise DmlcError(f"{place} has no function '{name}'{did_you_mean(name, names)}", loc)
    return found


def load_namespace(place: str, loc: Loc) -> Any:
    """The Python module that a file or a dotted name stands for."""
    return _load_file(Path(place), loc) if place.endswith(".py") else _load_package(place, loc)


def _load_file(path: Path, loc: Loc) -> Any:
    if not path.is_file():
        raise DmlcError(f"no such file: {path}", loc)
    name = f"dmlc_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with users_code(str(loc)):
            spec.loader.exec_module(module)
    except SyntaxError as e:
        raise DmlcError(f"{e.msg}", Loc(str(path), e.lineno or 1, e.offset or 1)) from None
    except ImportError as e:
        raise DmlcError(f"{path} cannot be imported: {e}", loc) from None
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def _load_package(name: str, loc: Loc) -> Any:
    sys.path.insert(0, os.getcwd())
    try:
        with users_code(str(loc)):
            return importlib.import_module(name)
    except ImportError as e:
        raise DmlcError(f"{name} cannot be imported: {e}", loc) from None
    finally:
        sys.path.remove(os.getcwd())


@contextlib.contextmanager
def users_code(source: str) -> Iterator[None]:
    """What the user's own code raises becomes one message with the line that raised it; imports and syntax are told by the caller."""
    try:
        yield
    except (DmlcError, ImportError, SyntaxError):
        raise
    except Exception as e:
        last = traceback.extract_tb(e.__traceback__)[-1]
        raise DmlcError(
            f"the model's code failed: {first_line(e)}", Loc(last.filename, last.lineno or 1, (last.colno or 0) + 1), (f"while reading {source}",)
        ) from e


# ---------------------------------------------------------------- export


def export(module: torch.nn.Module, args: tuple, kwargs: dict, shapes: Any, train: bool, what: str) -> torch.export.ExportedProgram:
    module.train(train)
    try:
        with quiet(), torch.set_grad_enabled(train):
            return torch.export.export(module, args, kwargs, dynamic_shapes=shapes)
    except Exception as e:  # whatever the model's own code or the tracer raises is the user's to see, as one message
        raise DmlcError(f"torch.export cannot trace the model: {first_line(e)}", Loc(what)) from e


def first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__

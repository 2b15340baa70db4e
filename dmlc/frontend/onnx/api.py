"""`import_onnx`: an ONNX file as a module with concrete sizes, its weights and a record of what was chosen."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx

from dmlc.frontend.onnx.emit import Emit
from dmlc.frontend.onnx.frame import Frame
from dmlc.frontend.onnx.importer import Importer, carried_elements, one_line, opsets_of
from dmlc.frontend.onnx.loader import load_model
from dmlc.frontend.onnx.program import Program
from dmlc.frontend.onnx.sizes import ChosenSize, InputSpec, SizeBinder
from dmlc.frontend.onnx.tensors import CARRIERS, element_name
from dmlc.frontend.onnx.values import Poison, Tensor, Weight
from dmlc.frontend.trace import Trace
from dmlc.ir.core import Module, Value
from dmlc.ir.location import DmlcError, Loc, Remark
from dmlc.ir.open_sizes import UnknownSize, in_force, resolve
from dmlc.ir.types import TensorType
from dmlc.ir.weights import WeightStore

INITIALIZERS_ARE_INPUTS_UP_TO = 3  # ir_version: until then every initializer had to be listed as an input; since 4 that makes it overridable


@dataclass
class ImportResult:
    """`inputs` and `outputs` in the model's order; `sizes` are the open dims and what they were bound to."""

    module: Module
    weights: WeightStore
    inputs: list[InputSpec]
    outputs: list[str]
    sizes: list[ChosenSize]
    remarks: list[Remark]

    @property
    def trainable(self) -> list[str]:
        """The model's names of what training would change."""
        return [name for a in self.module.main.args if a.attrs.get("dmlc.role") == "param" for name in a.attrs["dmlc.names"]]


def import_onnx(
    path: str | os.PathLike[str],
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    devices: int = 1,
    batch_dims: Mapping[str, int] | Iterable[str] | None = None,
    trainable: str | None = None,
    mode: str = "",
    open_sizes: bool = False,
    like: Mapping[str, int] | None = None,
    trace: Trace | None = None,
) -> ImportResult:
    """Read an ONNX model.

    `dims` binds named sizes of the file (an unnamed one is called `input[dim]`), `shapes` whole inputs; what stays open takes a default: `devices`
    for the batch (dim 0 of an input, if open), 64 otherwise. `batch_dims` names the batch dim of inputs whose file fixes it, as a mapping or as
    `"x:0"`. `trainable` is a regular expression over initializers' names that replaces the choice by operator and operand.
    `mode` is "train" or "eval" for a model that is trained: dropouts and batch norms that the file has in training form then are what that mode
    makes of them; without it such a form is not supported.
    With `open_sizes` what stays open does so in the module too, as symbols; `like` says which values of them prices are taken at.
    `trace` is filled with what each node became, as far as the import of fixed sizes gets.
    Raises `DmlcError` for everything that is wrong with the file or not supported.
    """
    path = Path(path)
    model = load_model(path)
    try:
        binder = SizeBinder(_given_inputs(model.graph), dims or {}, shapes or {}, devices, _batch_dims(batch_dims), like)
        return _import_open(model, path, binder, trainable) if open_sizes and not mode else _import(model, path, binder, Program(trainable, mode, trace))
    except DmlcError as e:
        raise e if e.loc.known else DmlcError(e.message, Loc(str(path)), e.notes) from None
    except Exception as e:  # parts of a damaged file that lie outside nodes
        raise DmlcError(f"the model is damaged: {one_line(e)}", Loc(str(path))) from e


def _given_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    initializers = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    return [v for v in graph.input if v.name not in initializers]


def _import_open(model: onnx.ModelProto, path: Path, binder: SizeBinder, trainable: str | None) -> ImportResult:
    """With symbols for open sizes. What the model shows two of them to have in common is written down, what has to be known is fixed, and the
    import begins again."""
    left, said = binder.keep_open(), []
    while True:
        try:
            with in_force(left):
                result = _import(model, path, binder, Program(trainable, ""))
            break
        except UnknownSize as e:
            told, numbers = resolve(left, e)
            said += told
            binder.bind_kept(numbers)
    left.declare(result.module)
    result.remarks = [*said, *(Remark("import", f"the program takes {text} only: a comparison in it comes out so") for text in left.assumed), *result.remarks]
    return result


def _import(model: onnx.ModelProto, path: Path, binder: SizeBinder, program: Program) -> ImportResult:
    graph = model.graph
    initializers = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    importer = Importer(model, path, program)
    frame = Frame(opsets_of(model))
    inputs = _bind_inputs(graph, binder, program, frame)
    overridable = frozenset(v.name for v in graph.input if v.name in initializers) if model.ir_version > INITIALIZERS_ARE_INPUTS_UP_TO else frozenset()
    importer.bind_initializers(graph, frame, overridable)
    for name in (v.name for v in graph.input if v.name in overridable):
        program.weight(_weight(frame, name), "const")
    with _noting_defaults(binder):
        results = importer.run(graph.node, [v.name for v in graph.output], frame)
    importer.raise_unsupported()
    program.loc = Loc(str(path))
    program.finish([(v.name, _output(importer, r)) for v, r in zip(graph.output, results)])
    carried = [v for v in (*graph.input, *graph.output) if frame.element(v.name)]
    for v in carried:
        element = frame.element(v.name) or 0
        importer.told(f"'{v.name}'", f"of type {element_name(element)} is given as {CARRIERS[element]}")
    counted = [Remark("import", f"{what} ({n} node{'s' if n > 1 else ''}) {text}", loc=program.loc) for (what, text), n in importer.kinds.items()]
    return ImportResult(program.module, program.store, inputs, [v.name for v in graph.output], binder.table(), importer.remarks + counted)


@contextmanager
def _noting_defaults(binder: SizeBinder) -> Iterator[None]:
    """An error inside the graph may come from a size that nobody chose: say which there are."""
    try:
        yield
    except DmlcError as e:
        chosen = ", ".join(f"{s.name} = {s.size}" for s in binder.table() if s.why.startswith("default"))
        raise e.told(e.message, e.loc, (*e.notes, f"sizes chosen by default: {chosen} (others with --dim or --shape)") if chosen else e.notes) from None


def _bind_inputs(graph: onnx.GraphProto, binder: SizeBinder, program: Program, frame: Frame) -> list[InputSpec]:
    specs = binder.specs({i.name: program.argument_name(i.name) for i in binder.inputs})
    for spec in specs:
        if spec.name in frame.scope:
            raise DmlcError(f"the input '{spec.name}' is defined twice")
        frame.elements.update(carried_elements([v for v in graph.input if v.name == spec.name]))
        frame.scope[spec.name] = program.input(spec.name, spec.argument, TensorType(spec.shape, spec.dtype), spec.batch_dim)
    return specs


def _weight(frame: Frame, name: str) -> Weight:
    weight = frame.scope[name]
    assert isinstance(weight, Weight)
    return weight


def _output(importer: Importer, result: Tensor | Poison) -> Value:
    assert not isinstance(result, Poison)
    return Emit(importer.program).value(result)


def _batch_dims(given: Mapping[str, int] | Iterable[str] | None) -> dict[str, int]:
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    result = {}
    for text in given:
        name, _, dim = text.rpartition(":")
        if not name or not dim.isdigit():
            raise DmlcError(f"'{text}' is not a batch dim; write INPUT:DIM, as in x:0")
        result[name] = int(dim)
    return result

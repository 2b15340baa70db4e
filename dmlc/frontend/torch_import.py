"""An exported PyTorch program becomes a module: arguments, ops in order, results."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export.graph_signature import InputKind, OutputKind

from dmlc.frontend import torch_tables  # noqa: F401  (fills the handler table)
from dmlc.frontend.draws import Draws
from dmlc.frontend.torch_calls import SCOPES, ignored, note_calls, ops_after, unsupported
from dmlc.frontend.torch_control import CONTROL, Control
from dmlc.frontend.torch_expressions import size_of
from dmlc.frontend.torch_graph import Call, dtype_name, handler_of, location_of, operator_name
from dmlc.frontend.torch_ops_complex import Complex, complex_handler, halves, stopped
from dmlc.frontend.torch_weights import reader
from dmlc.frontend.trace import Trace
from dmlc.ir.attributes import DenseResource
from dmlc.ir.builder import Builder
from dmlc.ir.core import Module, Value
from dmlc.ir.location import DmlcError, Loc
from dmlc.ir.types import Size, TensorType
from dmlc.ir.weights import WeightStore

ROLES = {InputKind.PARAMETER: "param", InputKind.BUFFER: "buffer", InputKind.CONSTANT_TENSOR: "const"}


class Importer(Draws):
    """Walks a program's graph once. `symbols` gives its symbolic sizes as integers or sizes of the IR. To `train` it, its whole state becomes arguments. `values` are those
    of tensors on the meta device, as far as they are known."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        symbols: Mapping[Any, Size],
        weights: WeightStore,
        train: bool = False,
        values: Mapping[str, torch.Tensor] | None = None,
        trace: Trace | None = None,
    ):
        self.program, self.symbols, self.weights, self.train, self.values = program, symbols, weights, train, values or {}
        self.trace = trace or Trace()
        self.module = Module()
        self.function = self.module.add_function("main")
        self.builder = Builder.at_end(self.function.body)
        self.env: dict[torch.fx.Node, Any] = {}
        self.targets: dict[torch.fx.Node, str] = {}  # placeholder -> the parameter's own name
        self._taken: set[str] = set()

    # ------------------------------------------------------------ sizes and types

    def size(self, n: int | torch.SymInt) -> Size:
        return n if isinstance(n, int) else size_of(n.node.expr, self.symbols)

    def type(self, val: Any) -> TensorType:
        if isinstance(val, torch.Tensor):
            return TensorType(tuple(self.size(n) for n in val.shape), dtype_name(val.dtype.to_real() if val.is_complex() else val.dtype))  # of each part
        return TensorType((), "i1" if isinstance(val, (bool, torch.SymBool)) else "i64" if isinstance(val, (int, torch.SymInt)) else "f64")

    # ------------------------------------------------------------ names

    def name(self, node: torch.fx.Node) -> str:
        """What the model calls the place of a node: its module's path, or that of the weight it takes, or path and operator."""
        path, kind = list((node.meta.get("nn_module_stack") or {"": ("", "")}).values())[-1]
        path = re.sub(r"@\d+$", "", path)  # a module called a second time
        if kind.startswith("torch.nn.modules.") and not kind.endswith(("Sequential", "MultiheadAttention", "ModuleList")):
            return path
        weights = [self.targets[n] for n in node.all_input_nodes if n in self.targets and len(n.meta["val"].shape) > 1]
        if weights and weights[0].startswith(path):
            return weights[0].removesuffix(".weight")
        short = operator_name(node).split(".")[0].strip("_")
        return f"{path}.{short}" if path else short

    def argument_name(self, name: str) -> str:
        """A unique identifier near `name`."""
        base = re.sub(r"\W", "_", name) or "arg"
        base, stem, n = ("_" + base if base[0].isdigit() else base), base, 0
        while base in self._taken:
            n += 1
            base = f"{stem}_{n}"
        self._taken.add(base)
        return base

    # ------------------------------------------------------------ arguments

    def arguments(self) -> None:
        """Inputs first, then weights in order of first use; unused weights are left out, or to be trained come last. Tied weights become one argument."""
        specs = {s.arg.name: s for s in self.program.graph_signature.input_specs}
        placeholders = [n for n in self.program.graph.nodes if n.op == "placeholder"]
        for node in placeholders:
            if specs[node.name].kind == InputKind.USER_INPUT:
                self._input(node)
        mutated = set(self.program.graph_signature.buffers_to_mutate.values())
        order = {n: i for i, n in enumerate(self.program.graph.nodes)}
        used = [n for n in placeholders if n not in self.env and (n.users or specs[n.name].target in mutated or self._in_state(specs[n.name]))]
        groups = self._ties(specs)
        known: dict[Any, Value] = {}
        for node in sorted(used, key=lambda n: min((order[u] for u in n.users), default=len(order))):
            if specs[node.name].kind not in ROLES or node.meta["val"] is None:
                continue
            key = self._storage(specs[node.name].target)
            if key not in known:
                known[key] = self._weight(specs[node.name], node, groups[key], mutated)
            self.env[node], self.targets[node] = known[key], specs[node.name].target

    def _in_state(self, spec: Any) -> bool:
        """Whether training keeps the weight though the program never reads it: it belongs to the model's state dict."""
        return self.train and (spec.kind == InputKind.PARAMETER or (spec.kind == InputKind.BUFFER and spec.persistent is not False))

    def _input(self, node: torch.fx.Node) -> None:
        val = node.meta["val"]
        if isinstance(val, torch.Tensor) and val.is_complex():
            raise DmlcError(f"the input '{node.name}' is complex: take its torch.view_as_real, a real tensor with a last dim of 2")
        if isinstance(val, torch.Tensor):
            self.env[node] = self.function.body.add_arg(self.type(val), self.argument_name(node.name), {"dmlc.role": "input"})

    def tensor(self, target: str) -> torch.Tensor:
        found = self.program.state_dict.get(target)
        return found if found is not None else self.program.constants[target]  # type: ignore[reportReturnType]

    def _storage(self, target: str) -> Any:
        """Equal for tied weights: the same storage read as the same tensor."""
        t = self.tensor(target)
        return (t.untyped_storage()._cdata, t.storage_offset(), tuple(t.shape), t.stride(), t.dtype)

    def _ties(self, specs: Mapping[str, Any]) -> dict[Any, list[str]]:
        """Storage -> all names, in the order of the model; used or not."""
        groups: dict[Any, list[str]] = {}
        for spec in specs.values():
            if spec.kind in ROLES and isinstance(self.tensor(spec.target), torch.Tensor):
                groups.setdefault(self._storage(spec.target), []).append(spec.target)
        return groups

    def _weight(self, spec: Any, node: torch.fx.Node, names: list[str], mutated: set[str]) -> Value:
        name, role = names[0], ROLES[spec.kind]
        value = self.values.get(name, self.tensor(name))
        if value.is_complex():
            if self.train and (role == "param" or spec.persistent is not False):
                raise DmlcError(f"the {'parameter' if role == 'param' else 'buffer'} '{name}' is complex, which cannot be trained")
            return self._constant(name, value, {"dmlc.names": (name,)})
        type_ = self.type(value)
        if role == "buffer" and spec.persistent is False and not mutated.intersection(names):
            role = "const"  # not part of the model's state and never written
        self.weights.add(name, reader(value, type_.dtype, name), type_)
        if value.is_meta:
            self.weights.without_values.append(name)
        attrs: dict[str, Any] = {"dmlc.role": role, "dmlc.names": tuple(names), "dmlc.value": DenseResource(name, type_)}
        if role == "param" and self.train and not self.tensor(name).requires_grad:
            attrs["dmlc.frozen"] = True
        return self.function.body.add_arg(type_, self.argument_name(name), attrs)

    def _constant(self, name: str, held: torch.Tensor, names: dict[str, Any]) -> Any:
        """A stored tensor that is never trained; a complex one is stored as a real one with a last dim of 2."""
        data = torch.view_as_real(held.resolve_conj()) if held.is_complex() else held
        type_, unique = self.type(data), self.argument_name(name)
        key = name if names else unique
        self.weights.add(key, reader(data, type_.dtype, key), type_)
        arg = self.function.body.add_arg(type_, unique, {"dmlc.role": "const", **names, "dmlc.value": DenseResource(key, type_)})
        return Complex(*halves(self.builder, arg)) if held.is_complex() else arg

    # ------------------------------------------------------------ body

    def run(self) -> Module:
        missing = unsupported(self.program.graph_module)
        if missing:
            note_calls(self.program.graph_module, self.trace)
        self.refuse(missing)
        self.arguments()
        self.walk(self.program.graph_module)
        self.results()
        return self.module

    @staticmethod
    def refuse(missing: list[tuple[str, Loc]]) -> None:
        """One error for all operators that cannot be imported."""
        if not missing:
            return
        first = dict(reversed(missing))
        counts = {name: sum(n == name for n, _ in missing) for name in first}
        notes = tuple(f"{name} at {loc}" + (f" and {counts[name] - 1} more" if counts[name] > 1 else "") for name, loc in sorted(first.items()))
        raise DmlcError(f"{len(first)} operator{'s are' if len(first) > 1 else ' is'} not supported: {', '.join(sorted(first))}", missing[0][1], notes)

    def walk(self, graph: torch.fx.GraphModule) -> Any:
        for node in graph.graph.nodes:
            if node.op == "output":
                return node.args[0]
            if node.op == "get_attr":
                self._attribute(graph, node)
            elif node.op == "call_function":
                self.builder.loc = location_of(node)
                self._call(graph, node)

    def _attribute(self, graph: torch.fx.GraphModule, node: torch.fx.Node) -> None:
        """A tensor that the graph holds itself becomes a constant argument."""
        held = operator.attrgetter(str(node.target))(graph)
        if not isinstance(held, torch.Tensor):
            return
        self.env[node] = self._constant(str(node.target), held, {})

    def _call(self, graph: torch.fx.GraphModule, node: torch.fx.Node) -> None:
        if node.target is operator.getitem:
            if node.args[0] in self.env:
                self._pick(node)
        elif str(node.target) in SCOPES:
            self.env[node] = self._scope(graph, node)
        elif str(node.target) in CONTROL:
            with self.trace.node(str(node.target), str(location_of(node))) as entry:
                before = self.builder.block.last
                self.env[node] = CONTROL[str(node.target)](Control(self, graph, node))
                entry.ops += ops_after(self.builder.block, before)
        elif not ignored(node):
            try:
                with self.trace.node(str(node.target), str(location_of(node))) as entry:
                    before = self.builder.block.last
                    self.env[node] = (complex_handler(self, node) or handler_of(node))(Call(self, node))  # type: ignore[misc]
                    entry.ops += ops_after(self.builder.block, before)
            except DmlcError as e:
                raise e if e.loc.known else e.told(f"{node.target}: {e.message}", location_of(node), e.notes) from None

    def _pick(self, node: torch.fx.Node) -> None:
        """One of several results; handlers leave out those that PyTorch's own gradients alone are expected to read."""
        results, i = self.env[node.args[0]], node.args[1]  # type: ignore[index]
        found = results[i] if i < len(results) else None  # type: ignore[operator]
        if found is not None:
            self.env[node] = found
        elif node.users:
            raise DmlcError(f"{node.args[0].target}: its result {i} is not available", location_of(node.args[0]))  # type: ignore[union-attr]

    def _scope(self, graph: torch.fx.GraphModule, node: torch.fx.Node) -> Any:
        position = next(i for i, a in enumerate(node.args) if isinstance(a, torch.fx.Node) and a.op == "get_attr")
        body = getattr(graph, str(node.args[position].target))  # type: ignore[union-attr]
        placeholders = [n for n in body.graph.nodes if n.op == "placeholder"]
        for inner, outer in zip(placeholders, node.args[position + 1 :], strict=True):
            if outer in self.env:
                self.env[inner] = self.env[outer]  # type: ignore[index]
        outputs = self.walk(body)
        if self.train and node.args[0] is False and "grad" in str(node.target):
            self.env.update({n: stopped(self.builder, self.env[n]) for n in pytree.tree_leaves(outputs) if n in self.env})
        return [self.env.get(n) for n in outputs] if isinstance(outputs, (list, tuple)) else self.env[outputs]

    # ------------------------------------------------------------ results

    def results(self) -> None:
        """Outputs under their names in the returned structure; new values of buffers say which argument they replace."""
        signature = self.program.graph_signature
        outputs = next(n for n in self.program.graph.nodes if n.op == "output").args[0]
        names = iter(output_names(self.program))
        values, attrs = [], []
        for node, spec in zip(outputs, signature.output_specs, strict=True):
            name = next(names) if spec.kind == OutputKind.USER_OUTPUT else ""
            if node not in self.env:
                continue  # a plain number or None
            if spec.kind == OutputKind.USER_OUTPUT:
                attrs.append({"dmlc.name": name})
            elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
                attrs.append({"dmlc.name": f"{spec.target}.new", "dmlc.updates": self._updated(spec.target)})
            else:
                raise DmlcError(f"a program with outputs of kind {spec.kind.name.lower()} is not supported")
            if isinstance(self.env[node], Complex):
                raise DmlcError(f"the output '{name}' is complex: return its torch.view_as_real, a real tensor with a last dim of 2")
            values.append(self.env[node])
        if not values:
            raise DmlcError("the program returns no tensor")
        self.builder.op("func.return", values, result_types=[])
        self.function.result_attrs[:] = attrs

    def _updated(self, target: str) -> str:
        for arg in self.function.args:
            if target == arg.name or target in arg.attrs.get("dmlc.names", ()):
                return arg.name
        raise DmlcError(f"the program writes to '{target}', which is none of its arguments")


def output_names(program: torch.export.ExportedProgram) -> list[str]:
    """Names of the returned leaves: keys of dictionaries and positions of sequences joined by dots; `output` for a lone tensor."""
    tree = program.call_spec.out_spec
    numbered = pytree.tree_unflatten(list(range(tree.num_leaves)), tree)  # type: ignore[reportOptionalMemberAccess]
    paths = [path for path, _ in pytree.tree_flatten_with_path(numbered)[0]]
    names = []
    for path in paths:
        keys = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", "")))) for k in path]
        text = ".".join(keys)
        names.append("output" if not text else f"output.{text}" if text[0].isdigit() else text)
    return names

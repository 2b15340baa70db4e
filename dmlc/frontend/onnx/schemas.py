"""What the ONNX specification says of an operator in machine-readable form: function bodies and attribute defaults."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx

from dmlc.frontend.onnx.emit import type_of
from dmlc.frontend.onnx.table import STANDARD, Unsupported
from dmlc.frontend.onnx.tensors import ELEMENT_TYPES
from dmlc.frontend.onnx.values import Tensor

_ELEMENTS = {name: element for element, name in ELEMENT_TYPES.items()}


def has_body(name: str, since: int, domain: str = "") -> bool:
    if domain not in STANDARD:
        return False
    schema: Any = onnx.defs.get_schema(name, since, domain)
    return schema.has_function or schema.has_context_dependent_function


def schema_defaults(name: str, since: int, domain: str = "") -> dict[str, onnx.AttributeProto]:
    attributes = onnx.defs.get_schema(name, since, domain).attributes
    return {key: a.default_value for key, a in attributes.items() if a.default_value.type}


def schema_body(node: onnx.NodeProto, since: int, opset: int, types: Sequence[tuple[int, Sequence[int]] | None], attributes: Iterable[onnx.AttributeProto]) -> onnx.FunctionProto:
    """The function that defines the node's operator; some depend on the node's attributes and operand types."""
    schema: Any = onnx.defs.get_schema(node.op_type, since, "" if node.domain == "ai.onnx" else node.domain)
    if schema.has_function:
        return schema.function_body
    bound = onnx.NodeProto()
    bound.CopyFrom(node)
    del bound.attribute[:]
    bound.attribute.extend(attributes)
    known = max((v for v in schema.context_dependent_function_opset_versions if v <= opset), default=since)
    text = schema.get_context_dependent_function_with_opset_version(known, bound.SerializeToString(), [_type_proto(t) for t in types])
    body = onnx.FunctionProto.FromString(text)
    if not body.node:
        raise Unsupported("no importer for this form of it, and the specification defines none by other operators")
    return body


def element_of(tensor: Tensor) -> int:
    return _ELEMENTS[type_of(tensor).dtype]


def _type_proto(type_: tuple[int, Sequence[int]] | None) -> bytes:
    return (onnx.TypeProto() if type_ is None else onnx.helper.make_tensor_type_proto(*type_)).SerializeToString()

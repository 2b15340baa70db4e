"""Which function imports which node: keyed by domain, operator and the version of its schema that the model's operator set selects."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx

if TYPE_CHECKING:
    from dmlc.frontend.onnx.node import Node

STANDARD = ("", "ai.onnx.preview", "ai.onnx.ml")  # domains whose schemas the installed onnx has
NOT_STANDARD = ("SimplifiedLayerNormalization",)  # written into the standard domain by onnxruntime, without a schema

Handler = Callable[["Node"], Any]

HANDLERS: dict[tuple[str, str, int], Handler] = {}
STATIC: set[tuple[str, str]] = set()  # need no folding: they make their own constants, or depend on shapes alone


class Unsupported(Exception):
    """This node, or this use of its operator, is not supported; the text says which and why."""


def op(name: str, *since: int, domain: str = "", static: bool = False) -> Callable[[Handler], Handler]:
    """Register an importer for the schema versions `since` of an operator. A handler returns its results in the node's order."""

    def register(handler: Handler) -> Handler:
        for version in since:
            key = (domain, name, version)
            assert key not in HANDLERS, key
            HANDLERS[key] = handler
        if static:
            STATIC.add((domain, name))
        return handler

    return register


def schema_version(domain: str, name: str, opset: int) -> int:
    """The schema version that an operator set selects; operators of other domains have version 1."""
    if domain not in STANDARD or name in NOT_STANDARD:
        return 1
    try:
        return onnx.defs.get_schema(name, opset, domain).since_version
    except onnx.defs.SchemaError:
        raise Unsupported(f"operator set {opset} has no operator {name}") from None


def handler_for(domain: str, name: str, since: int) -> Handler | None:
    return HANDLERS.get((domain, name, since))


def supported_versions(domain: str, name: str) -> list[int]:
    return sorted(v for d, n, v in HANDLERS if (d, n) == (domain, name))

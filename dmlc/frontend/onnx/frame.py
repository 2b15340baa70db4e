"""Scopes of names during import."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx

from dmlc.frontend.onnx.values import Poison, Tensor
from dmlc.ir.location import DmlcError

MAX_DEPTH = 32  # of functions and subgraphs inside one another


@dataclass
class Frame:
    """One scope: the graph, the body of an inlined function, or a branch. Subgraphs see the frames around them; function bodies don't."""

    opsets: dict[str, int]
    parent: Frame | None = None
    attributes: dict[str, onnx.AttributeProto] = field(default_factory=dict)
    prefix: str = ""
    scope: dict[str, Tensor | Poison] = field(default_factory=dict)
    elements: dict[str, int] = field(default_factory=dict)  # of names whose element type the IR lacks (carried.py)
    depth: int = 0

    def lookup(self, name: str) -> Tensor | Poison | None:
        frame: Frame | None = self
        while frame is not None:
            if name in frame.scope:
                return frame.scope[name]
            frame = frame.parent
        return None

    def element(self, name: str) -> int | None:
        """The carried element type of a name, if it has one."""
        frame: Frame | None = self
        while frame is not None:
            if name in frame.scope:
                return frame.elements.get(name)
            frame = frame.parent
        return None

    def bound_attributes(self, node: onnx.NodeProto) -> Iterator[onnx.AttributeProto]:
        """The node's attributes; those that refer to the enclosing function's are replaced, or left out when it has none."""
        for attribute in node.attribute:
            if not attribute.ref_attr_name:
                yield attribute
            elif attribute.ref_attr_name in self.attributes:
                bound = onnx.AttributeProto()
                bound.CopyFrom(self.attributes[attribute.ref_attr_name])
                bound.name = attribute.name
                yield bound

    def inner(self, name: str) -> Frame:
        """A frame for a subgraph of node `name`."""
        return Frame(self.opsets, self, self.attributes, f"{self.prefix}{name}/", depth=deeper(self))


def deeper(frame: Frame) -> int:
    if frame.depth >= MAX_DEPTH:
        raise DmlcError(f"functions or subgraphs nest more than {MAX_DEPTH} deep (a function that calls itself?)")
    return frame.depth + 1

"""What importing a model gives, whichever door it came through."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from dmlc.ir.core import Module
from dmlc.ir.location import Remark
from dmlc.ir.weights import WeightStore


class Runner(Protocol):
    """Runs the original model on inputs by name and returns outputs by name, as numpy arrays.

    With `double` every float, also where the model casts, is computed as float64.
    """

    def __call__(self, inputs: dict[str, Any], double: bool = False) -> dict[str, Any]: ...


@dataclass
class ImportResult:
    """A module with function @main, the values of its weights by key, an example value for each input argument by name,
    the sizes that were free and what they were bound to, and the original for comparison."""

    module: Module
    weights: WeightStore
    inputs: dict[str, Any]
    dims: dict[str, int] = field(default_factory=dict)
    reference: Runner | None = None
    remarks: list[Remark] = field(default_factory=list)

"""Models on the meta device: tensors with shapes but no values.

Buffers that are no part of a model's state (rotary tables, masks, positions) are made by its code, so their values can be had: while the
builder runs, whatever small tensor it computes on the meta device from numbers and other such tensors is computed for real beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

LARGEST = 64 << 20  # bytes of a tensor that is computed beside
KEPT = "_dmlc_values"  # an attribute of a module: name of a buffer -> its value


class Beside(TorchDispatchMode):
    """Computes small meta tensors on the processor too, as far as they are made of known values."""

    def __init__(self) -> None:
        super().__init__()
        self.values: Any = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        known = self._known(func, made, args, kwargs)
        if known is not None:
            self.values[made] = known
        elif func._schema.is_mutable and isinstance(made, torch.Tensor):
            self.values.pop(made, None)
        return made

    def _known(self, func: Any, made: Any, args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor | None:
        if not isinstance(made, torch.Tensor) or not made.is_meta or math.prod(made.shape) * made.element_size() > LARGEST:
            return None
        if torch.Tag.nondeterministic_seeded in func.tags or "empty" in func._schema.name:
            return None
        given = [a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        if any(a.is_meta and a not in self.values for a in given):
            return None
        args, kwargs = pytree.tree_map(self._real, (args, dict(kwargs)))
        return func(*args, **kwargs)

    def _real(self, argument: Any) -> Any:
        if isinstance(argument, torch.Tensor) and argument.is_meta:
            return self.values[argument]
        return torch.device("cpu") if argument == torch.device("meta") else argument


@contextmanager
def computing_beside() -> Iterator[Callable[[torch.nn.Module], None]]:
    """Around the code that builds a model; gives a function that keeps with the model what is known of its buffers."""
    with Beside() as mode:

        def keep(module: torch.nn.Module) -> None:
            state = set(module.state_dict(keep_vars=True))
            values = {name: mode.values[b] for name, b in module.named_buffers(remove_duplicate=False) if b.is_meta and name not in state and b in mode.values}
            if values:
                setattr(module, KEPT, values)

        yield keep


def values_of(module: torch.nn.Module | None) -> dict[str, torch.Tensor]:
    """Name of a buffer on the meta device -> its value, as far as it is known."""
    return getattr(module, KEPT, {})

"""Global values of a program's arguments, how a rank's part is cut from them and how results are joined."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from dmlc.interpret.evaluate import DTYPES, evaluate
from dmlc.interpret.prelude_shards import pad_to
from dmlc.ir.attributes import DenseResource, Sharding, SymbolRef
from dmlc.ir.core import BlockArgument, Function, Module, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import TensorType

Promote = Callable[[str], str]

BITS = {"bf16": torch.uint16, "f8E4M3FN": torch.uint8, "f8E5M2": torch.uint8}
POISON = {torch.bool: True, torch.uint8: 201}


def signature_sharding(attrs: Mapping[str, Any]) -> Sharding | None:
    """Where an argument or result lies: `dmlc.storage` (parameters, state) or `dmlc.sharding`."""
    return attrs.get("dmlc.storage") or attrs.get("dmlc.sharding")


def global_type(type_: TensorType, attrs: Mapping[str, Any]) -> TensorType:
    """The unsharded type behind a per-rank argument or result (`dmlc.global` holds the shape)."""
    return type_.with_shape(attrs["dmlc.global"]) if "dmlc.global" in attrs else type_


def poison(dtype: torch.dtype) -> Any:
    """A value for padding that shows wherever it is used: NaN, a huge integer, True."""
    if dtype.is_floating_point:
        return float("nan")
    return POISON.get(dtype, min(10**6, torch.iinfo(dtype).max) if dtype != torch.bool else True)


def to_torch(array: Any, dtype: str) -> torch.Tensor:
    """A numpy array (bf16 as uint16 bits, fp8 as uint8 bits) or tensor as a tensor of `dtype`."""
    wanted = DTYPES[dtype]
    if isinstance(array, torch.Tensor):
        return array.detach().to(wanted)
    if not _is_own(array):
        array = np.array(array, order="C")  # an owned, writable copy; keeps rank 0
    tensor = torch.from_numpy(array)
    if (dtype == "bf16" and array.dtype == np.uint16) or (dtype.startswith("f8") and array.dtype == np.uint8):
        return tensor.view(wanted)
    return tensor.to(wanted)


def _is_own(array: Any) -> bool:
    """Whether an array maps a file such that writing to it changes nobody else's: as good as a copy, and takes no memory."""
    return isinstance(array, np.memmap) and array.mode == "c" and array.flags.c_contiguous and array.flags.aligned


def to_array(tensor: torch.Tensor, dtype: str) -> np.ndarray:
    """A tensor in the weight store's form: bf16 as uint16 bits, 8-bit floats as uint8 bits."""
    bits = BITS.get(dtype)
    return (tensor.view(bits) if bits is not None else tensor).detach().numpy()


def seeded(name: str, type_: TensorType, role: str, seed: int) -> torch.Tensor:
    """A reproducible stand-in for a value that the text does not hold. Buffers and states are positive, as variances and second moments must be."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ seed)
    shape = [int(n) for n in type_.shape]
    if type_.is_float:
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (x.abs() + 0.5 if role in ("buffer", "state") else x * 0.5).to(DTYPES[type_.dtype])
    return torch.randint(0, 2, shape, generator=generator).to(DTYPES[type_.dtype])


class Arguments:
    """Resolves every argument of a module's main function to its global tensor: once, or anew each time where they are not to be kept."""

    def __init__(self, module: Module, inputs: Mapping[str, Any], weights: Any = None, seed: int = 0, promote: Promote = lambda d: d, keep: bool = True):
        self.module, self.inputs, self.weights, self.seed, self.promote, self.keep = module, dict(inputs), weights, seed, promote, keep
        self._known: dict[str, torch.Tensor] = {}
        names = {a.name for a in module.main.args}
        unknown = [n for n in self.inputs if n not in names]
        if unknown:
            raise DmlcError(f"the program has no input {', '.join(unknown)}; it takes {', '.join(sorted(names))}")

    def value(self, arg: BlockArgument) -> torch.Tensor:
        if arg.name in self._known:
            return self._known[arg.name]
        found = self._resolve(arg)
        if self.keep:
            self._known[arg.name] = found
        return found

    def array(self, arg: BlockArgument) -> np.ndarray:
        """The value in the weight store's form: what the store holds, if it holds just that."""
        type_ = global_type(arg.tensor, arg.attrs)
        if arg.name not in self.inputs and "dmlc.derived" not in arg.attrs and self._stored(arg):
            key = arg.attrs["dmlc.value"].key
            if self.weights.type(key) == type_:
                return self.weights.get(key)
        return to_array(self.value(arg), type_.dtype)

    def _resolve(self, arg: BlockArgument) -> torch.Tensor:
        type_ = global_type(arg.tensor, arg.attrs)
        dtype = self.promote(type_.dtype)
        role = arg.attrs.get("dmlc.role", "input")
        if arg.name in self.inputs:
            found = to_torch(self.inputs[arg.name], dtype)
        elif "dmlc.derived" in arg.attrs:
            found = self._derived(arg.attrs["dmlc.derived"]).to(DTYPES[dtype])
        elif self._stored(arg):
            found = to_torch(self.weights.get(arg.attrs["dmlc.value"].key), type_.dtype).to(DTYPES[dtype])
        elif role == "seed":
            found = torch.tensor(self.seed)
        elif role == "input":
            raise DmlcError(f"no value for the input %{arg.name}")
        else:
            found = seeded(arg.name, type_, role, self.seed).to(DTYPES[dtype])
        free = 1 if "dmlc.micro" in arg.attrs else 0  # any number of microbatches
        if tuple(found.shape[free:]) != tuple(type_.shape[free:]) or found.ndim != type_.rank:
            raise DmlcError(f"%{arg.name} is a {type_}, but the value given has shape {tuple(found.shape)}")
        return found

    def _stored(self, arg: BlockArgument) -> bool:
        value = arg.attrs.get("dmlc.value")
        return isinstance(value, DenseResource) and self.weights is not None and value.key in self.weights

    def _derived(self, ref: SymbolRef) -> torch.Tensor:
        """Value of a recipe: a private function over stored weights."""
        for f in self.module.functions:
            if f.name == ref.name:
                env: dict[Value, torch.Tensor] = {a: self.value(a) for a in f.args}
                last = {v: op for op in f.body for v in op.operands}
                for op in f.body:
                    if op is not f.return_op:
                        env.update(zip(op.results, evaluate(op, [env[v] for v in op.operands], self.promote)))
                        for v in {v for v in op.operands if last[v] is op}:
                            del env[v]
                return env[f.results[0]]
        raise DmlcError(f"the module has no function @{ref.name} to derive a weight with")


def cut(x: torch.Tensor, mesh: Mesh, sharding: Sharding, coordinates: Mapping[str, int], fill: Any = 0) -> torch.Tensor:
    """A rank's part of a global tensor, padded with `fill`."""
    shape = list(x.shape)
    for d, axes in enumerate(sharding.dims):
        if not axes:
            continue
        start, valid = mesh.window(shape[d], axes, coordinates, sharding.grain(d))
        size = mesh.local_size(shape[d], axes, sharding.grain(d))
        x = pad_to(x.narrow(d, min(start, shape[d]), valid), d, size, fill)
    return x


def join(parts: Mapping[int, torch.Tensor], mesh: Mesh, sharding: Sharding, shape: tuple[int, ...]) -> torch.Tensor:
    """The global tensor from the parts of the ranks that hold it (the first holder of each element wins; replicas are not compared)."""
    out = torch.zeros(shape, dtype=next(iter(parts.values())).dtype)
    for rank in sorted(parts, reverse=True):
        coordinates = mesh.coordinates(rank)
        part, where = parts[rank], []
        for d, axes in enumerate(sharding.dims):
            start, valid = mesh.window(shape[d], axes, coordinates, sharding.grain(d)) if axes else (0, shape[d])
            part = part.narrow(d, 0, valid)
            where.append(slice(start, start + valid))
        out[tuple(where)] = part
    return out


def result_name(function: Function, index: int) -> str:
    return function.result_attrs[index].get("dmlc.name", f"result{index}")

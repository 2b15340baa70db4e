"""Is what `dmlc run` was given fit for the folder? Asked before the ranks start: afterwards each of them would say so, with torchrun's report."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dmlc.codegen.output import sizes
from dmlc.ir.location import DmlcError, Loc
from dmlc.ir.suggest import did_you_mean


def table_of(folder: Path) -> SimpleNamespace:
    """What the folder's table.py says."""
    tree = ast.parse((folder / "table.py").read_text(encoding="utf-8"))
    assigned = {target.id: node.value for node in tree.body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)}
    return SimpleNamespace(**{name: ast.literal_eval(value) for name, value in assigned.items()})


def check_inputs(folder: Path, path: Path) -> None:
    """Raises `DmlcError` unless `path` is an .npz file with an array of the right shape and kind for every input, and for what it overrides."""
    import numpy

    loc = Loc(str(path))
    if not path.is_file():
        raise DmlcError("no such file", loc)
    try:
        with numpy.load(path, allow_pickle=False) as file:
            given = {name: file[name] for name in file.files}
    except Exception:  # numpy's errors on files of other formats have no common class, and some advise to load the file unsafely
        raise DmlcError("not an .npz file of arrays", loc, ("numpy.savez writes one",)) from None
    table = table_of(folder)
    try:
        numbers = sizes.numbers(table, {name: x.shape for name, x in given.items()})
    except sizes.WrongSize as e:
        raise DmlcError(str(e), loc, ("compile again with another --dim or --shape",)) from None
    arguments = table.ARGUMENTS
    wanted = {a["name"]: sizes.row_at(a, numbers) for a in arguments if a["role"] == "input"}
    for name, argument in wanted.items():
        if name not in given:
            raise DmlcError(f"there is no array for the input '{name}'{did_you_mean(name, given)}; it holds: {', '.join(given) or 'nothing'}", loc)
        _fits(given[name], argument, loc)
    for argument in arguments:
        if argument["overridable"] and argument["name"] in given:
            _fits(given[argument["name"]], argument, loc)


def _fits(x: Any, argument: dict[str, Any], loc: Loc) -> None:
    name, shape = argument["name"], tuple(argument["shape"])
    if tuple(x.shape) != shape:
        raise DmlcError(
            f"'{name}' has shape {tuple(x.shape)}; the program is compiled for {shape}", loc, ("compile again with --dim or --shape for another size",)
        )
    if x.dtype.kind in "fc" and "float" not in argument["dtype"]:
        raise DmlcError(f"'{name}' holds {x.dtype}, which would be cut to {argument['dtype']}", loc)


def check_sizes(folder: Path, dims: Sequence[str], shapes: Sequence[str]) -> None:
    """Raises `DmlcError` for sizes of synthetic inputs that the program does not serve."""
    try:
        sizes.asked_for(table_of(folder), dims, shapes)
    except sizes.WrongSize as e:
        raise DmlcError(str(e), Loc(str(folder))) from None


def check_output(path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise DmlcError(f"there is no folder {path.absolute().parent} to save in", Loc(str(path)))


def check_devices(ranks: int) -> None:
    """`--device cuda` needs a GPU a rank on this machine."""
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < ranks:
        raise DmlcError(f"--device cuda needs {ranks} GPUs here, one a rank; there are {found}", notes=("--device cpu runs on this machine's processor",))


def check_kernels(device: str) -> None:
    """`--kernels triton` needs a GPU; without one the kernels' PyTorch text would run and nobody would know."""
    import torch

    if device == "cpu" or not torch.cuda.is_available():
        raise DmlcError("--kernels triton needs a GPU", notes=("--kernels interpret runs the Triton source on a processor",))

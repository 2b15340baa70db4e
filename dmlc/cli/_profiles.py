"""Compiled folders and the profiles of their runs, for commands that compare or keep them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dmlc.ir.binding import at_usual_sizes
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError, Loc


def load_program(folder: Path, sizes: Mapping[str, int] | None = None) -> Module:
    """The per-rank program of a compiled folder; open sizes as `sizes` says, else as it is planned for. Its measured times lie in the folder."""
    import dmlc.ops  # noqa: F401  (registers the op set)
    from dmlc.cost.database import look_in
    from dmlc.ir.parser import parse_module

    path = folder / "program.mlir"
    if not path.is_file():
        raise DmlcError(f"{folder} is not a compiled folder (it has no program.mlir); make one with dmlc compile")
    look_in(folder)
    return at_usual_sizes(parse_module(path.read_text(encoding="utf-8"), str(path)), sizes)


def read_profile(path: Path, folder: Path) -> dict[str, Any]:
    """A `profile.json` of the folder's program. Raises `DmlcError` when there is none, or it is of another program."""
    if path.is_dir():
        path = path / "profile.json"
    loc = Loc(str(path))
    if not path.is_file():
        raise DmlcError("there is no profile; dmlc run OUT --profile writes one", loc)
    try:
        profile = json.loads(path.read_text(encoding="utf-8"))
        known = profile["program"]
    except (ValueError, KeyError, TypeError):
        raise DmlcError("not a profile of a run (dmlc run OUT --profile writes one)", loc) from None
    if known != hashlib.sha256((folder / "model.py").read_bytes()).hexdigest()[:16]:
        raise DmlcError(f"the profile is of another program than the one in {folder}; run it again with --profile", loc)
    return profile


# ---------------------------------------------------------------- where it ran


def device_of(measured: Mapping[str, Any]) -> str | None:
    """The catalogue's name of what a run ran on."""
    if measured["device"] == "cpu":
        return "cpu"
    from dmlc.cluster.catalogue import device_called

    return device_called(measured["name"], measured.get("memory", 0))


def put_on(module: Module, device: str, ranks: int, measured: str | None) -> None:
    """From now on the program is priced on so many of the catalogue's devices, by the measured times with this hash. Those it named before are
    of the device it was on."""
    from dmlc.cluster import Cluster

    module.attrs["dmlc.cluster"] = Cluster.named(device, ranks).to_attr()
    module.attrs.pop("dmlc.measured", None)
    if measured is not None:
        module.attrs["dmlc.measured"] = measured


def price_as_it_ran(module: Module, profile: Mapping[str, Any], asked: bool) -> str:
    """Price the program on the device that a profile is of; gives what the reader should know, "" where that is the plan's. `asked`: the
    measured times it names are those the user gave now, so they stay."""
    from dmlc.cluster import Cluster
    from dmlc.ir.sharding import Mesh

    machine, planned = profile["ranks"][0]["machine"], Cluster.of(module).device.name
    device = device_of(machine)
    if device is None:
        raise DmlcError(f"the profile is of {machine['name']}, which the catalogue of devices does not have; give its cluster with --cluster")
    if device == planned:
        return ""
    put_on(module, device, Mesh.of(module).devices, module.attrs["dmlc.measured"] if asked else None)
    return f"the plan is for {planned}; the profile, and so the prediction, for {device}"

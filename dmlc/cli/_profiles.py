"""Compiled folders and the profiles of their runs, for commands that compare or keep them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError, Loc


def load_program(folder: Path) -> Module:
    """The per-rank program of a compiled folder. Its measured times lie in the folder."""
    import dmlc.ops  # noqa: F401  (registers the op set)
    from dmlc.cost.database import look_in
    from dmlc.ir.parser import parse_module

    path = folder / "program.mlir"
    if not path.is_file():
        raise DmlcError(f"{folder} is not a compiled folder (it has no program.mlir); make one with dmlc compile")
    look_in(folder)
    return parse_module(path.read_text(encoding="utf-8"), str(path))


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

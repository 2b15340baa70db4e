"""Files of measured times, found by the hash of what is in them.

A database is one SQLite file. `dmlc.measured` in a text names its content, so the same content serves wherever the file lies: where the
command line showed it (`--measured`), beside the text, in `$DMLC_MEASURED`, or in `~/.cache/dmlc/measured`.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from dmlc.cost.measured import Features, Measurements
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError, Loc

COLUMNS = {
    "machine": "key TEXT, value TEXT",
    "ops": "key TEXT, ps INTEGER",
    "samples": "kind TEXT, dtype TEXT, features TEXT, ps INTEGER",
    "collectives": "kind TEXT, ranks INTEGER, link TEXT, bytes INTEGER, ps INTEGER",
    "cores": "link TEXT, percent INTEGER",
    "overlaps": "link TEXT, computing INTEGER, moving INTEGER",
    "calls": "link TEXT, ps INTEGER",
}
VERSION = 2

_KNOWN: dict[str, Measurements] = {}  # by hash: what this process has read; content never changes under its hash
_PLACES: list[Path] = []  # folders of texts that were read: their databases lie beside them


def read(path: Path) -> Measurements:
    """The content of a database. Raises `DmlcError` when the file is none."""
    loc = Loc(str(path))
    if not path.is_file():
        raise DmlcError("there is no such file of measured times (dmlc profile -o makes one)", loc)
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
            version = file.execute("PRAGMA user_version").fetchone()[0]
            if version != VERSION:
                raise DmlcError(f"the file is no database of measured times of this version ({VERSION}); its version is {version}", loc)
            rows = {name: file.execute(f"SELECT * FROM {name}").fetchall() for name in COLUMNS}
    except sqlite3.DatabaseError:
        raise DmlcError("not a database of measured times (dmlc profile makes one)", loc) from None
    return _from_rows(rows)


def _from_rows(rows: dict[str, list[tuple]]) -> Measurements:
    collectives: dict[tuple[str, int, str], list[tuple[int, int]]] = {}
    for kind, ranks, link, size, ps in rows["collectives"]:
        collectives.setdefault((kind, ranks, link), []).append((size, ps))
    samples: dict[tuple[str, str], list[tuple[Features, int]]] = {}
    for kind, dtype, features, ps in rows["samples"]:
        samples.setdefault((kind, dtype), []).append((tuple(json.loads(features)), ps))
    overlaps = {link: (computing, moving) for link, computing, moving in rows["overlaps"]}
    return Measurements(dict(rows["ops"]), collectives, samples, dict(rows["cores"]), overlaps, dict(rows["calls"]), dict(rows["machine"]))


def write(measured: Measurements, path: Path) -> None:
    """Put the content into a file, at once: a reader sees the old one or the new one."""
    beside = path.with_name(f".{path.name}-{os.getpid()}")
    beside.unlink(missing_ok=True)
    with closing(sqlite3.connect(beside)) as file:
        for name, columns in COLUMNS.items():
            file.execute(f"CREATE TABLE {name} ({columns})")
            marks = ", ".join("?" * (columns.count(",") + 1))
            file.executemany(f"INSERT INTO {name} VALUES ({marks})", measured.rows()[name])
        file.execute(f"PRAGMA user_version = {VERSION}")
        file.commit()
    os.replace(beside, path)


def add(measured: Measurements, path: Path) -> Measurements:
    """Put more into a database, which is made where there is none; gives all that it then holds."""
    whole = read(path).merged(measured) if path.exists() else measured
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    write(whole, path)
    return whole


# ---------------------------------------------------------------- by hash


def store() -> Path:
    """The folder of this user's databases."""
    return Path(os.environ.get("DMLC_MEASURED") or Path.home() / ".cache" / "dmlc" / "measured")


def file_name(name: str) -> str:
    return f"{name}.measured"


def keep(measured: Measurements, folder: Path | None = None) -> Path:
    """Write the content under its hash into a folder (default: the store) and give the file."""
    folder = folder if folder is not None else store()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(measured.hash)
    if not path.exists():
        write(measured, path)
    return path


def keep_named(module: Module, folder: Path) -> None:
    """Write what the module's text names into a folder that will hold the text."""
    measured = Measurements.of(module)
    if measured is not None:
        keep(measured, folder)


def files_of(module: Module) -> dict[str, bytes]:
    """The file that goes with the module's text: its name and content; none where the text names no measurements."""
    with tempfile.TemporaryDirectory() as folder:
        keep_named(module, Path(folder))
        return {p.name: p.read_bytes() for p in Path(folder).iterdir()}


def show(given: str) -> str:
    """What `--measured` was given, a file or a hash: its hash, which from now on this process can find."""
    path = Path(given)
    if not path.exists() and (store() / file_name(given)).is_file():
        path = store() / file_name(given)
    measured = read(path)
    _KNOWN[measured.hash] = measured
    return measured.hash


def look_in(folder: Path) -> None:
    """Databases may lie in this folder too: that of a text."""
    if folder not in _PLACES:
        _PLACES.append(folder)


def find(name: Any) -> Measurements:
    """The measurements with this hash. Raises `DmlcError` when they are in none of the places."""
    if name not in _KNOWN:
        places = [*_PLACES, store()]
        path = next((p for folder in places if (p := folder / file_name(name)).is_file()), None)
        if path is None:
            notes = ("give the file with --measured, or put it beside the text", f"looked in {', '.join(map(str, places))}")
            raise DmlcError(f"the measured times {name} that the text asks for (dmlc.measured) are not here", notes=notes)
        measured = read(path)
        if measured.hash != name:
            raise DmlcError(f"the file has other measured times in it ({measured.hash}) than its name says", Loc(str(path)))
        _KNOWN[name] = measured
    return _KNOWN[name]

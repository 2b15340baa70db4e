"""After a run: its step beside the prediction, and what a profile of it adds to a database of measured times."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dmlc.cli._profiles import device_of, load_program, put_on, read_profile
from dmlc.ir.location import DmlcError

if TYPE_CHECKING:
    from dmlc.ir.core import Module

PICO = 10**12


class Watch:
    """Asks a run for its step's time, by a file that `environment` names, and reports on it."""

    def __init__(self, folder: Path, ranks: int, measured: str | None, profiles: bool, profile_to: str | None):
        if profiles and measured is not None and not measured:
            raise DmlcError("--measured takes a file of measured times")
        self.folder, self.ranks, self.measured, self.profiles = folder, ranks, measured, profiles
        self.profile = Path(profile_to) if profile_to else folder / "profile.json"
        self.known = self._known()
        self.before = self._written()

    def _known(self) -> str | None:
        """Hash of what predictions are made by, None for the plan's own prices; a file that a profile will make is not there yet."""
        if self.measured is None or (self.profiles and not Path(self.measured).exists()):
            return None
        from dmlc.cost.database import show

        return show(self.measured)

    def _written(self) -> int | None:
        """When the profile was written."""
        return self.profile.stat().st_mtime_ns if self.profile.exists() else None

    def __enter__(self) -> Watch:
        self._scratch = tempfile.TemporaryDirectory()
        self.file = Path(self._scratch.name) / "step.json"
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self._scratch.cleanup()

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "DMLC_STEP_FILE": str(self.file)}

    def report(self, status: int) -> int:
        """Say what is known of the step; gives `status` on."""
        if status == 0 and self.file.exists():
            print(step_line(self.folder, self.ranks, json.loads(self.file.read_text()), self.known))
            if self.profiles and self.measured is not None:
                self._add()
        return status

    def _add(self) -> None:
        from dmlc.cost.database import add
        from dmlc.measure.fold import measurements_of

        assert self.measured is not None
        if self._written() == self.before:
            raise DmlcError(f"the run wrote no profile, so nothing is added to {self.measured}")
        found = measurements_of(read_profile(self.profile, self.folder), load_program(self.folder))
        add(found, Path(self.measured))
        print(f"{len(found.ops)} different ops and {sum(map(len, found.collectives.values()))} collectives added to {self.measured}")


# ---------------------------------------------------------------- the line


@dataclass(frozen=True)
class Predicted:
    """Seconds of a step and of its bound; the share that the step may be off by; what the reader must know of it."""

    step: float
    bound: float
    error: float
    note: str = ""


def step_line(folder: Path, ranks: int, measured: dict[str, Any], known: str | None) -> str:
    """`step: predicted X ms (± e %), measured Y ms, bound Z ms`, or why there is no prediction."""
    predicted, why = prediction_for(folder, ranks, measured, known)
    seconds = f"measured {_ms(measured['seconds'])} (median of {measured['count']})"
    if predicted is None:
        return f"step: {seconds}; {why}"
    off = f"{100 * predicted.error:.0f} %"
    return f"step: predicted {_ms(predicted.step)} (± {off}), {seconds}, bound {_ms(predicted.bound)}" + (f"; {predicted.note}" if predicted.note else "")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def prediction_for(folder: Path, ranks: int, measured: dict[str, Any], known: str | None) -> tuple[Predicted | None, str]:
    """The prediction for the device of the run: the plan's where it was made for that, else the program simulated there; or why there is none."""
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8")).get("predicted")
    if plan is None:
        return None, "this folder has no prediction; compile it again"
    if not measured.get("as_compiled", True):
        return None, "no prediction: it ran with another batch than it was compiled for"
    device = device_of(measured)
    if device is None:
        return None, f"no prediction: the plan is for {plan['target']}, and {measured['name']} is not in the catalogue of devices"
    sizes = measured.get("sizes") or None
    if device == plan["target"] and known is None and sizes is None:
        return Predicted(plan["step_ps"] / PICO, plan["bound_ps"] / PICO, plan["error"]), ""
    module = load_program(folder, sizes)
    note = "" if device == plan["target"] else f"the plan is for {plan['target']}, the prediction for {device}, where it ran"
    return simulated(module, None if device == plan["target"] else device, ranks, known, note), ""


def simulated(module: Module, device: str | None, ranks: int, known: str | None, note: str) -> Predicted:
    """The program on the cluster it is for (device None) or on the usual one of another device; by measured times where there are some."""
    from dmlc.cost import CostModel
    from dmlc.simulate.accuracy import error_of
    from dmlc.simulate.step import simulate_step

    if device is not None:
        put_on(module, device, ranks, known)
    elif known is not None:
        module.attrs["dmlc.measured"] = known
    step = simulate_step(module, CostModel.of(module))
    return Predicted(step.time / PICO, step.bounds.best / PICO, error_of(step.sources)["share"], note)

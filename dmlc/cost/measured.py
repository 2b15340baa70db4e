"""Measured times of ops and collectives: a database, by content. The text names one in `dmlc.measured`."""

from __future__ import annotations

from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError


class Measurements:
    """Times that were measured on a device."""

    @classmethod
    def of(cls, module: Module) -> Measurements | None:
        """The measurements that the module's text names; None when it names none."""
        if "dmlc.measured" in module.attrs:
            raise DmlcError(f"the measurements {module.attrs['dmlc.measured']} are not here")
        return None

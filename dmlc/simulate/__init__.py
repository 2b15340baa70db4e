"""Decisions and what they cost: choices, the graph of units, liveness, the event simulation, orders."""

from dmlc.simulate.choice import Choice
from dmlc.simulate.units import UnitGraph

__all__ = ["Choice", "UnitGraph"]

"""What ops and collectives cost: time, bytes, operations, and how that is known."""

from dmlc.cost.cost import Cost
from dmlc.cost.model import CostModel

__all__ = ["Cost", "CostModel"]

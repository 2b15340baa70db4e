"""What a pass is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

if TYPE_CHECKING:
    from dmlc.ir.core import Module
    from dmlc.passmanager.context import Context

Numerics = Literal["exact", "reordered", "lower-precision"]


@dataclass(frozen=True)
class Pass:
    """A transformation of a module, in place.

    A subclass is a frozen dataclass in a file of its own under `passes/`; its fields are its options
    (`max_ops: int = 32` is written `fuse{max-ops=32}`). Whatever else steers it stands in the module's text.

    name      kebab-case; the file has the same name in snake_case
    numerics  exact: the same values bit for bit, or equal but for the sign of a NaN; reordered: floats are summed in another order;
              lower-precision: values may be rounded to fewer bits
    requires  conditions (`dmlc.passmanager.contract`) that must hold before
    ensures   conditions that hold afterwards
    decides   it weighs what is good and leaves what is right to others: a size that is open until the program runs is its representative value there
    results   kept: the program returns what it returned; changed: it returns other things, and what it still returns is the same
    """

    name: ClassVar[str] = ""
    numerics: ClassVar[Numerics] = "exact"
    requires: ClassVar[tuple[str, ...]] = ()
    ensures: ClassVar[tuple[str, ...]] = ()
    decides: ClassVar[bool] = False
    results: ClassVar[Literal["kept", "changed"]] = "kept"

    def __init_subclass__(cls) -> None:
        if cls.numerics not in get_args(Numerics):
            raise TypeError(f"{cls.__name__}.numerics is '{cls.numerics}'; it is one of {', '.join(get_args(Numerics))}")

    def run(self, module: Module, context: Context) -> bool:
        """Transform `module` in place; True if anything changed. Raises `DmlcError` with a location when the module cannot be compiled."""
        raise AssertionError(f"{type(self).__name__} does not define run")

    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, by field name."""
        import dataclasses

        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}

"""How a figure of a report comes about: an operation on named values that gives the figure again, down to their origin.

A page shows it where a reader clicks the figure. The page works it out by itself, with the operations of the same names
in `formats/page_parts/formulas.js`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType

CLOSE = 1e-12  # to which a page and Python agree on a figure that is no whole number

Number = int | float
_WHOLE = ("sum", "times", "max", "difference", "whole")  # that whole numbers never leave


@dataclass(frozen=True, slots=True)
class Witness:
    """A named value: `operation` on `parts`, or one that is given, with its origin. `unit` is a base unit, or empty."""

    name: str
    value: Number
    unit: str = ""
    origin: str = ""
    operation: str = ""
    parts: tuple[Witness, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether it is made of whole numbers alone, so that every digit counts."""
        if not self.parts:
            return isinstance(self.value, int)
        return self.operation in _WHOLE and all(part.is_whole for part in self.parts)

    def gives(self, figure: Number) -> bool:
        """Whether this is where the figure comes from: equal to the last digit, or to 1e-12 where it is no integer."""
        if isinstance(figure, int) and isinstance(self.value, int):
            return figure == self.value
        return math.isclose(figure, self.value, rel_tol=CLOSE)


def _product(values: Sequence[Number]) -> Number:
    return reduce(lambda product, value: product * value, values)


def _plain_sum(values: Sequence[Number]) -> Number:
    return reduce(lambda total, value: total + value, values)  # in order, as a page adds


OPERATIONS: Mapping[str, Callable[[Sequence[Number]], Number]] = MappingProxyType(
    {
        "sum": _plain_sum,
        "times": _product,
        "max": max,
        "difference": lambda values: values[0] - _plain_sum(values[1:]),
        "quotient": lambda values: values[0] / values[1],
        "whole": lambda values: int(values[0] // values[1]),
        "rounded": lambda values: float(f"{values[0]:.3g}"),
    }
)


def worked_out(operation: str, name: str, parts: Sequence[Witness], unit: str = "", origin: str = "") -> Witness:
    """The figure that an operation gives."""
    value = OPERATIONS[operation]([part.value for part in parts])
    return Witness(name, value, unit, origin, operation, tuple(parts))


def share_of(part: Witness, whole: Witness) -> Witness | None:
    """A part over the whole; of nothing there is none."""
    return worked_out("quotient", "share", [part, whole]) if whole.value else None

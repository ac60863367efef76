"""Adding up figures that may be unknown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def known_sum(values: Iterable[Number | None]) -> Number | None:
    """The sum; unknown as soon as one part is, and unknown of nothing at all."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) if known and len(known) == len(listed) else None


def counted_or_unknown(counted: int | None, unpriced_ops: int | None) -> int | None:
    """A sum over the ops that have a price; unknown where others ran and it is zero: their work may be anything."""
    return None if not counted and unpriced_ops else counted


def priced_sum(values: Iterable[int | None]) -> int | None:
    """Of such sums: what is unknown leaves a lower bound, and nothing known where the others add up to zero."""
    listed = list(values)
    known = sum(value for value in listed if value is not None)
    return None if None in listed and not known else known

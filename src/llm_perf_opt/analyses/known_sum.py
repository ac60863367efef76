"""Adding up figures that may be unknown."""

from __future__ import annotations

from collections.abc import Iterable


def known_sum(values: Iterable[int | None]) -> int | None:
    """The sum; unknown as soon as one part is, and unknown of nothing at all."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) if known and len(known) == len(listed) else None

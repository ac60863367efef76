"""A named amount of memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerm:
    """One summand of a device's memory, in words that a table can print."""

    name: str
    bytes: int


def total_bytes(terms: Iterable[MemoryTerm]) -> int:
    """All of them together."""
    return sum(term.bytes for term in terms)

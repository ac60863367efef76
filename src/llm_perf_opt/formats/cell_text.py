"""How a cell reads to a person, and what programs call its column."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import count
from types import MappingProxyType

from llm_perf_opt.core import units
from llm_perf_opt.core.report import Cell, Column, Kind, Table

UNKNOWN = "?"

_FORMATS: MappingProxyType[Kind, Callable[[float], str]] = MappingProxyType(
    {
        Kind.COUNT: units.format_count,
        Kind.FLOPS: units.format_flops,
        Kind.MACS: units.format_macs,
        Kind.BYTES: units.format_bytes,
        Kind.SECONDS: units.format_seconds,
        Kind.FLOPS_PER_S: units.format_flops_per_s,
        Kind.BYTES_PER_S: units.format_bytes_per_s,
        Kind.FLOPS_PER_BYTE: units.format_flops_per_byte,
        Kind.RATIO: units.format_ratio,
    }
)
_BASE_UNITS: MappingProxyType[Kind, str] = MappingProxyType(
    {
        Kind.FLOPS: "FLOP",
        Kind.MACS: "MAC",
        Kind.BYTES: "B",
        Kind.SECONDS: "s",
        Kind.FLOPS_PER_S: "FLOP/s",
        Kind.BYTES_PER_S: "B/s",
        Kind.FLOPS_PER_BYTE: "FLOP/B",
        Kind.RATIO: "of 1",
    }
)


def row_texts(table: Table, row: Sequence[Cell]) -> list[str]:
    """Each cell with its unit; what is not known reads `?`, never 0."""
    return [cell_text(cell, column.kind) for column, cell in zip(table.columns, row, strict=True)]


def cell_text(cell: Cell, kind: Kind) -> str:
    """`1.14 TFLOP`: three digits and a unit; words as they are; `?` for what is not known."""
    if cell is None:
        return UNKNOWN
    return cell if isinstance(cell, str) else _FORMATS[kind](cell)


def exact_text(cell: float, kind: Kind) -> str:
    """`1,139,967,033,344 FLOP`: every digit, in the base unit."""
    return f"{cell:,} {_BASE_UNITS.get(kind, '')}".rstrip()


# Counts and words need no unit; "bytes moved" already has one.
UNIT_OF: dict[Kind, str] = {kind: kind.value for kind in Kind if kind not in (Kind.TEXT, Kind.COUNT)}


def column_keys(columns: Sequence[Column]) -> list[str]:
    """One key per column, all different: `activations` of kind bytes -> `activations_bytes`."""
    keys: dict[str, None] = {}
    for column in columns:
        wanted = _key(column)
        numbered = (wanted if number == 1 else f"{wanted}_{number}" for number in count(1))
        keys[next(key for key in numbered if key not in keys)] = None
    return list(keys)


def _key(column: Column) -> str:
    words = "_".join(re.findall(r"\w+", column.name.lower())) or "column"
    unit = UNIT_OF.get(column.kind)
    return words if unit is None or f"_{unit}_" in f"_{words}_" else f"{words}_{unit}"

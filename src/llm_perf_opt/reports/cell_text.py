"""How a row of cells reads to a person, in every format that is meant for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from llm_perf_opt import units
from llm_perf_opt.document import Cell, Kind, Table

UNKNOWN = "?"

_FORMATS: MappingProxyType[Kind, Callable[[float], str]] = MappingProxyType(
    {
        Kind.COUNT: units.format_count,
        Kind.FLOPS: units.format_flops,
        Kind.MACS: units.format_macs,
        Kind.BYTES: units.format_bytes,
        Kind.SECONDS: units.format_seconds,
        Kind.FLOPS_PER_S: units.format_flops_per_s,
    }
)


def row_texts(table: Table, row: Sequence[Cell]) -> list[str]:
    """Each cell with its unit; what is not known reads `?`, never 0."""
    return [_cell_text(cell, column.kind) for column, cell in zip(table.columns, row, strict=True)]


def _cell_text(cell: Cell, kind: Kind) -> str:
    if cell is None:
        return UNKNOWN
    return cell if isinstance(cell, str) else _FORMATS[kind](cell)

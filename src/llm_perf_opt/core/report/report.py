"""The report: tables of raw numbers with their kind, charts, notes, at most one picture, and chapters of the same.

Cells hold base units (FLOPs, bytes, seconds), so a format decides how a number is printed and JSON loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from llm_perf_opt.core.report.cells import Cell, Kind
from llm_perf_opt.core.report.chart import Chart
from llm_perf_opt.core.report.graph_view import GraphView


class Level(StrEnum):
    """How a note is meant: as an explanation, or as a hole in the result."""

    INFO = "info"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading and what its cells are."""

    name: str
    kind: Kind = Kind.TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells under typed columns; `footer` is the row of totals, or empty.

    Two columns of one name, a row of the wrong length, or a word among numbers is refused where it is born.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    footer: tuple[Cell, ...] = ()

    def __post_init__(self) -> None:
        if len({column.name for column in self.columns}) < len(self.columns):
            raise ValueError(f"table {self.title!r} has two columns of one name")
        for row in (*self.rows, *((self.footer,) if self.footer else ())):
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r} has {len(self.columns)} columns, a row has {len(row)} cells")
            for column, cell in zip(self.columns, row, strict=True):
                if cell is not None and isinstance(cell, str) != (column.kind is Kind.TEXT):
                    raise ValueError(f"table {self.title!r}, column {column.name!r} ({column.kind}) got {cell!r}")


@dataclass(frozen=True, slots=True)
class Note:
    """One sentence under the tables."""

    text: str
    level: Level = Level.INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything one command has to say, ready for any format; `chapters` are reports of their own inside it."""

    title: str
    tables: tuple[Table, ...] = ()
    notes: tuple[Note, ...] = ()
    graph: GraphView | None = None
    charts: tuple[Chart, ...] = ()
    chapters: tuple[Report, ...] = ()

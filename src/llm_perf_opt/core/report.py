"""What an analysis hands to a format: tables of raw numbers, charts as data, notes, a picture, chapters.

Cells and axes hold base units (FLOPs, bytes, seconds): a format decides how a number is printed, and JSON loses
nothing. A row of the wrong length, a value that is not finite or a line that runs backwards is refused on creation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Protocol, TypeVar

from llm_perf_opt.core.graph_view import GraphView
from llm_perf_opt.core.units import format_count, format_ratio
from llm_perf_opt.core.witness import Witness

Cell = str | int | float | None  # None: not known, which is never the same as 0
Item = TypeVar("Item")


class Kind(StrEnum):
    """What the cells of a column are, hence how they are printed and in which unit JSON holds them."""

    TEXT = "text"
    COUNT = "count"
    FLOPS = "flops"
    MACS = "macs"
    BYTES = "bytes"
    SECONDS = "seconds"
    FLOPS_PER_S = "flops_per_s"
    BYTES_PER_S = "bytes_per_s"
    FLOPS_PER_BYTE = "flops_per_byte"
    RATIO = "ratio"  # 1 is the whole; printed as per cent


LINE_STYLES = ("line", "step", "scatter", "dashed")


@dataclass(frozen=True, slots=True)
class Axis:
    """What runs along one side, in base units. The labels of a logarithmic axis are powers of `base`; 2 for bytes."""

    name: str
    kind: Kind
    is_log: bool = False
    base: int = 10


@dataclass(frozen=True, slots=True)
class Series:
    """One value per category of a bar chart; None draws nothing and is shown as unknown."""

    name: str
    values: tuple[int | float | None, ...]

    def __post_init__(self) -> None:
        _need_finite(self.name, (value for value in self.values if value is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Horizontal bars, one group per category; stacked where the series are parts of one whole.

    `interval` names the series that are low, expected (where it is known) and high of one figure: they are drawn as
    one bar with an interval.
    """

    title: str
    categories: tuple[str, ...]
    series: tuple[Series, ...]
    kind: Kind
    is_stacked: bool = False
    interval: tuple[str, ...] = ()
    caption: str = ""

    def __post_init__(self) -> None:
        for series in self.series:
            if len(series.values) != len(self.categories):
                raise ValueError(
                    f"chart {self.title!r} has {len(self.categories)} categories, "
                    f"series {series.name!r} has {len(series.values)} values"
                )
            if self.is_stacked and any(value is not None and value < 0 for value in series.values):
                raise ValueError(f"chart {self.title!r} stacks {series.name!r}, which has a part below zero")


@dataclass(frozen=True, slots=True)
class Line:
    """Points in order of x. A step line holds its value until the next point; a scatter joins nothing, in any order.

    Lines of one `family` have one colour; without it each line has its own.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    style: str = "line"  # one of LINE_STYLES
    family: str = ""

    def __post_init__(self) -> None:
        if self.style not in LINE_STYLES:
            raise ValueError(f"line {self.name!r} has style {self.style!r}, known are {', '.join(LINE_STYLES)}")
        _need_finite(self.name, (value for point in self.points for value in point))
        if self.style != "scatter" and any(after[0] < before[0] for before, after in pairwise(self.points)):
            raise ValueError(f"line {self.name!r} runs backwards: its points must be in order of x")


@dataclass(frozen=True, slots=True)
class Mark:
    """A point worth naming."""

    x: float
    y: float
    text: str

    def __post_init__(self) -> None:
        _need_finite(self.text, (self.x, self.y))


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """Curves over one axis: a memory timeline, a roofline, a distribution."""

    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the axis in one lane."""

    lane: str
    name: str
    start: float
    end: float

    def __post_init__(self) -> None:
        _need_finite(self.name, (self.start, self.end))
        if self.end < self.start:
            raise ValueError(f"span {self.name!r} ends at {self.end}, before it starts at {self.start}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanChart:
    """What lasted from where to where: a waterfall of stages."""

    title: str
    axis: Axis
    spans: tuple[Span, ...]
    caption: str = ""


Chart = BarChart | LineChart | SpanChart


def _need_finite(name: str, values: Iterable[float]) -> None:
    for value in values:
        if not math.isfinite(value):
            raise ValueError(f"{name!r} has the value {value}, which no axis can hold")


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

    `witnesses` says how the cell of a row and column comes about, where the footer is the row after the last;
    `formulas` how a column follows from others of the same row, `{"of it": ("quotient", "needed", "memory")}`, or from
    its total, `("share", "FLOPs")`; of all other figures `origin` says where they are from. Two columns of one name, a
    row of the wrong length, or a word among numbers is refused where it is born.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    footer: tuple[Cell, ...] = ()
    witnesses: Callable[[int, int], Witness | None] | None = field(default=None, compare=False, repr=False)
    formulas: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)
    origin: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if len({column.name for column in self.columns}) < len(self.columns):
            raise ValueError(f"table {self.title!r} has two columns of one name")
        for row in (*self.rows, *((self.footer,) if self.footer else ())):
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r} has {len(self.columns)} columns, a row has {len(row)} cells")
            for column, cell in zip(self.columns, row, strict=True):
                if cell is not None and isinstance(cell, str) != (column.kind is Kind.TEXT):
                    raise ValueError(f"table {self.title!r}, column {column.name!r} ({column.kind}) got {cell!r}")


def table_of(
    title: str,
    items: Iterable[Item],
    cells: Mapping[Column, Callable[[Item], Cell]],
    *,
    total: Item | None = None,
    witnesses: Mapping[str, Callable[[Item], Witness | None]] | None = None,
    formulas: Mapping[str, tuple[str, ...]] | None = None,
    origin: str = "",
) -> Table:
    """A row for each item: every column says how its cell is read from one. `total` is the item of the last row.

    `witnesses`: name of a column -> how the cell of an item comes about, or None.
    """
    items = (*items, *(() if total is None else (total,)))
    witness_of = [(witnesses or {}).get(column.name) for column in cells]

    def witness(row: int, place: int) -> Witness | None:
        known = witness_of[place]
        return None if known is None else known(items[row])

    return Table(
        title=title,
        columns=tuple(cells),
        rows=tuple(tuple(cell(item) for cell in cells.values()) for item in items[: len(items) - (total is not None)]),
        footer=() if total is None else tuple(cell(total) for cell in cells.values()),
        witnesses=witness if witnesses else None,
        formulas=formulas or {},
        origin=origin,
    )


def known_table_of(title: str, items: Sequence[Item], cells: Mapping[Column, Callable[[Item], Cell]]) -> Table:
    """The same without columns of which nothing is known for any item."""
    known = {column: cell for column, cell in cells.items() if any(cell(item) is not None for item in items)}
    return table_of(title, items, known)


@dataclass(frozen=True, slots=True)
class Listing:
    """Lines that another tool printed, shown as they are, in type of one width."""

    title: str
    text: str

    @property
    def lines(self) -> tuple[str, ...]:
        """One by one; only a line feed ends a line, since a name may hold any other separator."""
        return tuple(self.text.rstrip("\n").split("\n"))


@dataclass(frozen=True, slots=True)
class Note:
    """One sentence under the tables."""

    text: str
    level: Level = Level.INFO


ANSWER_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything one command has to say, ready for any format; `chapters` are reports of their own inside it.

    `answer` is what a reader must know first, in at most three lines: does it fit, how fast, bottleneck, what next.
    """

    title: str
    answer: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[Note, ...] = ()
    graph: GraphView | None = None
    charts: tuple[Chart, ...] = ()
    chapters: tuple[Report, ...] = ()
    listings: tuple[Listing, ...] = ()

    def __post_init__(self) -> None:
        if len(self.answer) > ANSWER_LINES:
            raise ValueError(f"the answer of {self.title!r} has {len(self.answer)} lines, more than {ANSWER_LINES}")


TEXTS = ("model", "device", "plan", "weights", "workload")  # what points are filtered and coloured by
SIZES = ("device_count", "global_batch", "context", "watts")
BANDS = ("ttft_s", "tpot_s", "run_s", "tokens_per_s", "requests_per_s", "token_cost", "request_cost")  # low and high
FIELDS = (*TEXTS, *SIZES, *(f"{name}_{edge}" for name in BANDS for edge in ("low", "high")))


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView:
    """Points as columns of `FIELDS`, one list for each; `left_out` says how many of all are not drawn, and why."""

    title: str
    points: dict[str, list[str | int | float | None]]
    total: int
    currency: str
    is_pages: bool  # whether a request is a page: the workload has images
    left_out: str
    report: Report  # tables for people and screen readers

    @property
    def shown(self) -> int:
        """How many points are drawn."""
        return len(self.points[FIELDS[0]])


_NAMED = 2  # stages


def largest_text(figures: Mapping[str, int | float | None]) -> str:
    """`sam 66 %, prefill 23 %`: the largest parts of their sum; empty where one is not known, or all are nothing."""
    known = {name: value for name, value in figures.items() if value is not None}
    total = sum(known.values())
    if not total or len(known) < len(figures):
        return ""
    first = sorted(known, key=lambda name: -known[name])[:_NAMED]
    return ", ".join(f"{name} {share_text(known[name] / total)}" for name in first if known[name])


class _Stage(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def phase(self) -> str: ...


def stage_names(stages: Sequence[_Stage]) -> list[str]:
    """Their names; of a stage that several phases run, with the phase: `vision (decode)`."""
    times = Counter(stage.name for stage in stages)
    return [f"{stage.name} ({stage.phase})" if times[stage.name] > 1 else stage.name for stage in stages]


def share_text(share: float) -> str:
    """`66 %`; what is nearly all or nearly nothing is `over 99 %` and `under 1 %`, so that 100 % is all of it."""
    percent = round(share * 100)
    if percent == 100 and share < 1:
        return "over 99 %"
    return "under 1 %" if percent == 0 and share > 0 else f"{percent} %"


def change_text(before: float | None, after: float | None, shown: Callable[[float], str]) -> str:
    """`1.48 TFLOP in both`, or `1.48 TFLOP -> 1.60 TFLOP (+8.1 %)`."""
    if before is None or after is None:
        return f"{'?' if before is None else shown(before)} -> {'?' if after is None else shown(after)}"
    if before == after:
        return f"{shown(before)} in both"
    change = f" ({'+' if after > before else ''}{format_ratio(after / before - 1)})" if before else ""
    return f"{shown(before)} -> {shown(after)}{change}"


def three_digits(number: float) -> str:
    """`10,400`, `86.1`, `0.106`: three significant digits, without an exponent."""
    return format_count(float(f"{number:.3g}"))


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`1 plan`, `3 plans`."""
    return f"{format_count(count)} {noun if count == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {format_count(more)} more" if more > 0 else "")

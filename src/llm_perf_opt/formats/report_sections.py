"""A report as the page shows it: sections with addresses, cells with their exact value, charts drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from markupsafe import Markup, escape

from llm_perf_opt.core.graph_view import GraphView
from llm_perf_opt.core.report import Cell, Chart, Column, Kind, Level, LineChart, Listing, Note, Report, Table
from llm_perf_opt.core.witness import Number, Witness, worked_out
from llm_perf_opt.formats.chart_svg import chart_svg
from llm_perf_opt.formats.chart_table import has_few_points, short_tables
from llm_perf_opt.formats.picture import Hues, hues_of
from llm_perf_opt.formats.svg_format import SvgDrawing
from llm_perf_opt.formats.visible_text import BASE_UNITS, UNKNOWN, cell_text, exact_text, shortened, visible

_DEEPEST = 6
_PICTURE_WIDTH = 938.0  # of the column in a window of 1280 pixels
_LONGEST_CELL = 160  # characters; the tooltip has them all
_LONGEST_TITLE = 160
_LONGEST_ENTRY = 80
_SHORT_PATH = 16
_LONG_CELL = 36  # characters, from which on a column must not become narrow
_TALL = 14  # rows, from which on a table scrolls in a window of its own
_BREAKS = re.compile(r"(?<=[_/])(?=\w)|(?<=\.)(?=[^\W\d])|(?<=\D\.)(?=\d)")
_BLANK = "(no title)"
_MANY_POINTS = "The formats json and csv have every point."


@dataclass(frozen=True, slots=True)
class ShownCell:
    """A cell's text, its tooltip and its classes; `figure` is the number of its witness, or None."""

    text: str | Markup
    exact: str
    classes: str
    figure: int | None = None
    value: Number | None = None  # of a figure


@dataclass(frozen=True, slots=True)
class ShownFigure:
    """A figure that can be clicked, by what it is called, and how it comes about."""

    label: str
    witness: Witness


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table with its address, if it has a heading of its own."""

    id: str
    title: str
    columns: tuple[ShownCell, ...]
    rows: tuple[tuple[ShownCell, ...], ...]
    footer: tuple[ShownCell, ...]
    is_tall: bool


@dataclass(frozen=True, slots=True)
class ShownChart:
    """Two drawings of a chart, the words under it, and the same as tables."""

    id: str
    title: str
    wide: Markup
    narrow: Markup
    words: tuple[str, ...]
    tables: tuple[ShownTable, ...]


@dataclass(frozen=True, slots=True)
class ShownNote:
    """A note; a warning has an address."""

    text: str
    is_warning: bool
    id: str


@dataclass(frozen=True, slots=True)
class ShownListing:
    """Lines of another tool, with an address."""

    id: str
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A report or a chapter; `level` is its heading's. The first table comes before charts.

    Below an answer in words the first chart comes before it.
    A chapter shows its first table, its first chart and its warnings; the rest is behind a line that names it.
    """

    id: str
    title: str
    level: int
    charts: tuple[ShownChart, ...]
    tables: tuple[ShownTable, ...]
    picture: Markup | None
    picture_title: str
    notes: tuple[ShownNote, ...]
    sections: tuple[Section, ...]
    listings: tuple[ShownListing, ...] = ()
    answer: tuple[str, ...] = ()
    figures: tuple[ShownFigure, ...] = ()  # of the whole report, by their numbers

    @property
    def inner_level(self) -> int:
        """Of the headings of its charts and tables."""
        return min(self.level + 1, _DEEPEST)

    @property
    def is_folded(self) -> bool:
        """Whether there is something to fold away: only in chapters, and not for a picture alone."""
        return self.level > 1 and bool(self.folded_titles or self.explanations) and bool(self.tables or self.charts)

    @property
    def folded_titles(self) -> tuple[str, ...]:
        """Of what a chapter folds away."""
        items: list[ShownTable | ShownChart | ShownListing | Section] = [*self.tables[1:], *self.charts[1:]]
        items += [*self.listings, *self.sections]
        return (*(item.title for item in items if item.title), *((self.picture_title,) if self.picture else ()))

    @property
    def explanations(self) -> tuple[ShownNote, ...]:
        """The notes that are no warnings."""
        return tuple(note for note in self.notes if not note.is_warning)

    @property
    def own_warnings(self) -> tuple[ShownNote, ...]:
        """Without the sections inside."""
        return tuple(note for note in self.notes if note.is_warning)

    def warnings(self) -> int:
        """In it and everything inside it."""
        return sum(note.is_warning for note in self.notes) + sum(section.warnings() for section in self.sections)


@dataclass(frozen=True, slots=True)
class ContentsEntry:
    """A line of the table of contents."""

    id: str
    title: str
    warnings: int
    entries: tuple[ContentsEntry, ...] = ()


def sections_of(report: Report, *, is_traced: bool = False) -> Section:
    """The whole report; the same report gives the same addresses. `is_traced`: figures lead to their witnesses."""
    sections = _Sections(hues_of(report), is_traced=is_traced)
    return replace(sections.section(report, 1), figures=tuple(sections.figures))


def contents(section: Section) -> tuple[ContentsEntry, ...]:
    """The chapters with theirs; of a report without chapters its charts and tables."""
    if section.sections:
        return tuple(_entry(inner) for inner in section.sections)
    items: list[ShownChart | ShownTable] = [*section.tables[:1], *section.charts, *section.tables[1:]]
    if section.answer:
        items = [*section.charts[:1], *section.tables[:1], *section.charts[1:], *section.tables[1:]]
    return tuple(ContentsEntry(item.id, _entry_title(item.title), 0) for item in items if item.title)


def _entry(section: Section) -> ContentsEntry:
    return ContentsEntry(
        section.id, _entry_title(section.title), section.warnings(), tuple(map(_entry, section.sections))
    )


def _shown_title(title: str) -> str:
    return shortened(visible(title), _LONGEST_TITLE)


def _heading(title: str) -> str:
    """A heading that a screen reader can say."""
    return _shown_title(title) if title.strip() else _BLANK


def _entry_title(title: str) -> str:
    return shortened(_heading(title), _LONGEST_ENTRY)


class _Sections:
    """Gives out addresses, each one once."""

    def __init__(self, hues: Hues, *, is_traced: bool) -> None:
        self._hues = hues
        self._is_traced = is_traced
        self.figures: list[ShownFigure] = []
        self._ids: set[str] = set()
        self._warnings = count(1)

    def section(self, report: Report, level: int) -> Section:
        graph = report.graph
        address, notes = self._id(report.title), tuple(map(self._note, report.notes))
        sections = tuple(self.section(chapter, level + 1) for chapter in report.chapters)
        links = {chapter.title: section.id for chapter, section in zip(report.chapters, sections, strict=True)}
        return Section(
            id=address,
            title=_heading(report.title),
            level=min(level, _DEEPEST),
            charts=tuple(map(self._chart, report.charts)),
            tables=tuple(self._table(table, self._id(table.title), links) for table in report.tables),
            picture=None if graph is None else _picture(graph),
            picture_title="" if graph is None else graph.title,
            notes=notes,
            sections=sections,
            listings=tuple(map(self._listing, report.listings)),
            answer=tuple(map(visible, report.answer)) if level == 1 else (),
        )

    def _chart(self, chart: Chart) -> ShownChart:
        drawn = chart_svg(chart, self._hues)
        is_short = not isinstance(chart, LineChart) or has_few_points(chart)
        words = (chart.caption, *drawn.remarks, "" if is_short else _MANY_POINTS)
        return ShownChart(
            id=self._id(chart.title),
            title=_heading(chart.title),
            wide=Markup(drawn.wide),  # escaped where each name enters
            narrow=Markup(drawn.narrow),  # likewise
            words=tuple(word for word in words if word),
            tables=tuple(self._table(table, "", {}) for table in short_tables(chart)),
        )

    def _table(self, table: Table, address: str, links: Mapping[str, str]) -> ShownTable:
        """`links`: titles of chapters with their addresses; where every row begins with one, it leads there."""
        if not all(row and row[0] in links for row in table.rows):
            links = {}
        return ShownTable(
            id=address,
            title=_shown_title(table.title),
            columns=tuple(ShownCell(column.name, "", _classes(column)) for column in table.columns),
            rows=tuple(tuple(self._cells(table, number, links)) for number in range(len(table.rows))),
            footer=tuple(self._cells(table, len(table.rows), links)) if table.footer else (),
            is_tall=len(table.rows) > _TALL,
        )

    def _listing(self, listing: Listing) -> ShownListing:
        return ShownListing(self._id(listing.title), _shown_title(listing.title), tuple(map(visible, listing.lines)))

    def _note(self, note: Note) -> ShownNote:
        is_warning = note.level is Level.WARNING
        return ShownNote(note.text, is_warning, f"warning-{next(self._warnings)}" if is_warning else "")

    def _id(self, title: str) -> str:
        """`s-per-stage`: words of the title, so that a link lasts; never an address that the page itself uses."""
        words = "-".join(re.findall(r"[a-z0-9]+", title.lower())[:8])[:60] or "part"
        numbered = (f"s-{words}" if number == 1 else f"s-{words}-{number}" for number in count(1))
        free_name = next(name for name in numbered if name not in self._ids)
        self._ids.add(free_name)
        return free_name

    def _cells(self, table: Table, number: int, links: Mapping[str, str]) -> Iterator[ShownCell]:
        """Of a row; the footer is the one after the last."""
        row = _row(table, number)
        for place, (column, cell) in enumerate(zip(table.columns, row, strict=True)):
            if cell is None:
                yield ShownCell(UNKNOWN, "not known", f"{_classes(column)} unknown".lstrip())
            elif isinstance(cell, str) and cell in links:
                link = Markup('<a href="#{}">{}</a>').format(links[cell], _heading(cell))
                yield ShownCell(link, "", "")
            elif isinstance(cell, str):
                short = shortened(visible(cell), _LONGEST_CELL)
                classes = "long" if len(short) > _LONG_CELL else ""
                yield ShownCell(_breakable(short), cell if short != visible(cell) else "", classes)
            else:
                text, exact = cell_text(cell, column.kind), exact_text(cell, column.kind)
                figure = self._figure(table, number, place, cell)
                yield ShownCell(text, exact if exact != text else "", _classes(column), figure, cell)

    def _figure(self, table: Table, number: int, place: int, cell: Number) -> int | None:
        """The number of a figure that can be traced back, in the order in which they stand on the page."""
        if not self._is_traced:
            return None
        column = table.columns[place]
        known = (
            _witness(table, number, place),
            _by_formula(table, number, place),
            _sum_of_column(table, number, place),
        )
        witness = next((one for one in known if one is not None and one.gives(cell)), None)
        if witness is None and (not table.origin or (witness := _given(table, number, place)) is None):
            return None
        first = _row(table, number)[0]
        name = f"{first}, {column.name}" if isinstance(first, str) else column.name
        self.figures.append(ShownFigure(shortened(visible(name), _LONGEST_TITLE), witness))
        return len(self.figures) - 1


def _row(table: Table, number: int) -> tuple[Cell, ...]:
    return table.rows[number] if number < len(table.rows) else table.footer


def _witness(table: Table, number: int, place: int) -> Witness | None:
    return None if table.witnesses is None else table.witnesses(number, place)


def _given(table: Table, number: int, place: int) -> Witness | None:
    """A cell as it stands in the table, with the table's origin; None where it is not known."""
    value, column = _row(table, number)[place], table.columns[place]
    if not isinstance(value, int | float):
        return None
    return Witness(column.name, value, BASE_UNITS.get(column.kind, ""), table.origin or f"the table {table.title!r}")


def _by_formula(table: Table, number: int, place: int) -> Witness | None:
    """From other cells of the row, or from the total of a column; None where one of them is not known."""
    column = table.columns[place]
    if (formula := table.formulas.get(column.name)) is None:
        return None
    operation, *names = formula
    places = {other.name: at for at, other in enumerate(table.columns)}
    cells = [(number, places[name]) for name in names if name in places]
    if operation == "share":
        cells, operation = [*cells, (len(table.rows), cells[0][1])], "quotient"
    parts = [_witness(table, *cell) or _given(table, *cell) for cell in cells if _row(table, cell[0])]
    known = [part for part in parts if part is not None]
    if len(known) < len(cells) or (operation == "quotient" and not known[1].value):
        return None
    return worked_out(operation, column.name, known, BASE_UNITS.get(column.kind, ""))


def _sum_of_column(table: Table, number: int, place: int) -> Witness | None:
    """Of a footer, the rows above it; each is named as it stands in the table, with its own witness."""
    if number < len(table.rows) or table.columns[place].kind is Kind.TEXT:
        return None
    unit = BASE_UNITS.get(table.columns[place].kind, "")
    parts = [
        _witness(table, above, place) or Witness(str(row[0]), value, unit, f"this row of {table.title!r}")
        for above, row in enumerate(table.rows)
        if isinstance(value := row[place], int | float)
    ]
    return worked_out("sum", f"total of {table.columns[place].name}", parts, unit) if parts else None


def _picture(view: GraphView) -> Markup:
    return Markup(SvgDrawing().embedded(view, _PICTURE_WIDTH))  # escaped where each name enters


def _breakable(text: str) -> str | Markup:
    """A long path may go on in the next line after a dot, a slash or an underscore, and is copied without a break.

    A number with a point stays whole.
    """
    if len(text) <= _SHORT_PATH:
        return text
    return Markup("<wbr>").join(escape(part) for part in _BREAKS.split(text))


def _classes(column: Column) -> str:
    return "" if column.kind is Kind.TEXT else "number"

"""Plain text for a terminal: tables lined up, charts as bars of `#`, the picture as a tree."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.core.graph_view import Box, GraphView, Metric, inclusive, share, total
from llm_perf_opt.core.report import BarChart, Chart, Column, Level, LineChart, Note, Report, SpanChart, Table
from llm_perf_opt.formats.box_figures import (
    WeighedDrawing,
    collectives_text,
    figure_texts,
    has_collectives,
    hidden_text,
    inclusive_text,
    loops_text,
    metric_text,
    share_text,
)
from llm_perf_opt.formats.chart_table import short_tables
from llm_perf_opt.formats.text_table import PAGE_WIDTH, broken, table_parts, table_text
from llm_perf_opt.formats.visible_text import ELLIPSIS, shortened, visible_ascii

_BAR_LENGTH = 40


def chart_text(chart: Chart) -> str:
    """Title, numbers, bars where they fit, caption."""
    match chart:
        case BarChart():
            tables: tuple[Table, ...] = (_bars(chart),)
        case SpanChart():
            tables = (_spans(chart),)
        case LineChart():
            tables = short_tables(chart)
    parts = ["\n\n".join(map(table_text, tables)), *broken(visible_ascii(chart.caption), PAGE_WIDTH)]
    return "\n".join(part for part in parts if part)


def _bars(chart: BarChart) -> Table:
    """One row for each bar; all start at zero and share one scale. A bar below zero is drawn with `-`."""
    largest = max((abs(value) for series in chart.series for value in series.values if value is not None), default=0)
    rows = [
        (category, name, value, _bar(value, largest))
        for place, category in enumerate(chart.categories)
        for name, value in _values(chart, place)
    ]
    columns = (Column("category"), Column("series"), Column("value", chart.kind), Column(""))
    table = Table(title=chart.title, columns=columns, rows=tuple(rows))
    return table if len(chart.series) > 1 else _without_column(table, 1)


def _values(chart: BarChart, place: int) -> list[tuple[str, float | None]]:
    """The values of one category by series; a stack leaves out parts that are zero."""
    values = [(series.name, series.values[place]) for series in chart.series]
    parts = [(name, value) for name, value in values if value != 0] if chart.is_stacked else values
    return parts or values


def _spans(chart: SpanChart) -> Table:
    """The table of spans, each with its stretch of the axis; a logarithmic axis is drawn evenly here."""
    (table,) = short_tables(chart)
    low = min((span.start for span in chart.spans), default=0.0)
    duration = max((span.end for span in chart.spans), default=0.0) - low
    bars = [_stretch((span.start - low, span.end - low), duration) for span in chart.spans]
    rows = tuple((*row, bar) for row, bar in zip(table.rows, bars, strict=True))
    return replace(table, columns=(*table.columns, Column("")), rows=rows)


def _bar(value: float | None, largest: float) -> str:
    if not value:
        return ""
    return ("#" if value > 0 else "-") * max(1, round(abs(value) / largest * _BAR_LENGTH))


def _stretch(span: tuple[float, float], duration: float) -> str:
    start, end = (round(place / duration * _BAR_LENGTH) if duration else 0 for place in span)
    start = min(start, _BAR_LENGTH - 1)
    return " " * start + "#" * max(1, end - start)


def _without_column(table: Table, place: int) -> Table:
    columns = (*table.columns[:place], *table.columns[place + 1 :])
    rows = tuple((*row[:place], *row[place + 1 :]) for row in table.rows)
    return replace(table, columns=columns, rows=rows)


_RULES = ("", "=", "-")  # under the title of the report, of a chapter, of a chapter in a chapter


class TextReport:
    """ASCII only, so that it reads the same in a log, a mail and a terminal of any encoding; 100 columns wide."""

    suffix = ".txt"

    def render(self, report: Report) -> str:
        """The answer, title, tables, charts, picture and notes, each apart by one empty line; then the chapters."""
        return "\n\n".join(_parts(report, 0)) + "\n"

    def one_screen(self, report: Report) -> str:
        """The answer and the tables that matter most; the last line says what is left out, and how it is shown."""
        return screen_text(report) + "\n"


def _parts(report: Report, depth: int) -> Iterator[str]:
    if report.answer:
        yield answer_text(report.answer)
    yield title_text(report.title, _RULES[min(depth, len(_RULES) - 1)])
    yield from map(table_text, report.tables)
    yield from map(chart_text, report.charts)
    if report.graph is not None:
        yield TextDrawing().render(report.graph).rstrip("\n")
    for listing in report.listings:
        yield "\n".join(map(visible_ascii, (listing.title, *listing.lines)))
    if report.notes:
        yield "\n".join(map(note_text, report.notes))
    for chapter in report.chapters:
        yield from _parts(chapter, depth + 1)


_LONGEST_CAPTION = 400
_SETTINGS = ("Workload", "Runtime")  # captions that say how the trace was made
_SHORTEST_LABEL = 24
_GAP = "  "
_SHOWN_PARTS = 3  # of the picture, in its answer
_NAMED_SHARE = 0.02  # from which on such a part is named


class TextDrawing(WeighedDrawing):
    """ASCII only, 100 columns wide. `metric` decides what the last column is a share of."""

    suffix = ".txt"

    def render(self, view: GraphView) -> str:
        """Where most of it is, title and caption, then one line per box of the default picture, with all figures."""
        branches = _tree(view)
        trees = [_aligned(self._rows(view, branches)), _aligned(self._further_rows(view, branches))]
        opening = [*self._answer(view), "", *_caption((view.title, *view.caption))]
        return "\n".join([*opening, "", *trees[0], "", *trees[1]]) + "\n"

    def one_screen(self, view: GraphView) -> str:
        """The same without the lesser figures and the later boxes; the last line says what is left out."""
        caption = [text for text in view.caption if not text.startswith(_SETTINGS)]
        opening = [*self._answer(view), "", *_caption(caption)]
        lines = _aligned(self._rows(view, _tree(view)))
        room = SCREEN_LINES - len(opening) - 3
        missing = len(lines) - room
        left = f"{missing:,} box{'es' if missing > 1 else ''}, " if missing > 0 else ""
        closing = f"Left out: {left}the workload, instances, activations, parameters. --verbose shows all."
        return "\n".join([*opening, "", *lines[:room], "", closing]) + "\n"

    def _answer(self, view: GraphView) -> list[str]:
        """How much there is, and which parts have most of it."""
        total_cost = total(view, self._metric)
        figures = [
            metric_text(total(view, metric), metric) for metric in (Metric.FLOPS, Metric.BYTES, Metric.PARAMETERS)
        ]
        lines = [f"{_ascii(view.title, 60)}: {figures[0]}, {figures[1]} moved, {figures[2]}."]
        parts = sorted(_first_parts(view), key=lambda box: -(inclusive(box, self._metric) or 0))[:_SHOWN_PARTS]
        shares = [share(inclusive(box, self._metric), total_cost) or 0.0 for box in parts]
        shown = zip(_names(parts), shares, strict=True)
        named = [f"{name} {share_text(part)}" for name, part in shown if part >= _NAMED_SHARE]
        if named:
            lines += broken(f"Most {self._metric.words}: {', '.join(named)}.", PAGE_WIDTH)[:2]
        return lines

    def _rows(self, view: GraphView, branches: Sequence[_Branch]) -> _Rows:
        """Calls, FLOPs, bytes and the share of what the picture weighs by, which stands before it if it is another."""
        total_cost, weighs_by = total(view, self._metric), self._metric
        is_other = weighs_by in (Metric.PARAMETERS, Metric.ACTIVATIONS)
        heading = ["calls", "FLOPs", "bytes moved", *([weighs_by.value] if is_other else []), "share"]
        rows: _Rows = [(None, heading)]
        for branch in branches:
            _, calls, flops, moved, *_, part = figure_texts(branch.box, weighs_by, total_cost)
            other = [inclusive_text(branch.box, weighs_by).removesuffix(" params")] if is_other else []
            rows.append((branch, [calls, flops, moved, *other, part]))
        return rows

    def _further_rows(self, view: GraphView, branches: Sequence[_Branch]) -> _Rows:
        with_collectives = has_collectives(view)
        rows: _Rows = [(None, ["instances", "activations", "params", *(["collectives"] if with_collectives else [])])]
        for branch in branches:
            figures = figure_texts(branch.box, self._metric, None)
            other = [collectives_text(branch.box)] if with_collectives else []
            rows.append((branch, [figures[0], figures[4], figures[5], *other]))
        return rows


@dataclass(frozen=True, slots=True)
class _Branch:
    """A box, and how it hangs in the tree: its class, its path below the box around it, its loops."""

    box: Box
    lines: str
    label: str
    loops: str

    def text(self, width: int) -> str:
        """At most so wide; the label gives way."""
        return self.lines + _ascii(self.label, max(width - len(self.lines) - len(self.loops), 8)) + self.loops

    @property
    def width(self) -> int:
        return len(self.lines) + len(visible_ascii(self.label)) + len(self.loops)


def _ascii(text: str, length: int) -> str:
    """One line; where it is shortened stand three dots, since the one-character ellipsis is not ASCII."""
    shown = visible_ascii(text)
    return shown if len(shown) <= length else shortened(shown, length - 2).replace(ELLIPSIS, "...")


def _caption(texts: Sequence[str]) -> list[str]:
    return [line for text in texts for line in broken(_ascii(text, _LONGEST_CAPTION), PAGE_WIDTH)]


def _tree(view: GraphView) -> list[_Branch]:
    return [branch for root in view.roots for branch in _branches(root, "", "", ())]


def _branches(box: Box, first: str, rest: str, outer: tuple[str, ...]) -> list[_Branch]:
    """The box and, where it is open, those inside; `outer` are the paths of the boxes around it."""
    loops, hidden = loops_text(box), hidden_text(box).replace(" boxes", "").replace(" box", "")
    rows = [_Branch(box, first, _label(box, outer), f", {loops}" * bool(loops) + f" ({hidden})" * bool(hidden))]
    children = box.children if box.is_open else ()
    for child in children:
        is_last = child is children[-1]
        lines = (rest + ("`- " if is_last else "|- "), rest + ("   " if is_last else "|  "))
        rows += _branches(child, *lines, (*outer, box.path))
    return rows


def _label(box: Box, outer: Sequence[str]) -> str:
    """`Linear @ .q_proj`: the path from the innermost box around it that it begins with."""
    around = next((path for path in reversed(outer) if path and box.path.startswith(f"{path}.")), None)
    if box.is_left_out or around is None:
        return box.label
    return f"{box.class_name} @ {box.path.removeprefix(around)}"


def _names(boxes: Sequence[Box]) -> list[str]:
    """Their classes; of those that share one the last part of the path too: `Linear (up_proj)`."""
    names = [box.label if box.is_left_out else box.class_name for box in boxes]
    return [
        _ascii(name, 30) + (f" ({_ascii(box.path.rpartition('.')[2], 30)})" if names.count(name) > 1 else "")
        for name, box in zip(names, boxes, strict=True)
    ]


def _first_parts(view: GraphView) -> Sequence[Box]:
    """The boxes of the first level that has several."""
    boxes: Sequence[Box] = view.roots
    while len(boxes) == 1 and boxes[0].children:
        boxes = boxes[0].children
    model = max(boxes, key=lambda box: len(box.children), default=None)
    if model is None or len(boxes) > _SHOWN_PARTS or not model.children:
        return boxes
    return [*(box for box in boxes if box is not model), *model.children]


_Rows = list[tuple[_Branch | None, list[str]]]  # the heading belongs to no box


def _aligned(rows: _Rows) -> list[str]:
    """Heading, rule and boxes: the tree, then the other columns to the right."""
    widths = [max(map(len, cells)) for cells in zip(*(cells for _, cells in rows), strict=True)]
    room = max(PAGE_WIDTH - sum(widths) - len(_GAP) * len(widths), _SHORTEST_LABEL)
    label = min(room, max((branch.width for branch, _ in rows if branch is not None), default=_SHORTEST_LABEL))
    lines = []
    for branch, cells in rows:
        columns = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        text = "box" if branch is None else branch.text(label)
        lines.append(_GAP.join([text.ljust(label), *columns]).rstrip())
    rule = _GAP.join("-" * width for width in (label, *widths))
    return [line[:PAGE_WIDTH] for line in (lines[0], rule, *lines[1:])]


SCREEN_LINES = 50
_MOST_WARNING_LINES = 9
_LEAST_ROWS = 5  # of a table that is cut; with fewer it is left out
_MOST_NAMES = 5  # of tables that are left out
_ALL = "--verbose shows all."


def answer_text(answer: Sequence[str]) -> str:
    """Each line of the answer; what goes on in a further one is set in."""
    return "\n".join(_indented(visible_ascii(line)) for line in answer)


def title_text(title: str, rule: str) -> str:
    """A title with `rule` under it, if that is a character."""
    lines = broken(visible_ascii(title), PAGE_WIDTH)
    return "\n".join([*lines, *([rule * max(map(len, lines))] if rule else [])])


def note_text(note: Note) -> str:
    """The note behind its level."""
    return _indented(("warning: " if note.level is Level.WARNING else "note: ") + visible_ascii(note.text))


def _indented(text: str) -> str:
    """At most as wide as the page; only a word that is wider by itself is broken."""
    wrap = textwrap.TextWrapper(width=PAGE_WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return wrap.fill(text)


class _Screen:
    """The blocks that stand so far, each apart by an empty line, and what had no room."""

    def __init__(self, blocks: Sequence[str], reserved: int) -> None:
        self.blocks = list(blocks)
        self._room = SCREEN_LINES - reserved - sum(map(_height, blocks))
        self.tables: list[str] = []  # left out
        self.rows = self.wide = self.notes = self.charts = self.pictures = 0

    def put(self, block: str) -> bool:
        """Whether there was room for it."""
        fits = _height(block) <= self._room
        if fits:
            self.blocks.append(block)
            self._room -= _height(block)
        return fits

    def put_table(self, table: Table, heading: str) -> bool:
        """The table whole, or its first columns, or of these the first rows; under the heading of its chapter."""
        above = f"{heading}\n" if heading else ""
        first, *further = table_parts(table)
        if self.put(above + "\n\n".join((first, *further))):
            return True
        self.wide += bool(further)
        if further and self.put(above + first):
            return True
        for rows in range(min(len(table.rows), self._room) - 1, _LEAST_ROWS - 1, -1):
            cut = table_parts(replace(table, rows=table.rows[:rows]))[0]
            if self.put(f"{above}{cut}\n... and {len(table.rows) - rows:,} more rows"):
                self.rows += len(table.rows) - rows
                return True
        self.wide -= bool(further)
        self.tables.append(table.title)
        return False

    def left_out(self) -> str:
        """What is not shown, and how to see it; nothing where everything is."""
        counts = [
            _counted(len(self.tables), "table"),
            _counted(self.rows, "row"),
            f"columns of {_counted(self.wide, 'table')}" if self.wide else "",
            _counted(self.charts, "chart"),
            _counted(self.pictures, "picture"),
            _counted(self.notes, "note"),
        ]
        names = [visible_ascii(title) for title in self.tables if title]
        listed = "; ".join(names[:_MOST_NAMES]) + (f"; {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES))
        counts[0] += f" ({listed})" if listed else ""
        text = ", ".join(count for count in counts if count)
        return _indented(f"Left out: {text}. {_ALL}") if text else ""


def screen_text(report: Report) -> str:
    """At most one screen: the tables of the report, and the first of each chapter, as far as there is room."""
    warnings = _warnings(report)
    opening = [answer_text(report.answer)] if report.answer else []
    screen = _Screen([*opening, title_text(report.title, "")], reserved=_height(warnings) * bool(warnings) + 4)
    for heading, part in _chapters(report, ""):
        shown = part.tables if part is report else part.tables[:1]
        above = heading
        for table in shown:
            if screen.put_table(table, above):
                above = ""
        screen.tables += [table.title for table in part.tables[len(shown) :]]
        screen.charts += len(part.charts)
        screen.pictures += part.graph is not None
        screen.tables += [listing.title for listing in part.listings]
        screen.notes += sum(note.level is not Level.WARNING for note in part.notes) if part is not report else 0
    if warnings:
        screen.blocks.append(warnings)
    plain = [note_text(note) for note in report.notes if note.level is not Level.WARNING]
    screen.notes += len(plain) - _first_notes(plain, screen)
    return "\n\n".join(filter(None, [*screen.blocks, screen.left_out()]))


def _first_notes(notes: Sequence[str], screen: _Screen) -> int:
    """How many of the notes there is room for, in one block."""
    for count in range(len(notes), 0, -1):
        if screen.put("\n".join(notes[:count])):
            return count
    return 0


def _chapters(report: Report, heading: str) -> Iterator[tuple[str, Report]]:
    """The report and its chapters, each with its heading."""
    yield heading, report
    for chapter in report.chapters:
        yield from _chapters(chapter, title_text(chapter.title, "="))


def _warnings(report: Report) -> str:
    """The notes of the report and of its chapters, each once; where they are many, how many more there are."""
    warnings = dict.fromkeys(
        note_text(note) for _, part in _chapters(report, "") for note in part.notes if note.level is Level.WARNING
    )
    shown: list[str] = []
    for text in warnings:
        if shown and sum(map(_lines_of, (*shown, text))) > _MOST_WARNING_LINES:
            break
        shown.append(text)
    if len(shown) < len(warnings):
        shown.append(f"warning: {len(warnings) - len(shown):,} more; {_ALL}")
    return "\n".join(shown)


def _lines_of(text: str) -> int:
    return text.count("\n") + 1


def _height(block: str) -> int:
    """With the empty line after it."""
    return _lines_of(block) + 1


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count > 1 else ''}" if count else ""

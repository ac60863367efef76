"""What of a report one screen of a terminal shows: the answer, tables in their order as far as they go, warnings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace

from llm_perf_opt.core.report import Level, Note, Report, Table
from llm_perf_opt.formats.text_table import PAGE_WIDTH, broken, table_parts
from llm_perf_opt.formats.visible_text import visible_ascii

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
        told = ", ".join(count for count in counts if count)
        return _indented(f"Left out: {told}. {_ALL}") if told else ""


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
    """Those of the report and of its chapters, each once; where they are many, how many more there are."""
    found = dict.fromkeys(
        note_text(note) for _, part in _chapters(report, "") for note in part.notes if note.level is Level.WARNING
    )
    shown: list[str] = []
    for text in found:
        if shown and sum(map(_lines_of, (*shown, text))) > _MOST_WARNING_LINES:
            break
        shown.append(text)
    if len(shown) < len(found):
        shown.append(f"warning: {len(found) - len(shown):,} more; {_ALL}")
    return "\n".join(shown)


def _lines_of(text: str) -> int:
    return text.count("\n") + 1


def _height(block: str) -> int:
    """With the empty line after it."""
    return _lines_of(block) + 1


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count > 1 else ''}" if count else ""

"""A table as lines of ASCII no wider than a page: headings break at words, and a wide table becomes several.

Numbers are never broken. Text that is wider than its column goes on in the next line of the same column, after a space,
a dot, a slash or an underscore.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from llm_perf_opt.core.report import Column, Kind, Table
from llm_perf_opt.formats.visible_text import row_texts, visible_ascii

PAGE_WIDTH = 100
_GAP = "  "
_NARROWEST_TEXT = 24  # characters that a column of text keeps, however many columns there are
_WIDEST_TEXT = 36  # of a broken table
_WIDEST_KEY = 44  # of the column that every part of a broken table begins with
_BREAKS = re.compile(r"(?<=[./_,;:])|(?<=\])")


@dataclass(frozen=True)
class _Cells:
    """A column as it is printed: heading, rows and, where there is one, the total."""

    column: Column
    heading: str
    texts: tuple[str, ...]

    @property
    def is_text(self) -> bool:
        return self.column.kind is Kind.TEXT

    @cached_property
    def full_width(self) -> int:
        return max(map(len, (self.heading, *self.texts)))

    @cached_property
    def width(self) -> int:
        """With the heading broken at its words."""
        return max(map(len, (*self.heading.split(), *self.texts, "")))

    def cell(self, text: str, width: int) -> list[str]:
        """The lines of one cell, each as wide as the column."""
        lines = [text] if len(text) <= width else broken(text, width)
        return [line.ljust(width) if self.is_text else line.rjust(width) for line in lines]


def table_text(table: Table, width: int = PAGE_WIDTH) -> str:
    """Under its title if it has one; no line is wider than `width`."""
    return "\n\n".join(table_parts(table, width))


def table_parts(table: Table, width: int = PAGE_WIDTH) -> list[str]:
    """The tables that one becomes which is too wide; the first has the title."""
    title = broken(visible_ascii(table.title), width) if table.title else []
    cells = _cells(table)
    parts = [(cells, [cell.full_width for cell in cells])]
    if _joined_width(parts[0][1]) > width:
        parts = _parts(cells, len(table.rows), width)
    shown = [_lines(part, _widened(part, widths, width), bool(table.footer)) for part, widths in parts]
    return ["\n".join(lines) for lines in ([*title, *shown[0]], *shown[1:])]


def broken(text: str, width: int) -> list[str]:
    """Lines no wider than `width`: at spaces where that is enough, otherwise inside words too."""
    width = max(width, 1)
    words = (piece for word in text.split(" ") for piece in _pieces(word, width))
    return textwrap.wrap(" ".join(words), width, break_on_hyphens=False) or [""]


def _pieces(word: str, width: int) -> list[str]:
    """A word that is too long, cut where a path is read as parts."""
    if len(word) <= width:
        return [word]
    pieces = [""]
    for part in (part for part in _BREAKS.split(word) if part):
        if len(pieces[-1]) + len(part) <= width:
            pieces[-1] += part
        else:
            pieces.append(part)
    return [piece for piece in pieces if piece]


def _cells(table: Table) -> list[_Cells]:
    rows = [*table.rows, *((table.footer,) if table.footer else ())]
    texts = [list(map(visible_ascii, row_texts(table, row))) for row in rows]
    return [
        _Cells(column, visible_ascii(column.name), tuple(row[place] for row in texts))
        for place, column in enumerate(table.columns)
    ]


def _parts(cells: Sequence[_Cells], rows: int, width: int) -> list[tuple[list[_Cells], list[int]]]:
    """One part with broken headings and narrow text if that is enough, otherwise several with the same key."""
    widths = _narrowed(cells, width)
    if _joined_width(widths) <= width:
        return [(list(cells), widths)]
    first = cells[0]
    if first.is_text and len(set(first.texts[:rows])) == rows:
        key, rest = first, list(cells[1:])
    else:
        numbers = tuple(str(number) if number <= rows else "" for number in range(1, len(first.texts) + 1))
        key, rest = replace(first, column=Column("#", Kind.COUNT), heading="#", texts=numbers), list(cells)
    key_width = min(key.width, _WIDEST_KEY)
    parts: list[tuple[list[_Cells], list[int]]] = []
    for column in rest:
        own = min(column.width, _WIDEST_TEXT) if column.is_text else column.width
        if parts and _joined_width([*parts[-1][1], own]) <= width:
            parts[-1][0].append(column)
            parts[-1][1].append(own)
        else:
            parts.append(([key, column], [key_width, own]))
    return parts


def _narrowed(cells: Sequence[_Cells], width: int) -> list[int]:
    """The widths of the columns; columns of text give way as much as it takes, the widest first."""
    widths = [cell.width for cell in cells]
    texts = [place for place, column in enumerate(cells) if column.is_text]
    while (over := _joined_width(widths) - width) > 0:
        widest = max(texts, key=lambda place: widths[place], default=None)
        if widest is None or widths[widest] <= _NARROWEST_TEXT:
            return widths
        widths[widest] = max(_NARROWEST_TEXT, widths[widest] - max(1, over // 4))
    return widths


def _widened(cells: Sequence[_Cells], widths: Sequence[int], width: int) -> list[int]:
    """What is left of the page goes to the columns with the tallest headings."""
    wider = list(widths)
    for _ in range(width - _joined_width(widths)):
        heights = [len(broken(column.heading, own)) for column, own in zip(cells, wider, strict=True)]
        tallest = max(range(len(cells)), key=lambda place: (heights[place], -wider[place]))
        if heights[tallest] == 1:
            return wider
        wider[tallest] += 1
    return wider


def _joined_width(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _lines(cells: Sequence[_Cells], widths: Sequence[int], has_footer: bool) -> list[str]:
    rule = _GAP.join("-" * width for width in widths)
    heading = _row(
        [column.cell(column.heading, width) for column, width in zip(cells, widths, strict=True)], widths, end=True
    )
    rows = [
        _row([column.cell(column.texts[number], width) for column, width in zip(cells, widths, strict=True)], widths)
        for number in range(len(cells[0].texts))
    ]
    if has_footer:
        rows.insert(-1, [rule])
    return [*heading, rule, *(line for row in rows for line in row)]


def _row(cells: Sequence[Sequence[str]], widths: Sequence[int], *, end: bool = False) -> list[str]:
    """The cells side by side; with `end` the last lines of all stand in one line, as headings do."""
    height = max(map(len, cells))
    blank = [[" " * width] * (height - len(cell)) for cell, width in zip(cells, widths, strict=True)]
    padded = [[*empty, *cell] if end else [*cell, *empty] for cell, empty in zip(cells, blank, strict=True)]
    return [_GAP.join(line).rstrip() for line in zip(*padded, strict=True)]

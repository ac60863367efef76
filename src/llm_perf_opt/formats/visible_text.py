"""How names and cells read on a page: widths without a font, numbers with units, nothing invisible."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import count
from types import MappingProxyType

from llm_perf_opt.core import units
from llm_perf_opt.core.plain_text import visible as visible
from llm_perf_opt.core.plain_text import visible_ascii as visible_ascii
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
BASE_UNITS: MappingProxyType[Kind, str] = MappingProxyType(
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
    return f"{cell:,} {BASE_UNITS.get(kind, '')}".rstrip()


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


ELLIPSIS = "\u2026"


def shortened(text: str, length: int) -> str:
    """At most `length` characters; the middle gives way, since both ends of a path identify it."""
    if len(text) <= length:
        return text
    tail = length * 2 // 3
    return text[: length - tail - 1] + ELLIPSIS + text[len(text) - tail :]


FONTS = "'DejaVu Sans', Verdana, Geneva, sans-serif"  # of nearly the same widths; others are narrower

# Hundredths of the font size -> characters, regular and bold, from the metrics of DejaVu Sans.
_REGULAR = {
    28: "'ijlIJ", 33: " ,.", 35: "/:;\\|f", 37: "-", 40: "()[]t!", 42: "r", 47: '"', 51: "*_`", 53: "sz?", 56: "cL",
    59: "Fkvxy", 61: "PTYao", 63: "eESbdghnpqu", 64: "$0123456789{}", 67: "K", 69: "AVBRXZ", 70: "C", 75: "UHN",
    79: "DG&OQ", 84: "w#+<=>^~", 87: "M", 98: "%m", 100: "W@",
}  # fmt: skip
_BOLD = {
    34: "'ijl", 38: "/IJ\\| ,.", 42: ":;-", 46: "f!()[]", 49: "tr", 52: '_`"*', 60: "?zcs", 65: "Lvxy", 69: "akEFTeo",
    72: "$0123456789hnu{}SYbdgpq", 77: "CPZBAKRVX", 85: "UGD#+<=>HN^~OQ", 92: "&w", 104: "%@Mm", 111: "W",
}  # fmt: skip
_LONGEST = 400  # characters that any picture could show in a line
_WIDTHS = {
    is_bold: {char: width / 100 for width, chars in table.items() for char in chars}
    for is_bold, table in ((False, _REGULAR), (True, _BOLD))
}


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """In the unit of `size`. Outside ASCII a character counts a full square, or none where it only marks another."""
    widths = _WIDTHS[bold]
    return size * sum(widths[char] if char in widths else _other(char) for char in text)


def fitted(text: str, size: float, room: float, *, bold: bool = False, keep: float = 0.6) -> str:
    """`text`, or what fits into `room` with an ellipsis; `keep` is the part of it that the end gets."""
    room += 0.01  # a box that was measured for this very text has room for it, whatever the rounding
    if len(text) <= _LONGEST and text_width(text, size, bold=bold) <= room:
        return text
    lengths = range(min(len(text) - 1, _LONGEST), 0, -1)
    cuts = (_cut(text, length, keep) for length in lengths)
    return next((cut for cut in cuts if text_width(cut, size, bold=bold) <= room), ELLIPSIS)


def wrapped(text: str, size: float, room: float) -> list[str]:
    """Lines no wider than `room`, broken at spaces; a longer word is cut short."""
    lines: list[str] = []
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= room:
            lines[-1] = longer
        else:
            lines.append(fitted(word, size, room))
    return lines


def _cut(text: str, length: int, keep: float) -> str:
    tail = round(length * keep)
    return text[: length - tail] + ELLIPSIS + text[len(text) - tail :]


def _other(char: str) -> float:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0.0
    return 1.3 if ord(char) > 0xFFFF else 1.0  # pictographs are wider than they are high

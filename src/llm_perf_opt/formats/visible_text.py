"""Names as a model gave them, made fit for a page, and how wide they will be without a font to measure."""

from __future__ import annotations

import unicodedata

_JOINER = "\u200d"  # holds composed emoji together and does nothing else
ELLIPSIS = "\u2026"


def visible(text: str) -> str:
    """`text` on one line, every character of it visible."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == _JOINER else _escape(char) for char in text)


def visible_ascii(text: str) -> str:
    """The same in ASCII, for a terminal of any encoding."""
    return visible(text).encode("ascii", "backslashreplace").decode("ascii")


def shortened(text: str, length: int) -> str:
    """At most `length` characters; the middle gives way, since a path is told by both of its ends."""
    if len(text) <= length:
        return text
    tail = length * 2 // 3
    return text[: length - tail - 1] + ELLIPSIS + text[len(text) - tail :]


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


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

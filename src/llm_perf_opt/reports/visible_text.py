r"""Names as a model gave them, made fit for a page: what cannot be seen or would break a line becomes an escape.

A module may be called anything. Line breaks, control characters, marks that turn the reading direction and half
characters are written as in a Python string (`\n`, `\u202e`), so nothing is lost and nothing acts.
"""

from __future__ import annotations

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

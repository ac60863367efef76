r"""Text from outside, made harmless: every character of it visible, and the text of an exception that has none.

Names of modules and files, values of configurations and messages of exceptions may hold escape codes, which a terminal
obeys, or characters that change the order in which a line is read. Both are written out as `\x1b`, `\u202e`.
"""

from __future__ import annotations

import re

_JOINER = "\u200d"  # holds composed emoji together and does nothing else
_LAYOUT = "\n\t"
_NO_TEXT = "(its text cannot be read)"


def visible(text: str) -> str:
    """`text` on one line, every character of it visible."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == _JOINER else _escape(char) for char in text)


def visible_lines(text: str) -> str:
    """The same with its lines and tabs as they are."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == _JOINER or char in _LAYOUT else _escape(char) for char in text)


def visible_ascii(text: str) -> str:
    """`visible` in ASCII, for a terminal of any encoding."""
    return visible(text).encode("ascii", "backslashreplace").decode("ascii")


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


def error_text(error: BaseException) -> str:
    """What an exception says of itself. One of foreign code may raise when it is asked."""
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001  foreign code: whatever it raises, the first error is the one to report
        return f"{_NO_TEXT}: its __str__ raised {type(failure).__name__}"


def error_line(error: BaseException, length: int = 300) -> str:
    """Its type and the first line of its text: `ValueError: no such layer`."""
    return f"{type(error).__name__}: {first_line(error_text(error), length)}"


def error_notes(error: BaseException) -> tuple[str, ...]:
    """The notes that were added to it, as far as they are texts."""
    notes = getattr(error, "__notes__", None)
    return tuple(note for note in notes if isinstance(note, str)) if isinstance(notes, list | tuple) else ()


def first_line(text: str, length: int) -> str:
    """The first line that is not empty, cut to `length` characters."""
    return re.split(r"[\r\n]", text.strip(), maxsplit=1)[0][:length]

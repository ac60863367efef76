"""What a terminal is shown: nothing from outside can move its cursor, change its colours or hide a line.

Names and messages are made visible where they are printed. What libraries and Python itself write to stderr (warnings,
tracebacks, usage errors) passes a stream that does the same.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.plain_text import visible_lines

_INDENT = "\n       "


def message_of(error: PerfOptError) -> str:
    """What, why and what to do. Further lines of the first two are set in, so that they cannot pass for one of ours."""
    what, why = (visible_lines(text.rstrip()).replace("\n", _INDENT) for text in (error.what, error.why))
    return f"{what}\n  why: {why}\n  fix: {visible_lines(error.fix)}"


class VisibleStream:
    """Stands in for stderr: escape codes are written out, and a line that would be overwritten ends instead."""

    def __init__(self, plain: TextIO) -> None:
        self.plain = plain

    def write(self, text: str) -> int:
        """As many characters as were given, however many it takes to show them."""
        self.plain.write(visible_lines(text.replace("\r\n", "\n").replace("\r", "\n")))
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        """One after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)  # flush, encoding, fileno, buffer, isatty


def plain_stderr() -> TextIO:
    """The stream itself, for what draws with escape codes of our own."""
    stream: Any = sys.stderr
    return stream.plain if isinstance(stream, VisibleStream) else stream


@contextmanager
def visible_streams() -> Iterator[None]:
    """Stderr shows every character, and no character is too much for the encoding of stdout.

    An error that nobody put into words leaves it so: Python is still to print it.
    """
    before: Any = sys.stderr
    sys.stderr = VisibleStream(plain_stderr())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    except SystemExit:
        sys.stderr = before
        raise
    sys.stderr = before

"""What goes to stderr: log lines, closing lines, and a bar for runs of minutes."""

from __future__ import annotations

import io
import logging
import math
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.plain_text import visible, visible_lines

if TYPE_CHECKING:
    from llm_perf_opt.api.profile import Progress


class _Plain(logging.Formatter):
    """Progress reads as a sentence; what is more than progress says so."""

    def format(self, record: logging.LogRecord) -> str:
        label = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        text = label + visible_lines(record.getMessage()).replace("\n", "\n  ")
        _SAID.last(text)
        return text


class _Said:
    """The last line on stderr that says what begins, and when anything was said; an indented line ends a step."""

    def __init__(self) -> None:
        self.verb, self.text, self.at = "", "", time.monotonic()

    def begin(self, verb: str) -> None:
        self.verb = verb
        self.last(verb)

    def last(self, text: str) -> None:
        self.text, self.at = self.verb if text.startswith(" ") else text, time.monotonic()


_SAID = _Said()
_FIRST_SIGN_S, _NEXT_SIGN_S, _BEAT_S = 2.0, 10.0, 0.25
_BAR_WIDTH = 20
_DURATIONS = "durations"  # the kind of entry in the store: how long a command took, by its words


@contextmanager
def signs_of_life(words: Sequence[str]) -> Iterator[None]:
    """A line on stderr where nothing was said for two seconds, then every ten: what is being done, and for how long.

    Where the same command has run before, a bar says how much of its last time is over.
    """
    over, started = threading.Event(), time.monotonic()
    _SAID.begin(visible(" ".join(words[:1])))

    def watch() -> None:
        told_at, usual_s = 0.0, math.nan  # unknown until something is said
        while not over.wait(_BEAT_S):
            now = time.monotonic()
            silent = now - _SAID.at
            if _BARS or silent < _FIRST_SIGN_S or (told_at > _SAID.at and now - told_at < _NEXT_SIGN_S):
                continue
            from llm_perf_opt.core.run_lock import current_work

            told_at = now
            usual_s = _seconds_before(words) if math.isnan(usual_s) else usual_s
            doing = current_work() or _SAID.text.strip().rstrip(" .")
            _print(f"  still running ({silent:.0f} s): {visible(doing)}{_bar(now - started, usual_s)}")

    thread = threading.Thread(target=watch, name="llm-perf-opt signs of life", daemon=True)
    thread.start()
    try:
        yield
    except SystemExit as end:
        if not end.code:
            _keep_seconds(words, time.monotonic() - started)
        raise
    finally:
        over.set()
        thread.join()


def _bar(spent_s: float, usual_s: float) -> str:
    """Nothing where the time is not known or was not enough."""
    if not spent_s < usual_s:
        return ""
    full = int(_BAR_WIDTH * spent_s / usual_s)
    return f"  [{'#' * full}{'.' * (_BAR_WIDTH - full)}] {spent_s:.0f} of about {usual_s:.0f} s"


def _seconds_before(words: Sequence[str]) -> float:
    """What the same command took when it ran last, with this program; 0 if it never did."""
    from llm_perf_opt.core import store

    return store.find_entry(_DURATIONS, store.entry_key(_DURATIONS, {"words": [*words]}), _seconds_in) or 0.0


def _seconds_in(content: bytes) -> float:
    return struct.unpack("<d", content)[0] if len(content) == struct.calcsize("<d") else 0.0


def _keep_seconds(words: Sequence[str], spent_s: float) -> None:
    """Replaces the time of the run before, if this one took long enough for a sign of life."""
    if spent_s < _FIRST_SIGN_S:
        return
    from llm_perf_opt.core import store

    key = store.entry_key(_DURATIONS, {"words": [*words]})
    store.keep_entry(_DURATIONS, key, visible(" ".join(words)), struct.pack("<d", spent_s), is_packed=False)


def log_to_stderr() -> None:
    """Send the package's log to stderr, from INFO on; other libraries keep their own settings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Plain())
    logger = logging.getLogger("llm_perf_opt")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)


def log_debug_too() -> None:
    """Let DEBUG through too: `--verbose`."""
    logging.getLogger("llm_perf_opt").setLevel(logging.DEBUG)


@contextmanager
def few_lines_per_trace() -> Iterator[None]:
    """For a verb that traces many points: each without its lines, as long as nothing goes wrong."""
    logger = logging.getLogger("llm_perf_opt.tracing.traced_phases")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


def say(line: str) -> None:
    """One line on stderr."""
    line = visible_lines(line)
    _SAID.last(line)
    _print(line)


def _print(line: str) -> None:
    """A stderr that is full or closed costs the line, not the result."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


_BARS: list[object] = []  # the bar on the screen, which is a sign of life itself


class ProgressBar:
    """Pages as steps; the stage that runs now is next to the bar, redrawn a few times a second by another thread."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._task = bar.add_task("loading", total=None, stage="")

    def begin(self, total: int, done: int) -> None:
        """The bar appears at what was done before."""
        self._bar.update(self._task, total=total, completed=done)

    def page(self, image: str) -> None:
        """Its name, as it was listed."""
        self._bar.update(self._task, description=visible(image))

    def page_done(self) -> None:
        """One step on."""
        self._bar.advance(self._task)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Only a word in the task's fields: drawing it is left to the bar's own rhythm."""
        self._bar.tasks[0].fields["stage"] = visible(name)
        yield


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """None unless stderr is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.fields[stage]}", markup=False),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(file=plain_stderr()), refresh_per_second=4, transient=True) as bar:
        _BARS.append(bar)
        try:
            yield ProgressBar(bar)
        finally:
            _BARS.remove(bar)


# What a terminal is shown: nothing from outside can move its cursor, change its colours or hide a line.
#
# Names and messages are made visible where they are printed. What libraries and Python itself write to stderr
# (warnings, tracebacks, usage errors) passes a stream that does the same.

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

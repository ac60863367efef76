"""What goes to stderr: log lines, closing lines, and a bar for runs of minutes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_perf_opt.api.profile.profiling import Progress


class _Plain(logging.Formatter):
    """Progress reads as a sentence; what is more than progress says so."""

    def format(self, record: logging.LogRecord) -> str:
        label = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        return label + record.getMessage()


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


def say(line: str) -> None:
    """One line on stderr."""
    print(line, file=sys.stderr)


class ProgressBar:
    """Pages as steps; the stage that runs now stands beside the bar, redrawn a few times a second by another thread."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._task = bar.add_task("loading", total=None, stage="")

    def begin(self, total: int, done: int) -> None:
        """The bar appears at what was done before."""
        self._bar.update(self._task, total=total, completed=done)

    def page(self, image: str) -> None:
        """Its name, as it was listed."""
        self._bar.update(self._task, description=image)

    def page_done(self) -> None:
        """One step on."""
        self._bar.advance(self._task)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Only a word in the task's fields: drawing it is left to the bar's own rhythm."""
        self._bar.tasks[0].fields["stage"] = name
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
    with Bar(*columns, console=Console(stderr=True), refresh_per_second=4, transient=True) as bar:
        yield ProgressBar(bar)

"""Running a model quietly: its prints off stdout, the profiler's messages off stderr, garbage collection put off."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

log = logging.getLogger(__name__)


@contextmanager
def few_collections() -> Iterator[None]:
    """Collect garbage rarely: a full collection walks the whole model, and a long run would trigger hundreds.

    Activations are freed by reference counting, as in a real run, so nothing waits for the collector.
    """
    thresholds: tuple[Any, ...] = gc.get_threshold()
    gc.set_threshold(200_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@contextmanager
def quiet_profiler() -> Iterator[None]:
    """The profiler's library announces its start and end on stderr, below any level that Python could set."""
    name, before = "KINETO_LOG_LEVEL", os.environ.get("KINETO_LOG_LEVEL")
    os.environ.setdefault(name, "6")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Catch prints of model code; they go to the log, where `--verbose` shows them."""
    caught = io.StringIO()
    try:
        with contextlib.redirect_stdout(caught):
            yield
    finally:
        for line in caught.getvalue().splitlines():
            log.debug("model printed: %s", line)

"""Keeps what a model's forward prints away from our own standard output, where only results belong."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator

log = logging.getLogger(__name__)


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

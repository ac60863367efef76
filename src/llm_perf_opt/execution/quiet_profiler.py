"""torch's profiler without what its library says on stderr."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


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

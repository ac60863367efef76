"""Garbage collection, put off while a model runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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

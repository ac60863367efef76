"""What is found out once for a trace while several questions are asked of it, and forgotten after the last.

The anatomy of a trace, its necessary work and its memory hold for every device. Inside `shared_work` they are computed
once; outside of it nothing is kept, so that no trace outlives those who use it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_Asked = ParamSpec("_Asked")
_Found = TypeVar("_Found")
_KEPT: ContextVar[dict[Hashable, tuple[Any, Any]] | None] = ContextVar("kept of traces", default=None)


@contextmanager
def shared_work() -> Iterator[None]:
    """Keep what functions marked `found_once` return; a scope inside another one shares its results."""
    if _KEPT.get() is not None:
        yield
        return
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def found_once(function: Callable[_Asked, _Found]) -> Callable[_Asked, _Found]:
    """The function, called once for each trace inside `shared_work`. Nobody changes what it returns.

    Its first argument is a trace or the phases of one, and is known by identity; the others are hashable.
    """

    @wraps(function)
    def once(*args: _Asked.args, **options: _Asked.kwargs) -> _Found:
        kept = _KEPT.get()
        if kept is None:
            return function(*args, **options)
        first, *others = args
        key = (function, id(first), *others, *sorted(options.items()))
        if key not in kept:
            kept[key] = first, function(*args, **options)  # the argument too, so that its identity stays its own
        found: _Found = kept[key][1]
        return found

    return once

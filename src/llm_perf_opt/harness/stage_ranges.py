"""Where stages begin and end while a model runs, reported to a watch: a clock, a profiler, both.

A stage that belongs to modules begins when their `forward` does. Only those modules are wrapped, so that a timed run
pays for a handful of calls; naming every module is an option of its own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.profiler import record_function

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plain_text import visible_ascii
from llm_perf_opt.core.protocols import StageWatch
from llm_perf_opt.core.target import Stage
from llm_perf_opt.harness.module_calls import unwatch, watch_modules

STAGE_PREFIX = "stage: "
MODULE_PREFIX = "module: "
RANGES = ("none", "stages", "modules")
PASS_RANGE = "llm-perf-opt pass"  # around one whole pass, for profilers that are to look at nothing else


class Unwatched:
    """Nobody looks."""

    def stage(self, name: str) -> AbstractContextManager[object]:
        """Nothing happens at either end."""
        return nullcontext()


class WatchedByAll:
    """Several watchers at once, the first outermost."""

    def __init__(self, *watches: StageWatch) -> None:
        self._watches = watches

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Tell each of them."""
        with ExitStack() as stack:
            for watch in self._watches:
                stack.enter_context(watch.stage(name))
            yield


class NamedRanges:
    """Puts the name of every stage into the profilers' records: torch's own, and with CUDA also NVTX."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A range named `stage: NAME`."""
        with named_range(f"{STAGE_PREFIX}{name}"):
            yield


_LONGEST_RANGE = 500
_QUOTES = str.maketrans({'"': "'", "\\": "/"})


def range_text(text: str) -> str:
    """As torch's profiler can write it: it drops what is not ASCII, and puts a name into its file as it stands."""
    return visible_ascii(text[:_LONGEST_RANGE]).translate(_QUOTES)


@contextmanager
def named_range(text: str) -> Iterator[None]:
    """A range of this name in the profilers' records."""
    text = range_text(text)
    with record_function(text):
        if not _has_cuda():
            yield
            return
        torch.cuda.nvtx.range_push(text)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()


@functools.cache
def _has_cuda() -> bool:
    """Asked once: a range around every module would ask thousands of times."""
    return torch.cuda.is_available()


@contextmanager
def modules_named(model: torch.nn.Module) -> Iterator[None]:
    """Every module call becomes a range named `module: PATH` in the profilers' records."""
    ranges: list[ExitStack] = []

    def enter(path: str, tensors: Sequence[torch.Tensor]) -> None:
        stack = ExitStack()
        stack.enter_context(named_range(f"{MODULE_PREFIX}{path or '(root)'}"))
        ranges.append(stack)

    def leave(tensors: Sequence[torch.Tensor]) -> None:
        ranges.pop().close()

    with watch_modules(model, enter, leave):
        yield


@contextmanager
def ranges_named(model: torch.nn.Module, watch: StageWatch, ranges: str) -> Iterator[StageWatch]:
    """A watch that also names "stages" in the profilers' records, or "modules" besides; "none" leaves it as it is."""
    if ranges not in RANGES:
        raise UsageError(
            f"There are no ranges {ranges!r}.", why=f"the choices are: {', '.join(RANGES)}", fix="choose one"
        )
    with modules_named(model) if ranges == "modules" else nullcontext():
        yield watch if ranges == "none" else WatchedByAll(watch, NamedRanges())


@contextmanager
def stages_watched(
    model: torch.nn.Module, stages: Sequence[Stage], watch: StageWatch, entry: str = "forward"
) -> Iterator[None]:
    """Report to `watch` every call of the modules at the roots of `stages`, also where `forward` is called directly.

    The path "" is the model itself, which is called by the method `entry`. Calls in other threads are not reported.
    """
    with ExitStack() as undo:
        for stage in stages:
            for path in stage.paths:
                module, method = model.get_submodule(path), "forward" if path else entry
                undo.callback(unwatch, module, module.__dict__.get(method), method)
                module.__dict__[method] = _watched(getattr(module, method), stage.name, watch)
        yield


def _watched(forward: Callable[..., Any], name: str, watch: StageWatch) -> Callable[..., Any]:
    thread = threading.get_ident()

    @functools.wraps(forward)  # libraries read the signature of `model.forward` to pick arguments
    def watched(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return forward(*args, **kwargs)
        with watch.stage(name):
            return forward(*args, **kwargs)

    return watched

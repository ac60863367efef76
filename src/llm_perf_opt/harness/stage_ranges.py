"""Where stages begin and end while a model runs, told to whoever watches: a clock, a profiler, both.

A stage that belongs to modules begins when their `forward` does. Only those modules are wrapped, so that a timed run
pays for a handful of calls; naming every module is a wish of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.profiler import record_function

from llm_perf_opt.core.protocols import Stage, StageWatch
from llm_perf_opt.harness.module_calls import watch_modules

STAGE_PREFIX = "stage: "
MODULE_PREFIX = "module: "
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


@contextmanager
def named_range(text: str) -> Iterator[None]:
    """A range of this name in the profilers' records."""
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
def stages_told(model: torch.nn.Module, stages: Sequence[Stage], watch: StageWatch) -> Iterator[None]:
    """Tell `watch` of every call of the modules at the roots of `stages`, also where `forward` is called directly."""
    wrapped: list[tuple[torch.nn.Module, Any]] = []
    try:
        for stage in stages:
            for path in stage.paths:
                module = model.get_submodule(path)
                wrapped.append((module, module.__dict__.get("forward")))
                module.__dict__["forward"] = _told(module.forward, stage.name, watch)
        yield
    finally:
        for module, own_forward in wrapped:
            if own_forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = own_forward


def _told(forward: Callable[..., Any], name: str, watch: StageWatch) -> Callable[..., Any]:
    @functools.wraps(forward)  # libraries read the signature of `model.forward` to pick arguments
    def told(*args: Any, **kwargs: Any) -> Any:
        with watch.stage(name):
            return forward(*args, **kwargs)

    return told

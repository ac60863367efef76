"""Running a model quietly: its prints off stdout, the profiler's messages off stderr, garbage collection put off.

stdout, stderr, the environment and the collector belong to the whole process. What a thread prints is caught in that
thread alone; the rest is changed by the first who asks and put back by the last who leaves.
"""

from __future__ import annotations

import gc
import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

from llm_perf_opt.core.interrupts import InterruptsWait, puts_back

log = logging.getLogger(__name__)

_LOCK = threading.RLock()

PutBack = Callable[[], None]
Keep = Callable[[PutBack], None]  # how to put a change back is kept before the change is made


class _Shared:
    """Something process-wide that is changed while anybody wants it so."""

    def __init__(self, change: Callable[[Keep], None]) -> None:
        self._change = change
        self._put_back: PutBack | None = None
        self.users: set[object] = set()

    @contextmanager
    def wanted(self) -> Iterator[None]:
        user = object()
        with ExitStack() as undo:
            with InterruptsWait(), _LOCK:
                undo.callback(self._leave, user)
                self.users.add(user)
                if self._put_back is None:
                    self._change(self._keep)
            yield

    def _keep(self, put_back: PutBack) -> None:
        self._put_back = put_back

    @puts_back
    def _leave(self, user: object) -> None:
        with InterruptsWait(), _LOCK:
            self.users.discard(user)
            if not self.users and self._put_back is not None:
                put_back, self._put_back = self._put_back, None
                put_back()


def _collect_rarely(keep: Keep) -> None:
    thresholds: tuple[Any, ...] = gc.get_threshold()
    keep(lambda: gc.set_threshold(*thresholds))
    gc.set_threshold(200_000, 50, 1000)


def _quieten_profiler(keep: Keep) -> None:
    name = "KINETO_LOG_LEVEL"
    if name not in os.environ:
        keep(lambda: _unset(name))
        os.environ[name] = "6"


def _unset(name: str) -> None:
    os.environ.pop(name, None)


_COLLECTOR, _PROFILER = _Shared(_collect_rarely), _Shared(_quieten_profiler)


@contextmanager
def few_collections() -> Iterator[None]:
    """Collect garbage rarely: a full collection walks the whole model, and a long run would trigger hundreds.

    Activations are freed by reference counting, as in a real run, so nothing waits for the collector.
    """
    with _COLLECTOR.wanted():
        yield


@contextmanager
def quiet_profiler() -> Iterator[None]:
    """The profiler's library announces its start and end on stderr, below any level that Python could set."""
    with _PROFILER.wanted():
        yield


class _RoutedStream(io.TextIOBase):
    """Stands in for stdout or stderr: what a silenced thread prints is caught, what any other prints goes on."""

    def __init__(self, name: str) -> None:
        self.plain: TextIO = getattr(sys, name)
        self.caught: dict[int, list[io.StringIO]] = {}  # thread -> its buffers, innermost last

    def write(self, text: str) -> int:
        return self._of_thread().write(text)

    def flush(self) -> None:
        self._of_thread().flush()

    def _of_thread(self) -> TextIO:
        buffers = self.caught.get(threading.get_ident())
        return buffers[-1] if buffers else self.plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)  # encoding, fileno, buffer, isatty


class _Stream:
    """One of the process's streams, and what stands in for it right now."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.routed: list[_RoutedStream] = []  # in use; more than one where somebody redirected the stream in between
        self._spare: list[_RoutedStream] = []  # kept for good: `print` in another thread may hold one without owning it

    @contextmanager
    def caught(self, buffer: io.StringIO) -> Iterator[None]:
        """What this thread prints goes into `buffer`."""
        thread = threading.get_ident()
        with ExitStack() as undo:
            with InterruptsWait(), _LOCK:
                routed = self._router()
                undo.callback(self._let_speak, routed, thread, buffer)
                routed.caught.setdefault(thread, []).append(buffer)
                if routed not in self.routed:
                    routed.plain = getattr(sys, self.name)
                    self.routed.append(routed)
                    setattr(sys, self.name, routed)
            yield

    def _router(self) -> _RoutedStream:
        """The one that is the stream now, or one to be put there."""
        current: object = getattr(sys, self.name)
        if self.routed and self.routed[-1] is current:
            return self.routed[-1]
        return self._spare.pop() if self._spare else _RoutedStream(self.name)

    @puts_back
    def _let_speak(self, routed: _RoutedStream, thread: int, buffer: io.StringIO) -> None:
        with InterruptsWait(), _LOCK:
            buffers = routed.caught.get(thread, [])
            if buffer in buffers:
                buffers.remove(buffer)
            if not buffers:
                routed.caught.pop(thread, None)
            if routed.caught or routed not in self.routed:
                return
            self.routed.remove(routed)
            if getattr(sys, self.name) is routed:
                setattr(sys, self.name, routed.plain)
                self._spare.append(routed)
            # Else another has redirected the stream since and will put this one back: it passes everything on.


_STDOUT, _STDERR = _Stream("stdout"), _Stream("stderr")


@contextmanager
def silenced() -> Iterator[None]:
    """Catch prints of model code in this thread; they go to the log, where `--verbose` shows them."""
    buffer = io.StringIO()
    with ExitStack() as undo:
        undo.callback(_log_lines, buffer)
        undo.enter_context(_STDOUT.caught(buffer))
        yield


@contextmanager
def errors_dropped() -> Iterator[None]:
    """Drop what this thread writes on stderr."""
    with _STDERR.caught(io.StringIO()):
        yield


def _log_lines(buffer: io.StringIO) -> None:
    for line in buffer.getvalue().splitlines():
        log.debug("model printed: %s", line)

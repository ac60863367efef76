"""Ctrl-C and clean-up: an interrupt takes effect while model code runs, and waits while things are put back.

Python raises `KeyboardInterrupt` between any two instructions of the main thread, also in the middle of a `finally`.
What had not been put back by then would stay changed for the rest of the process.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

# Functions in which an interrupt always waits. contextlib resumes a generator that is a context manager, and its
# frame comes before the generator's `finally`; until contextlib has returned from entering it, nobody would leave it.
_PUTTING_BACK: set[CodeType] = {
    contextlib._GeneratorContextManager.__enter__.__code__,
    contextlib._GeneratorContextManager.__exit__.__code__,
    contextlib.ExitStack.__exit__.__code__,
    contextlib.ExitStack.close.__code__,
}


_IMPORTING = "<frozen importlib._bootstrap>"


class _State:
    """Of the main thread, the only one that Python interrupts."""

    def __init__(self) -> None:
        self.depth = 0  # nested blocks that hold interrupts back
        self.is_open = False  # whether one may take effect now
        self.is_pending = False
        self.handler: Handler | int | None = None  # the one that was there before; None: one that is not Python's
        self.raised: BaseException | None = None  # what the interrupt raised in model code
        self.stop: Exception | None = None  # what another thread wants raised, as if Ctrl-C had been pressed


_STATE = _State()


def puts_back(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that restores state, or changes it and returns: an interrupt waits until it is done."""
    _PUTTING_BACK.add(function.__code__)
    return function


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    if _STATE.stop is None and _STATE.handler == signal.SIG_IGN:
        return  # a program in the background: Ctrl-C is not meant for it
    if _STATE.is_open and not _has_to_wait(frame):
        _raise_now(frame)
    else:
        _STATE.is_pending = True


def _has_to_wait(frame: FrameType | None) -> bool:
    """Whether something is being put back, or imported: half of an import stays in `sys.modules` for good."""
    while frame is not None:
        if frame.f_code in _PUTTING_BACK or frame.f_code.co_filename == _IMPORTING:
            return True
        frame = frame.f_back
    return False


def _raise_now(frame: FrameType | None = None) -> None:
    """Do what the interrupt would have done; from here on further ones wait."""
    _STATE.is_open = _STATE.is_pending = False
    stop, _STATE.stop = _STATE.stop, None
    try:
        if stop is not None:
            raise stop
        if callable(_STATE.handler):
            _STATE.handler(signal.SIGINT, frame)
        elif _STATE.handler == signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
    except BaseException as error:
        _STATE.raised = error if _STATE.depth else None  # with the outermost block it is over
        raise


def stop_main_thread(reason: Exception) -> None:
    """From another thread: raise `reason` in model code of the main thread, now or when it gets there."""
    if _STATE.depth and signal.getsignal(signal.SIGINT) is _on_interrupt:
        _STATE.stop = reason
        _STATE.is_pending = True
        remind_main_thread()


def remind_main_thread() -> None:
    """From another thread: an interrupt that had to wait may take effect by now."""
    if _STATE.is_pending and _STATE.is_open and signal.getsignal(signal.SIGINT) is _on_interrupt:
        _thread.interrupt_main()


def take_back_stop() -> None:
    """The run that was to be stopped is over."""
    if _is_main_thread() and _STATE.stop is not None:
        _STATE.stop = None
        _STATE.is_pending = False


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class InterruptsWait:
    """While open, an interrupt waits; it is raised when the outermost such block ends. Other threads notice nothing."""

    def __init__(self) -> None:
        self._counts = False
        self._was_open = False

    def __enter__(self) -> None:
        if not _is_main_thread():
            return
        if _STATE.depth == 0:
            _STATE.handler = signal.getsignal(signal.SIGINT)
            if _STATE.handler is not None:
                signal.signal(signal.SIGINT, _on_interrupt)
        self._was_open, _STATE.is_open = _STATE.is_open, False
        _STATE.depth += 1
        self._counts = True

    @puts_back
    def __exit__(self, *error: object) -> None:
        if not self._counts:
            return
        self._counts = False
        _STATE.depth -= 1
        if _STATE.depth == 0:
            _STATE.raised = None
        if _STATE.depth == 0 and _STATE.handler is not None and signal.getsignal(signal.SIGINT) is _on_interrupt:
            signal.signal(signal.SIGINT, _STATE.handler)
        if _STATE.is_pending and (_STATE.depth == 0 or self._was_open):
            _raise_now()
        _STATE.is_open = self._was_open


class Interruptible:
    """Within `InterruptsWait`: a block in which an interrupt takes effect at once, such as a model's forward."""

    def __init__(self) -> None:
        self._was_open = False

    def __enter__(self) -> None:
        if not _is_main_thread():
            return
        if _STATE.is_pending and _STATE.depth:
            _raise_now()
        self._was_open, _STATE.is_open = _STATE.is_open, True

    @puts_back
    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        if not _is_main_thread():
            return
        _STATE.is_open = self._was_open
        raised = _STATE.raised if _STATE.depth else None
        if raised is not None and error is not raised and (error is None or isinstance(error, Exception)):
            raise raised from error  # TorchScript turns it into an error of its own, and Python drops it in a finaliser

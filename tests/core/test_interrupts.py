"""Ctrl-C: it takes effect in a model's forward, and waits wherever state is being put back."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from llm_perf_opt.core import interrupts, run_lock
from llm_perf_opt.core.interrupts import Interruptible, InterruptsWait
from llm_perf_opt.core.run_lock import OneRun


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    found = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
    yield
    assert signal.signal(signal.SIGINT, found) is signal.default_int_handler
    state = interrupts._STATE
    assert (state.depth, state.is_open, state.is_pending, state.raised) == (0, False, False, None)


def test_it_waits_for_the_outermost_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), InterruptsWait():
        with InterruptsWait():
            press()
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]


def test_it_takes_effect_in_model_code() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), InterruptsWait():
        try:
            with Interruptible():
                press()
                done.append("never")
        finally:
            press()  # pressed twice: this one waits
            done.append("undone")
    assert done == ["undone"]


def test_one_that_model_code_turns_into_an_error_is_still_an_interrupt() -> None:
    def model() -> None:
        try:
            press()
        except KeyboardInterrupt as error:
            raise RuntimeError("failed in an interpreter of its own") from error

    with pytest.raises(KeyboardInterrupt) as caught, InterruptsWait(), Interruptible():
        model()
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(RuntimeError), InterruptsWait(), Interruptible():
        raise RuntimeError("of the next run")


class _Finalised:
    def __del__(self) -> None:
        press()
        raise AssertionError("went on")


def test_one_that_python_drops_in_a_finaliser_is_raised_when_model_code_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: dropped.append(error.exc_type))
    done = []
    with pytest.raises(KeyboardInterrupt), InterruptsWait(), Interruptible():
        _Finalised()
        done.append("model")
    assert (dropped, done) == ([KeyboardInterrupt], ["model"])


def test_one_that_comes_while_a_block_is_noted_as_free_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = pytest.importorskip("llm_perf_opt.weightless.storage", reason="torch is not installed")
    freed: list[int] = []

    def note(number: int) -> None:
        press()
        freed.append(number)

    monkeypatch.setattr(storage.Storage, "on_free", note)
    with pytest.raises(KeyboardInterrupt), InterruptsWait(), Interruptible():
        storage.Storage()
    assert len(freed) == 1


def test_one_that_came_before_takes_effect_when_model_code_begins() -> None:
    with pytest.raises(KeyboardInterrupt), InterruptsWait():
        press()
        with Interruptible():
            raise AssertionError("model code ran after Ctrl-C")


def test_a_handler_of_the_program_is_asked_and_put_back() -> None:
    asked = []
    before = signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    try:
        with InterruptsWait():
            press()
            assert not asked
        assert asked == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_program_in_the_background_ignores_ctrl_c_and_is_still_stopped() -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with InterruptsWait(), Interruptible():
            press()
        reason = RuntimeError("the time is over")
        timer = threading.Timer(0.2, lambda: interrupts.stop_main_thread(reason))
        timer.start()
        with pytest.raises(RuntimeError, match="the time is over"), InterruptsWait(), Interruptible():
            while True:
                pass
        timer.join()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def _state(log: list[str]) -> Iterator[None]:
    log.append("changed")
    try:
        yield
    finally:
        log.append("restoring")
        log.append("restored")


def _press_at_step(count: int) -> Any:
    """A trace function that presses Ctrl-C at the `count`-th line or call."""
    left = [count]

    def at_line(frame: FrameType, event: str, arg: object) -> Any:
        left[0] -= 1
        if left[0] == 0:
            press()
        return at_line

    return at_line


@pytest.mark.parametrize("step", range(1, 120))
def test_pressed_at_any_line_of_a_run_everything_is_put_back(step: int) -> None:
    log: list[str] = []
    is_interrupted = False
    previous = sys.gettrace()
    gc.disable()  # Python drops what is pressed inside a finaliser, whichever one a collection would run here
    sys.settrace(_press_at_step(step))
    try:
        with OneRun(), _state(log), Interruptible():
            log.append("running")
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        sys.settrace(previous)
        gc.enable()
    assert is_interrupted or step > 90
    assert log.count("changed") == log.count("restored")
    assert run_lock._LOCK.acquire(blocking=False)
    run_lock._LOCK.release()
    assert not run_lock._LOCK._is_owned()  # type: ignore[attr-defined]


@pytest.mark.parametrize("step", range(1, 120))
def test_what_model_code_enters_is_left_at_once(step: int) -> None:
    log: list[str] = []
    caught: KeyboardInterrupt | None = None
    previous = sys.gettrace()
    gc.disable()  # Python drops what is pressed inside a finaliser, whichever one a collection would run here
    sys.settrace(_press_at_step(step))
    try:
        with OneRun(), Interruptible(), _state(log):
            log.append("running")
    except KeyboardInterrupt as error:
        caught = error  # keeps the frames alive: nothing is left to a finaliser
    finally:
        sys.settrace(previous)
        gc.enable()
    assert caught is not None or step > 90
    assert log.count("changed") == log.count("restored")


def test_it_ends_the_wait_for_a_turn_also_where_something_is_being_entered() -> None:
    taken, done = threading.Event(), threading.Event()

    def other() -> None:
        with OneRun():
            taken.set()
            done.wait(20)

    @contextmanager
    def entered() -> Iterator[None]:
        with OneRun():
            yield

    thread = threading.Thread(target=other)
    thread.start()
    taken.wait()
    pressing = threading.Timer(0.2, press)
    pressing.start()
    try:
        with pytest.raises(KeyboardInterrupt), entered():
            raise AssertionError("another thread runs a model")
        assert not done.is_set()
    finally:
        done.set()
        thread.join()
        pressing.join()


def test_another_thread_waits_its_turn() -> None:
    order: list[str] = []
    waiting = threading.Event()

    def other() -> None:
        waiting.set()
        with OneRun():
            order.append("second")

    thread = threading.Thread(target=other)
    with OneRun():
        thread.start()
        waiting.wait()
        thread.join(0.2)
        order.append("first")
        assert thread.is_alive()
    thread.join()
    assert order == ["first", "second"]


def test_a_run_may_begin_within_a_run_of_the_same_thread() -> None:
    with OneRun(), OneRun():
        pass

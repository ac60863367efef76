"""Silence is for one thread, ends on every way out, and a fault while it begins leaves nothing behind."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

import pytest

from llm_perf_opt.harness import quiet


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_only_the_thread_that_asks_is_silenced(stream: str, capsys: pytest.CaptureFixture[str]) -> None:
    catch = quiet.silenced if stream == "stdout" else quiet.errors_dropped
    plain = getattr(sys, stream)
    with catch():
        print("from the model", file=getattr(sys, stream))
        other = threading.Thread(target=lambda: print("from the program", file=getattr(sys, stream)))
        other.start()
        other.join()
    assert getattr(capsys.readouterr(), "out" if stream == "stdout" else "err") == "from the program\n"
    assert getattr(sys, stream) is plain


@pytest.mark.parametrize(
    "enter",
    [quiet.silenced, quiet.errors_dropped, quiet.few_collections, quiet.quiet_profiler],
    ids=lambda one: one.__name__,
)
def test_a_fault_at_any_line_before_the_block_leaves_nothing(enter: Callable[[], AbstractContextManager[None]]) -> None:
    before = (sys.stdout, sys.stderr, gc.get_threshold())
    number = 1
    while fails_at_line(enter, number):
        assert (sys.stdout, sys.stderr, gc.get_threshold()) == before
        assert not quiet._STDOUT.routed
        assert not quiet._STDERR.routed
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(quiet._LOCK.acquire, timeout=1).result()
            pool.submit(quiet._LOCK.release).result()
        number += 1
    assert number > 3  # there were lines to fail at
    with enter():
        pass
    assert (sys.stdout, sys.stderr, gc.get_threshold()) == before


def fails_at_line(enter: Callable[[], AbstractContextManager[None]], number: int) -> bool:
    """Raise before the n-th line of `quiet.py` that runs while `enter` is entered; False where it has fewer.

    A line that is met again is the end of a `with` block, where Python would skip what the block undoes.
    """
    lines: set[tuple[str, int]] = set()
    is_inside = False

    def on_event(frame: FrameType, event: str, argument: object) -> Any:
        place = (frame.f_code.co_name, frame.f_lineno)
        if is_inside or frame.f_code.co_filename != quiet.__file__:
            return None
        if event == "line" and place not in lines and place[0] in ("wanted", "caught", enter.__name__):
            lines.add(place)
            if len(lines) == number:
                raise MemoryError
        return on_event

    sys.settrace(on_event)
    try:
        with enter():
            is_inside = True
        return False
    except MemoryError:
        return True
    finally:
        sys.settrace(None)


def test_the_last_who_leaves_puts_the_collector_back() -> None:
    before = gc.get_threshold()
    first, second = quiet.few_collections(), quiet.few_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() != before
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before

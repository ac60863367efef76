"""Faults in our own functions: on entry of the n-th call, and at each line of a context manager up to its block.

A step that puts something back cannot do so when it is never entered, so what runs while things are put back is made to
raise on return: then the step is done, and every later one has to be done all the same.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import llm_perf_opt
from llm_perf_opt.core import interrupts
from llm_perf_opt.weightless import engine
from scripts.campaigns.forward_faults import Subject, is_told, left_behind, outcome, quiet_streams, subjects
from scripts.campaigns.plain_world import describe, look
from scripts.campaigns.rows import Row
from scripts.campaigns.stand_in import ERRORS, PLAN

NAME = "own_faults"
HOUSE = str(Path(llm_perf_opt.__file__).parent)
ROOMS = ("core", "weightless", "harness", "sources", "labs", "models", "api")
WANTED = {  # subject -> faults in the full and in the quick campaign
    "tracer weightless": (800, 35),
    "tracer hooks": (400, 20),
    "tracer hooks, filtered": (60, 0),
    "tracer profiler": (200, 5),
    "tracer profiler, filtered, with details": (60, 0),
    "tracer torchlens": (40, 0),
    "torchlens picture": (25, 0),
    "source torch-counter": (150, 5),
    "source byte-counter": (60, 0),
    "source fvcore": (80, 0),
    "fvcore, whole runs": (60, 0),
    "fvcore on real tensors": (60, 0),
    "fvcore, whole real runs": (40, 0),
    "export lab": (25, 0),
    "export lab with weights": (60, 0),
    "first arguments": (40, 5),
    "trace of a module": (150, 5),
    "timed run": (250, 8),
    "operator pass": (60, 0),
}


@dataclass(frozen=True, slots=True)
class Place:
    """The n-th time that one of our functions is entered, is left, or (a generator) passes a line before its yield."""

    code: CodeType
    event: str  # "call", "return" or "line"
    number: int

    def __str__(self) -> str:
        file = self.code.co_filename.removeprefix(f"{HOUSE}/")
        return f"{self.event} {self.number} of {self.code.co_qualname} in {file}"


class Tracing:
    """Counts places of our own functions in this thread, and raises at one of them."""

    def __init__(self, at: Place | None = None, error: type[BaseException] = RuntimeError) -> None:
        self.counts: Counter[tuple[CodeType, str]] = Counter()
        self.raised: list[BaseException] = []
        self._at, self._error = at, error

    def __enter__(self) -> Tracing:
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not _is_ours(code.co_filename):
            return None
        if _first_yield(code) is not None:
            return None if code.co_name == "<genexpr>" or _is_putting_back(frame) else _Lines(self).on_event
        if self._at is None or self._at.code is code:
            if not _is_putting_back(frame):
                self.reach(code, "call")
            frame.f_trace_lines = False
            return self._on_return
        return None

    def _on_return(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "return" and _is_putting_back(frame):
            self.reach(frame.f_code, "return")
        return self._on_return

    def reach(self, code: CodeType, event: str) -> None:
        """This place is passed; at the planned one an error is raised."""
        self.counts[code, event] += 1
        at = self._at
        if at is not None and at.code is code and at.event == event and at.number == self.counts[code, event]:
            error = self._error("planned fault")
            self.raised.append(error)
            raise error


class _Lines:
    """The lines of one generator up to its first yield.

    A line that is met again is the end of a `with` block. Python would skip what the block undoes, which no error of
    ours can bring about and Ctrl-C, which waits there, neither.
    """

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._last = 0

    def on_event(self, frame: FrameType, event: str, argument: Any) -> Any:
        end = _first_yield(frame.f_code)
        if event == "line" and end is not None and frame.f_lasti < end and frame.f_lineno > self._last:
            self._last = frame.f_lineno
            self._tracing.reach(frame.f_code, "line")
        return self.on_event


@functools.cache
def _is_ours(file: str) -> bool:
    """Not the guard itself that holds Ctrl-C back while things are put back."""
    return file != interrupts.__file__ and any(file.startswith(f"{HOUSE}/{room}/") for room in ROOMS)


@functools.cache
def _first_yield(code: CodeType) -> int | None:
    """Where a generator first yields; None for a function."""
    if not code.co_flags & inspect.CO_GENERATOR:
        return None
    return next((step.offset for step in dis.get_instructions(code) if step.opname == "YIELD_VALUE"), None)


def _is_putting_back(frame: FrameType | None) -> bool:
    """Not what is entered meanwhile: that is taken, and can be given back only after it is."""
    while frame is not None and frame.f_code.co_name != "__enter__":
        if frame.f_code in interrupts._PUTTING_BACK:
            return True
        frame = frame.f_back
    return False


def run(*, quick: bool, seed: int) -> list[Row]:
    """One row for each way of running a model."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, quiet_streams():
        for subject in subjects(Path(folder)):
            wanted = WANTED.get(subject.name, (0, 0))[1 if quick else 0]
            if wanted:
                rows.append(campaign(subject, wanted, seed))
    return rows


def campaign(subject: Subject, wanted: int, seed: int) -> Row:
    """So many faults in the functions that this subject reaches: of each the first, a middle and the last time."""
    PLAN.set(0, RuntimeError)
    subject.run()
    first = subject.run()
    with Tracing() as tracing:
        subject.run()
    places = list(_places(tracing.counts))
    chosen = random.Random(f"{seed} {subject.name}")
    chosen.shuffle(places)
    findings: list[str] = []
    for place in places[:wanted]:
        error = chosen.choice(ERRORS)
        found = faulted(subject, place, error, first)
        findings += [f"{subject.name}, {error.__name__} at {place}: {finding}" for finding in found]
    functions = len({code for code, _ in tracing.counts})
    what = f"{subject.name}, {functions} functions"
    return Row(campaign=NAME, what=what, tried=min(wanted, len(places)), findings=findings)


def _places(counts: Counter[tuple[CodeType, str]]) -> Iterator[Place]:
    for (code, event), count in counts.items():
        for number in sorted({1, (count + 1) // 2, count}):
            yield Place(code, event, number)


def faulted(subject: Subject, place: Place, error: type[BaseException], first: object) -> Iterator[str]:
    """What one fault did wrong.

    A run may go on after a fault in a finaliser, whose errors Python gives to nobody, and after one that a guess may
    have caused: the guess is revised, and the trace says so.
    """
    before = look()
    module = None if subject.module is None else describe(subject.module)
    with _finaliser_errors() as lost, Tracing(place, error) as tracing:
        caught = outcome(subject.run)
    may_go_on = lost or not subject.is_traced or issubclass(error, engine._OF_A_GUESS)
    if isinstance(caught, BaseException):
        if not is_told(tracing.raised, caught):
            yield f"the caller got {caught!r:.160}"
    elif caught != first and not may_go_on:
        yield "the run went on and gave other figures"
    yield from left_behind(subject, before, module, first)


@contextlib.contextmanager
def _finaliser_errors() -> Iterator[list[object]]:
    found: list[object] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda error: found.append(error.exc_type)
    try:
        yield found
    finally:
        sys.unraisablehook = before

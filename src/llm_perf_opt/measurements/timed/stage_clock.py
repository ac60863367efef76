"""Time by stage. A stage's own time leaves out the stages inside it, so that sums never count a moment twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

import torch

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.measurement import TimedPass
from llm_perf_opt.core.protocols import StageWatch


class Stamps(Protocol):
    """A way to note moments cheaply, and to turn the notes into nanoseconds when the run is over."""

    def now(self) -> Any:
        """A note of this moment."""
        ...

    def nanoseconds(self, notes: Sequence[Any]) -> list[int]:
        """The notes on one time axis, in the order in which they were taken."""
        ...


class HostStamps:
    """The host's monotonic clock: right where nothing runs behind the host's back."""

    now = staticmethod(time.perf_counter_ns)

    def nanoseconds(self, notes: Sequence[int]) -> list[int]:
        """They are nanoseconds already."""
        return list(notes)


class SynchronisedStamps:
    """The host's clock after the device has finished: exact at the stage's borders, at the price of waiting there."""

    def __init__(self, device: str) -> None:
        self._device = device

    def now(self) -> int:
        """Wait for the device, then read the clock."""
        torch.cuda.synchronize(self._device)
        return time.perf_counter_ns()

    def nanoseconds(self, notes: Sequence[int]) -> list[int]:
        """They are nanoseconds already."""
        return list(notes)


class EventStamps:
    """CUDA events on the device's current stream: it notes the moment when it gets there, and the host never waits."""

    def __init__(self, device: str) -> None:
        self._device = device

    def now(self) -> Any:
        """An event, put into the stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def nanoseconds(self, notes: Sequence[Any]) -> list[int]:
        """Wait for the device once, then count from the first event."""
        torch.cuda.synchronize(self._device)
        return [0, *(round(notes[0].elapsed_time(note) * 1e6) for note in notes[1:])] if notes else []


CLOCKS: dict[str, Callable[[str], Stamps]] = {
    "host": lambda device: HostStamps(),
    "synchronise": SynchronisedStamps,
    "events": EventStamps,
}


def stamps_for(clock: str, device: str) -> Stamps:
    """The clock of that name; `auto` takes events on CUDA and the host's clock elsewhere."""
    on_cuda = torch.device(device).type == "cuda"
    name = ("events" if on_cuda else "host") if clock == "auto" else clock
    if name not in CLOCKS:
        raise UsageError(f"No clock {clock!r}.", why=f"known: auto, {', '.join(CLOCKS)}", fix="pick one of these")
    if on_cuda == (name == "host"):
        raise UsageError(
            f"The clock {name!r} does not fit the device {device}.",
            why="kernels run behind the host's back on CUDA and nowhere else",
            fix="use run.clock=auto",
        )
    return CLOCKS[name](device)


class StageClock:
    """Notes when stages begin and end; `finish` turns the notes into one timed pass.

    Another watch hears of a stage before the clock notes its begin and after the clock noted its end.
    """

    def __init__(self, stamps: Stamps, watch: StageWatch | None = None) -> None:
        self._stamps = stamps
        self._watch = watch
        self._names: list[str | None] = []  # None ends the innermost open stage
        self._notes: list[Any] = []

    def start(self) -> None:
        """The pass begins here."""
        self._names, self._notes = [], [self._stamps.now()]

    def stage(self, name: str) -> AbstractContextManager[None]:
        """A stage, whatever happens inside."""
        return _OpenStage(self, name, None if self._watch is None else self._watch.stage(name))

    def note(self, name: str | None) -> None:
        """A stage begins now, or the innermost ends."""
        self._names.append(name)
        self._notes.append(self._stamps.now())

    def finish(self) -> TimedPass:
        """The pass ends here."""
        self._notes.append(self._stamps.now())
        first, *moments, last = self._stamps.nanoseconds(self._notes)
        return TimedPass(wall_ns=last - first, stages_ns=own_times(self._names, moments))


class _OpenStage:
    """Written out: a generator under an exit stack costs several times as much, which short stages would feel."""

    __slots__ = ("_clock", "_name", "_other")

    def __init__(self, clock: StageClock, name: str, other: AbstractContextManager[object] | None) -> None:
        self._clock = clock
        self._name = name
        self._other = other

    def __enter__(self) -> None:
        if self._other is not None:
            self._other.__enter__()
        try:
            self._clock.note(self._name)
        except BaseException as error:
            if self._other is not None:
                self._other.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._clock.note(None)
        finally:
            if self._other is not None:
                self._other.__exit__(kind, error, trace)


def own_times(names: Sequence[str | None], moments_ns: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Own time of every stage each time it ran, from begins (a name) and ends (None) in order.

    Stages come in the order in which they first ended, samples in the order in which they began.
    """
    samples_of: dict[str, list[int]] = {}
    ended: dict[str, None] = {}
    open_stages: list[tuple[str, int, int]] = []  # name, when it began, place among its samples
    inside_ns: list[int] = []
    for name, moment_ns in zip(names, moments_ns, strict=True):
        if name is not None:
            samples = samples_of.setdefault(name, [])
            open_stages.append((name, moment_ns, len(samples)))
            samples.append(0)
            inside_ns.append(0)
            continue
        closed, began_ns, place = open_stages.pop()
        elapsed_ns = moment_ns - began_ns
        samples_of[closed][place] = elapsed_ns - inside_ns.pop()
        ended.setdefault(closed)
        if inside_ns:
            inside_ns[-1] += elapsed_ns
    if open_stages:
        raise PerfOptError(
            f"The stage {open_stages[-1][0]!r} never ended.", why="its time is unknown", fix="end every stage"
        )
    return {name: tuple(samples_of[name]) for name in ended}

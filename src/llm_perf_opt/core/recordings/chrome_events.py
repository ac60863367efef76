"""The events of a Chrome trace as torch.profiler writes it, typed; and which op launched what ran on the device.

Imported only when a trace is read: msgspec, which decodes into these records, takes long to load. Times in the file are
microseconds with three decimals; here they are nanoseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, field

ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
_LARGEST_US = 2.0**53
_MOST_LEVELS = 1000
_GRAPH_LAUNCH = "GraphLaunch"  # cudaGraphLaunch, cuGraphLaunch, hipGraphLaunch

Number = int | float | str


class ChromeArguments(Struct, frozen=True, gc=False):
    """The arguments that are read; an event may have any others."""

    external_id: int | str | None = field(name="External id", default=None)
    correlation: int | None = None
    stream: int | str | None = None
    device: int | str | None = None
    input_dims: Any = field(name="Input Dims", default=None)
    input_types: Any = field(name="Input type", default=None)
    source: str | None = field(name="Source", default=None)
    allocated_bytes: int | None = field(name="Allocated bytes", default=None)


class ChromeEvent(Struct, frozen=True, gc=False):
    """One event. Only complete ones (`ph` "X") have a duration."""

    name: str | int = ""
    ph: str = ""
    cat: str | None = None
    ts: Number = 0
    dur: Number | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: ChromeArguments | None = None

    @property
    def start_ns(self) -> int:
        """When it began."""
        return nanoseconds(self.ts)

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return nanoseconds(self.ts) + nanoseconds(self.dur or 0)

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return nanoseconds(self.dur or 0)

    @property
    def thread(self) -> tuple[int | str | None, int | str | None]:
        """The process and thread, or the device and stream, that it ran on."""
        return self.pid, self.tid


class DeviceProperties(Struct, frozen=True, gc=False):
    """What the driver says of a device."""

    name: str = ""
    id: int | None = None


class ChromeTrace(Struct, frozen=True):
    """The whole document, as far as it is read."""

    traceEvents: list[ChromeEvent]
    deviceProperties: list[DeviceProperties] = []


def nanoseconds(microseconds: Number) -> int:
    """A time of the file in whole nanoseconds; one that no clock can show raises ValueError."""
    value = float(microseconds)
    if not math.isfinite(value) or abs(value) > _LARGEST_US:
        raise ValueError(f"a time of {microseconds!r} microseconds")
    return round(value * 1000)


def arguments_of(event: ChromeEvent) -> ChromeArguments:
    """Its arguments, all unknown where it has none."""
    return event.args or _NO_ARGUMENTS


_NO_ARGUMENTS = ChromeArguments()


@dataclass(frozen=True, slots=True)
class TimedOp:
    """An op of one thread with its time. `parent` is the row of the op around it, or -1."""

    event: ChromeEvent
    start_ns: int
    end_ns: int
    parent: int


def nested(events: Iterable[ChromeEvent]) -> list[TimedOp]:
    """The events of one thread in the order of their beginning, each with the one around it.

    Times are rounded, so an event may seem to outlast the one around it by a nanosecond. More levels than Python's
    stack can have raise ValueError: walking up from each event would take the square of their number.
    """
    timed = ((event.start_ns, event.end_ns, event) for event in events)
    found: list[TimedOp] = []
    open_rows: list[int] = []
    for start_ns, end_ns, event in sorted(timed, key=lambda one: (one[0], -one[1])):
        while open_rows and found[open_rows[-1]].end_ns <= start_ns:
            open_rows.pop()
        parent = open_rows[-1] if open_rows else -1
        inner_end_ns = end_ns if parent < 0 else min(end_ns, found[parent].end_ns)
        if len(open_rows) >= _MOST_LEVELS:
            raise ValueError(f"more than {_MOST_LEVELS:,} events around one another")
        open_rows.append(len(found))
        found.append(TimedOp(event, start_ns, inner_end_ns, parent))
    return found


class KernelLaunches:
    """Finds the op that launched a kernel, among the ops of one or more threads.

    A kernel carries the id of the op that was running when it was launched. Where it does not, its correlation leads to
    the launch, and the launch lies within an op. Kernels of a graph that is replayed have the id of the launch of the
    whole graph, which says nothing of the op.
    """

    def __init__(self, events: Iterable[ChromeEvent], ops_by_thread: Iterable[Sequence[TimedOp]]) -> None:
        self._threads = [ops for ops in ops_by_thread if ops]
        self._thread_of = {ops[0].event.thread: number for number, ops in enumerate(self._threads)}
        self._starts = [[op.start_ns for op in ops] for ops in self._threads]
        self._by_id = {
            external_id: (thread, row)
            for thread, ops in enumerate(self._threads)
            for row, op in enumerate(ops)
            if (external_id := arguments_of(op.event).external_id) is not None
        }
        self._launches = {
            correlation: event
            for event in events
            if event.cat in LAUNCHES and (correlation := arguments_of(event).correlation) is not None
        }

    def launch_of(self, event: ChromeEvent) -> ChromeEvent | None:
        """The call of the runtime that launched this work; None: the recording does not hold it."""
        correlation = arguments_of(event).correlation
        return None if correlation is None else self._launches.get(correlation)

    def op_of(self, event: ChromeEvent) -> tuple[int, int] | None:
        """Thread and row of the innermost op that launched this work; None: no op did, or it is not recorded."""
        launch = self.launch_of(event)
        if launch is not None and _GRAPH_LAUNCH in str(launch.name):
            return None
        external_id = arguments_of(event).external_id
        if external_id is not None and external_id in self._by_id:
            return self._by_id[external_id]
        return None if launch is None else self._innermost(launch)

    def _innermost(self, launch: ChromeEvent) -> tuple[int, int] | None:
        thread = self._thread_of.get(launch.thread)
        if thread is None:
            return None
        ops, time_ns = self._threads[thread], launch.start_ns
        row = bisect_right(self._starts[thread], time_ns) - 1
        while row >= 0 and ops[row].end_ns <= time_ns:
            row = ops[row].parent
        return (thread, row) if row >= 0 else None

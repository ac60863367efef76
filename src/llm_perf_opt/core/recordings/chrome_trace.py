"""A Chrome trace of torch.profiler as a recording: kernels in order, the ops that launched them, the modules around."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct, field

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.reading import FileKind
from llm_perf_opt.core.recordings.recording import (
    COPY,
    FILL,
    KERNEL,
    DeviceWork,
    HostOp,
    RecordedRange,
    RecordedStep,
    Recording,
    Shape,
    busiest,
)
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.core.work_limits import current_limits

SOURCE = "torch.profiler"
_MODULE = "nn.Module: "
_STEP = re.compile(r"ProfilerStep#?\s?(\d{1,9})$")
_STEP_RANGES = {"user_annotation": 0, "gpu_user_annotation": 1}
_KINDS = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": FILL}
_MOST_DIMENSIONS = 64
_BYTES_PER_EVENT = 80  # of the record of an event or of its arguments, without their texts


def read_chrome_recording(raw: bytes, kind: FileKind, *, of_host: bool = False) -> Recording:
    """The recording in the text of a Chrome trace; anything that is none is refused.

    `of_host`: the model ran on the processor, so that the outermost ops are the work, each as long as it took.
    """
    if raw.count(b",") >= kind.max_elements:
        raise kind.refusal("is too large", f"it holds more than {kind.max_elements:,} values")
    _require_room(raw, kind)
    try:
        trace = msgspec.json.decode(raw, type=ChromeTrace)
    except msgspec.ValidationError as error:
        raise kind.refusal("is no Chrome trace of torch.profiler", str(error)[:300]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise kind.refusal("is not valid JSON", str(error)[:300]) from None
    try:
        return recording_of(trace, of_host=of_host)
    except (ValueError, OverflowError) as error:
        raise kind.refusal("holds a value that cannot be", str(error)[:300]) from None


def _require_room(raw: bytes, kind: FileKind) -> None:
    """A packed file of a few megabytes may hold events for all memory of the machine."""
    allowed, needed = current_limits().max_memory_bytes, raw.count(b"{") * _BYTES_PER_EVENT
    if allowed is not None and needed > allowed:
        raise kind.refusal(
            "is too large for the memory",
            f"its events need at least {format_bytes(needed)}, and the limit is {format_bytes(allowed)}",
        )


def recording_of(trace: ChromeTrace, *, of_host: bool = False) -> Recording:
    """What the busiest device of the trace ran; `of_host`: what the processor did."""
    events = [event for event in trace.traceEvents if event.ph == "X" and event.dur is not None]
    on_device = [event for event in events if event.cat in ON_DEVICE]
    spent: Counter[str] = Counter()
    for event in on_device:
        spent[_device(event)] += event.duration_ns
    device, others = busiest(spent)
    threads = [nested(ops) for ops in _by_thread(event for event in events if event.cat == "cpu_op").values()]
    launches = KernelLaunches(events, threads)
    calls = _by_thread(event for event in events if _is_module_call(event))
    modules = [_module_stacks(ops, nested(calls.get(ops[0].event.thread, ()))) for ops in threads]
    ops, first_rows = _ops(threads, modules)
    work = [_work(event, launches, first_rows) for event in on_device if _device(event) == device]
    if of_host:
        work = [item for timed, first in zip(threads, first_rows, strict=True) for item in _host_work(timed, first)]
    if not work:
        raise _without_work(trace, of_host=of_host)
    names = {str(gpu.id): gpu.name for gpu in trace.deviceProperties}
    return Recording(
        source=SOURCE,
        device_name=(names.get(device or "") or next(iter(names.values()), "")) or None,
        work=tuple(sorted(work, key=lambda launched: launched.start_ns)),
        ops=ops,
        steps=tuple(_steps(events)),
        ranges=tuple(_ranges(events)),
        other_devices=others,
    )


def _without_work(trace: ChromeTrace, *, of_host: bool) -> PerfOptError:
    """What the file has instead says why: only the host, another profiler's events, or an old torch's."""
    categories = Counter(event.cat for event in trace.traceEvents if event.cat)
    found = ", ".join(name for name, _ in categories.most_common(6)) or "none"
    wanted = "cpu_op" if of_host else " or ".join(sorted(ON_DEVICE))
    return PerfOptError(
        f"The Chrome trace holds no {'op of the host' if of_host else 'kernel'}.",
        why=f"no event has a time and a category of {wanted}; its categories are: {found}",
        fix=f"record with ProfilerActivity.{'CPU' if of_host else 'CUDA, and export after the kernels have ended'}",
    )


def _device(event: ChromeEvent) -> str:
    device = arguments_of(event).device
    return str(event.pid if device is None else device)


def _by_thread(events: Iterable[ChromeEvent]) -> dict[Any, list[ChromeEvent]]:
    by_thread: dict[Any, list[ChromeEvent]] = {}
    for event in events:
        by_thread.setdefault(event.thread, []).append(event)
    return by_thread


def _is_module_call(event: ChromeEvent) -> bool:
    return event.cat == "python_function" and str(event.name).startswith(_MODULE)


def _module_stacks(ops: Sequence[TimedOp], calls: Sequence[TimedOp]) -> list[tuple[str, ...]]:
    """Per op of a thread: the module calls around it, where Python's stack was recorded."""
    stacks: list[tuple[str, ...]] = []
    open_calls: list[tuple[int, tuple[str, ...]]] = [(2**63, ())]  # end and stack; the first never ends
    row = 0
    for op in ops:
        while row < len(calls) and calls[row].start_ns <= op.start_ns:
            call = calls[row]
            while open_calls[-1][0] <= call.start_ns:
                open_calls.pop()
            name = str(call.event.name).removeprefix(_MODULE)
            open_calls.append((call.end_ns, (*open_calls[-1][1], name)))
            row += 1
        while open_calls[-1][0] <= op.start_ns:
            open_calls.pop()
        stacks.append(open_calls[-1][1])
    return stacks


def _ops(
    threads: Sequence[Sequence[TimedOp]], modules: Sequence[Sequence[tuple[str, ...]]]
) -> tuple[tuple[HostOp, ...], list[int]]:
    """The ops of all threads in one table, and the row at which each thread begins."""
    host_ops: list[HostOp] = []
    first_rows: list[int] = []
    for ops, stacks in zip(threads, modules, strict=True):
        first = len(host_ops)
        first_rows.append(first)
        for op, stack in zip(ops, stacks, strict=True):
            dims = arguments_of(op.event).input_dims
            host_ops.append(
                HostOp(
                    name=str(op.event.name),
                    parent=-1 if op.parent < 0 else first + op.parent,
                    input_shapes=None if dims is None else tuple(_shapes(dims)),
                    modules=stack,
                )
            )
    return tuple(host_ops), first_rows


def _shapes(dims: Any, level: int = 0) -> Iterator[Shape]:
    """The shapes in `Input Dims`; a list of tensors is a list of shapes, and what is no tensor is empty."""
    if not isinstance(dims, list) or level > 2:
        return
    if dims and all(type(size) is int for size in dims):
        if len(dims) > _MOST_DIMENSIONS or not all(0 <= size < 2**63 for size in dims):
            raise ValueError(f"a tensor of shape {str(dims[:8])[:80]}")
        yield tuple(dims)
        return
    for inner in dims:
        yield from _shapes(inner, level + 1)


def _work(event: ChromeEvent, launches: KernelLaunches, first_rows: Sequence[int]) -> DeviceWork:
    launch, op = launches.launch_of(event), launches.op_of(event)
    duration_ns = event.duration_ns
    if duration_ns < 0:
        raise ValueError(f"a kernel that takes {event.dur} microseconds")
    return DeviceWork(
        name=str(event.name),
        kind=_KINDS[event.cat or ""],
        start_ns=event.start_ns,
        duration_ns=duration_ns,
        op=-1 if op is None else first_rows[op[0]] + op[1],
        launched_ns=None if launch is None else launch.start_ns,
    )


def _host_work(ops: Sequence[TimedOp], first_row: int) -> Iterator[DeviceWork]:
    """The outermost ops of a thread, each named by the op with the most time of its own in it."""
    own_ns = [op.end_ns - op.start_ns for op in ops]
    for op in ops:
        if op.parent >= 0:
            own_ns[op.parent] -= op.end_ns - op.start_ns
    busiest_row = list(range(len(ops)))
    for row in range(len(ops) - 1, -1, -1):  # an op begins before those it runs
        parent = ops[row].parent
        if parent >= 0 and own_ns[busiest_row[row]] > own_ns[busiest_row[parent]]:
            busiest_row[parent] = busiest_row[row]
    for row, op in enumerate(ops):
        if op.parent < 0:
            yield DeviceWork(
                name=str(ops[busiest_row[row]].event.name),
                kind=KERNEL,
                start_ns=op.start_ns,
                duration_ns=op.end_ns - op.start_ns,
                op=first_row + busiest_row[row],
                launched_ns=op.start_ns,
            )


def _steps(events: Sequence[ChromeEvent]) -> Iterator[RecordedStep]:
    ranges: dict[int, list[tuple[int, int] | None]] = {}
    for event in events:
        match = _STEP.match(str(event.name)) if event.cat in _STEP_RANGES else None
        if match:
            both = ranges.setdefault(int(match[1]), [None, None])
            both[_STEP_RANGES[event.cat or ""]] = (event.start_ns, event.end_ns)
    for number, (host, device) in sorted(ranges.items()):
        yield RecordedStep(name=f"ProfilerStep#{number}", number=number, host=host, device=device)


def _ranges(events: Iterable[ChromeEvent]) -> Iterator[RecordedRange]:
    """What the recorded program named on the host, in order; launches say what the device did in them."""
    named = (event for event in events if event.cat == "user_annotation" and not _STEP.match(str(event.name)))
    for event in sorted(named, key=lambda event: event.start_ns):
        yield RecordedRange(name=str(event.name), host=(event.start_ns, event.end_ns))


# The events of a Chrome trace as torch.profiler writes it, typed; and which op launched what ran on the device.
#
# Imported only when a trace is read: msgspec, which decodes into these records, takes long to load. Times in the file
# are microseconds with three decimals; here they are nanoseconds.

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
    timed_ops: list[TimedOp] = []
    open_rows: list[int] = []
    for start_ns, end_ns, event in sorted(timed, key=lambda span: (span[0], -span[1])):
        while open_rows and timed_ops[open_rows[-1]].end_ns <= start_ns:
            open_rows.pop()
        parent = open_rows[-1] if open_rows else -1
        inner_end_ns = end_ns if parent < 0 else min(end_ns, timed_ops[parent].end_ns)
        if len(open_rows) >= _MOST_LEVELS:
            raise ValueError(f"more than {_MOST_LEVELS:,} events around one another")
        open_rows.append(len(timed_ops))
        timed_ops.append(TimedOp(event, start_ns, inner_end_ns, parent))
    return timed_ops


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

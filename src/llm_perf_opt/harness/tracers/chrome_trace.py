"""What torch.profiler wrote into a Chrome trace, read back: module ranges, the ops in them, the kernels they launched.

The file is the one that Perfetto opens. Times in it are microseconds with three decimals; here they are nanoseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from llm_perf_opt.core.callgraph import Json
from llm_perf_opt.core.recordings.chrome_trace import (
    ON_DEVICE,
    ChromeEvent,
    ChromeTrace,
    KernelLaunches,
    TimedOp,
    arguments_of,
    nested,
)
from llm_perf_opt.harness.stage_ranges import MODULE_PREFIX


@dataclass(frozen=True, slots=True)
class Entered:
    """A module's forward begins. The n-th that begins is the n-th call."""

    start_ns: int


@dataclass(frozen=True, slots=True)
class Left:
    """The innermost open forward ends."""

    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledOp:
    """An op that a module, or the code around all modules, dispatched itself; what it dispatched in turn is part of it.

    `device_ns` is the time of every kernel and copy that it launched, or None where no device took part.
    """

    name: str
    arguments: Mapping[str, Json]
    duration_ns: int
    device_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledRun:
    """The run in order, in nanoseconds since the first module was entered; and device time that no op launched."""

    events: tuple[Entered | Left | ProfiledOp, ...]
    unattributed_device_ns: int


def read_chrome_trace(document: Mapping[str, Any]) -> ProfiledRun:
    """The ops and module ranges of the thread that ran the model; what other threads do is part of its ops."""
    trace = msgspec.convert(document, type=ChromeTrace)
    events = [event for event in trace.traceEvents if event.ph == "X" and event.dur is not None]
    slices = nested(_of_model_thread(events))
    origin_ns = next((op.start_ns for op in slices if _is_module_range(op.event)), 0)
    on_device = [event for event in events if event.cat in ON_DEVICE]
    device_ns = _device_time(on_device, KernelLaunches(events, [slices]), slices)
    events_of_model: list[Entered | Left | ProfiledOp] = []
    for row, is_end in _steps(slices):
        op = slices[row]
        if _is_module_range(op.event):
            events_of_model.append(Left(op.end_ns - origin_ns) if is_end else Entered(op.start_ns - origin_ns))
        elif _outermost(slices, row) == row:
            events_of_model.append(_op(op, device_ns[row] if on_device else None))
    return ProfiledRun(events=tuple(events_of_model), unattributed_device_ns=device_ns[_NOBODY])


def _of_model_thread(events: Sequence[ChromeEvent]) -> list[ChromeEvent]:
    """Module ranges and ops of the first thread that entered a module; at one moment the ranges come first."""
    modules = [event for event in events if _is_module_range(event)]
    if not modules:
        return []
    thread = min(modules, key=lambda event: event.start_ns).tid
    ops = [event for event in events if event.cat == "cpu_op"]
    return [event for event in (*modules, *ops) if event.tid == thread]


def _is_module_range(event: ChromeEvent) -> bool:
    return event.cat == "user_annotation" and str(event.name).startswith(MODULE_PREFIX)


def _steps(slices: Sequence[TimedOp]) -> Iterator[tuple[int, bool]]:
    """The row of each slice when it begins, and of each module range once more when it ends."""
    open_rows: list[int] = []
    for row, op in enumerate(slices):
        while open_rows and open_rows[-1] != op.parent:
            ended = open_rows.pop()
            if _is_module_range(slices[ended].event):
                yield ended, True
        yield row, False
        open_rows.append(row)
    yield from ((row, True) for row in reversed(open_rows) if _is_module_range(slices[row].event))


_NOBODY = -1


def _outermost(slices: Sequence[TimedOp], row: int) -> int:
    """The outermost op around an op, within its module."""
    while (parent := slices[row].parent) >= 0 and not _is_module_range(slices[parent].event):
        row = parent
    return row


def _device_time(on_device: Sequence[ChromeEvent], launches: KernelLaunches, slices: Sequence[TimedOp]) -> Counter[int]:
    """Row of an outermost op -> time of what it launched; what no op launched is nobody's."""
    spent: Counter[int] = Counter()
    for event in on_device:
        launcher = launches.op_of(event)
        row = _NOBODY if launcher is None else launcher[1]
        is_op = row != _NOBODY and not _is_module_range(slices[row].event)
        spent[_outermost(slices, row) if is_op else _NOBODY] += event.duration_ns
    return spent


def _op(op: TimedOp, device_ns: int | None) -> ProfiledOp:
    fields = arguments_of(op.event)
    known = {
        "input_shapes": fields.input_dims,
        "input_types": fields.input_types,
        "source": fields.source,
        "allocated_bytes": fields.allocated_bytes,
    }
    return ProfiledOp(
        name=str(op.event.name),
        arguments={name: value for name, value in known.items() if value not in (None, [])},
        duration_ns=op.end_ns - op.start_ns,
        device_ns=device_ns,
    )

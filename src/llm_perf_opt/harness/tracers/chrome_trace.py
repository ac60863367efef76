"""What torch.profiler wrote into a Chrome trace, read back: module ranges, the ops in them, the kernels they launched.

The file is the one that Perfetto opens. Times in it are microseconds with three decimals; here they are nanoseconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.core.callgraph import Json
from llm_perf_opt.harness.stage_ranges import MODULE_PREFIX

_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})

RawEvent = Mapping[str, Any]


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


@dataclass(slots=True)
class _Slice:
    """A module range or an op on the thread that ran the model. An op inside another op belongs to the outermost."""

    start_ns: int
    end_ns: int
    is_module: bool
    raw: RawEvent
    outermost: _Slice | None = None


def read_chrome_trace(document: Mapping[str, Any]) -> ProfiledRun:
    """The ops and module ranges of the thread that ran the model; what other threads do is part of its ops."""
    raw = [event for event in document["traceEvents"] if event.get("ph") == "X" and "dur" in event]
    steps = list(_steps(_slices(raw)))
    origin_ns = next((one.start_ns for one, is_end in steps if one.is_module), 0)
    on_device = [event for event in raw if event.get("cat") in _ON_DEVICE]
    device_ns = _device_time(on_device, raw, [one for one, is_end in steps if not one.is_module])
    events: list[Entered | Left | ProfiledOp] = []
    for one, is_end in steps:
        if one.is_module:
            events.append(Left(one.end_ns - origin_ns) if is_end else Entered(one.start_ns - origin_ns))
        elif one.outermost is one:
            events.append(_op(one, device_ns[id(one)] if on_device else None))
    return ProfiledRun(events=tuple(events), unattributed_device_ns=device_ns[_NOBODY])


def _slices(raw: Sequence[RawEvent]) -> list[_Slice]:
    """In the order of their beginning, the longer first; of the first thread that entered a module."""
    modules = [event for event in raw if _is_module_range(event)]
    if not modules:
        return []
    thread = min(modules, key=lambda event: float(event["ts"])).get("tid")
    found = []
    for event in raw:
        is_module = _is_module_range(event)
        if event.get("tid") == thread and (is_module or event.get("cat") == "cpu_op"):
            start_ns = _nanoseconds(event["ts"])
            found.append(_Slice(start_ns, start_ns + _nanoseconds(event["dur"]), is_module, event))
    return sorted(found, key=lambda one: (one.start_ns, -one.end_ns, not one.is_module))


def _is_module_range(event: RawEvent) -> bool:
    return event.get("cat") == "user_annotation" and str(event.get("name", "")).startswith(MODULE_PREFIX)


def _nanoseconds(microseconds: float | str) -> int:
    return round(float(microseconds) * 1000)


def _steps(slices: Sequence[_Slice]) -> Iterator[tuple[_Slice, bool]]:
    """Each slice when it begins, and each module range once more when it ends."""
    open_slices: list[_Slice] = []
    for one in slices:
        while open_slices and open_slices[-1].end_ns <= one.start_ns:
            ended = open_slices.pop()
            if ended.is_module:
                yield ended, True
        if open_slices:
            # Times are rounded, so a slice may seem to outlast the one around it by a nanosecond.
            one.end_ns = min(one.end_ns, open_slices[-1].end_ns)
        if not one.is_module:
            inside_op = bool(open_slices) and not open_slices[-1].is_module
            one.outermost = open_slices[-1].outermost if inside_op else one
        yield one, False
        open_slices.append(one)
    yield from ((one, True) for one in reversed(open_slices) if one.is_module)


_NOBODY = -1


def _device_time(on_device: Sequence[RawEvent], raw: Sequence[RawEvent], ops: Sequence[_Slice]) -> Counter[int]:
    """Identity of an outermost op -> time of what it launched; what no op launched is nobody's.

    A kernel carries the id of the op that was running when it was launched. Where it does not, its correlation leads
    to the launch, and the launch lies within an op.
    """
    owners = {op.raw.get("args", {}).get("External id"): op.outermost for op in ops}
    launches = {
        event["args"]["correlation"]: event
        for event in raw
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    outermost = [op for op in ops if op.outermost is op]
    starts = [op.start_ns for op in outermost]
    spent: Counter[int] = Counter()
    for event in on_device:
        fields = event.get("args", {})
        owner = owners.get(fields.get("External id")) if "External id" in fields else None
        launch = launches.get(fields.get("correlation"))
        if owner is None and launch is not None:
            owner = _op_at(_nanoseconds(launch["ts"]), outermost, starts)
        spent[_NOBODY if owner is None else id(owner)] += _nanoseconds(event["dur"])
    return spent


def _op_at(time_ns: int, outermost: Sequence[_Slice], starts: Sequence[int]) -> _Slice | None:
    row = bisect_right(starts, time_ns) - 1
    return outermost[row] if row >= 0 and time_ns < outermost[row].end_ns else None


def _op(one: _Slice, device_ns: int | None) -> ProfiledOp:
    fields = one.raw.get("args", {})
    known = {"input_shapes": fields.get("Input Dims"), "input_types": fields.get("Input type")}
    return ProfiledOp(
        name=str(one.raw["name"]),
        arguments={name: value for name, value in known.items() if value},
        duration_ns=one.end_ns - one.start_ns,
        device_ns=device_ns,
    )

"""A recording of a GPU: what ran on the device and, as far as the recorder saw it, which op of the host launched it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from llm_perf_opt.core.errors import UsageError

Shape = tuple[int, ...]

KERNEL, COPY, FILL = "kernel", "copy", "fill"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOp:
    """An op on the host. `parent` is the row of the op that dispatched it, or -1.

    `input_shapes` has the shapes of its tensors, lists flattened; None where the recorder noted no shapes. `modules`
    are the module calls around it, the outermost first, by class and number of the instance: `Linear_3`.
    """

    name: str  # "aten::addmm"
    parent: int
    input_shapes: tuple[Shape, ...] | None
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """A kernel, a copy or a fill. `op` is the row of the innermost op that launched it, or -1.

    A replay of a CUDA graph launches all of its kernels at once: they have no op. `launched_ns` is None where the
    recording does not hold the launch.
    """

    name: str
    kind: str  # KERNEL | COPY | FILL
    start_ns: int
    duration_ns: int
    op: int = -1
    launched_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRange:
    """A named range: when the host ran it, and when the device did; None where the recording does not say."""

    name: str
    host: tuple[int, int] | None
    device: tuple[int, int] | None = None

    def holds(self, work: DeviceWork) -> bool:
        """Whether the range launched this work. Without its launch: whether it began while the device ran the range."""
        if work.launched_ns is not None and self.host is not None:
            return self.host[0] <= work.launched_ns < self.host[1]
        return self.device is not None and self.device[0] <= work.start_ns < self.device[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep(RecordedRange):
    """A `ProfilerStep#N`."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Everything that one device ran, in the order of its start."""

    source: str  # which program wrote it
    device_name: str | None  # as the driver reports it
    work: tuple[DeviceWork, ...]
    ops: tuple[HostOp, ...] = ()
    steps: tuple[RecordedStep, ...] = ()
    ranges: tuple[RecordedRange, ...] = ()  # that the recorded program named, such as `stage: decode`
    other_devices: int = 0  # further devices in the file; their work is left out

    @property
    def device_ns(self) -> int:
        """The time of all work, overlaps counted twice."""
        return sum(kernel.duration_ns for kernel in self.work)

    def chain_of(self, work: DeviceWork) -> tuple[HostOp, ...]:
        """The ops around a launch, the outermost first."""
        chain: list[HostOp] = []
        row = work.op
        while row >= 0:
            chain.append(self.ops[row])
            row = self.ops[row].parent
        return tuple(reversed(chain))

    def in_last_range(self, name: str) -> Recording:
        """The work that was launched within the last range of this name; none where there is no such range."""
        last = next((item for item in reversed(self.ranges) if item.name == name), None)
        return replace(self, work=tuple(item for item in self.work if last is not None and last.holds(item)))

    def at_steps(self, first: int | None, last: int | None = None) -> Recording:
        """The work of the steps from `first` to `last`. Default: the last step; without steps, everything."""
        if not self.steps:
            if first is not None:
                raise UsageError(
                    f"There is no step {first} in the recording.",
                    why="it holds no ProfilerStep",
                    fix="leave --step out: all of it is joined",
                )
            return self
        numbers = [step.number for step in self.steps]
        low = numbers[-1] if first is None else first
        high = low if last is None else last
        chosen = [step for step in self.steps if low <= step.number <= high]
        if not chosen:
            raise UsageError(
                f"There is no step {low} in the recording.",
                why=f"it holds: {', '.join(map(str, numbers))}",
                fix="choose one of them, or a range",
            )
        work = tuple(kernel for kernel in self.work if any(step.holds(kernel) for step in chosen))
        return replace(self, work=work, steps=tuple(chosen))


def busiest(devices: Counter[str]) -> tuple[str | None, int]:
    """The device with the most time, and how many others took part."""
    if not devices:
        return None, 0
    (device, _), *others = devices.most_common()
    return device, len(others)

"""A recording of a GPU: what ran on the device and, as far as the recorder saw it, which op of the host launched it."""

from __future__ import annotations

import gzip
import io
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.reading import FileKind, naming_file, read_bytes

Shape = tuple[int, ...]

KERNEL, COPY, FILL = "kernel", "copy", "fill"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOp:
    """An op on the host. `parent` is the row of the op that dispatched it, or -1.

    `input_shapes` are those of its tensors, lists flattened; None where the recorder did not note shapes. `modules` are
    the module calls around it, the outermost first, by class and number of the instance: `Linear_3`.
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
class RecordedStep:
    """A `ProfilerStep#N`: when the host ran it, and when the device did; None where the recording does not say."""

    number: int
    host: tuple[int, int] | None
    device: tuple[int, int] | None

    def holds(self, work: DeviceWork) -> bool:
        """Whether the step launched this work. Without its launch: whether it began while the device ran the step."""
        if work.launched_ns is not None and self.host is not None:
            return self.host[0] <= work.launched_ns < self.host[1]
        return self.device is not None and self.device[0] <= work.start_ns < self.device[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Everything that one device ran, in the order of its start."""

    source: str  # which program wrote it
    device_name: str | None  # as the driver reports it
    work: tuple[DeviceWork, ...]
    ops: tuple[HostOp, ...] = ()
    steps: tuple[RecordedStep, ...] = ()
    other_devices: int = 0  # further devices in the file, whose work is left out

    @property
    def device_ns(self) -> int:
        """The time of all work, overlaps counted twice."""
        return sum(one.duration_ns for one in self.work)

    def chain_of(self, work: DeviceWork) -> tuple[HostOp, ...]:
        """The ops around a launch, the outermost first."""
        chain: list[HostOp] = []
        row = work.op
        while row >= 0:
            chain.append(self.ops[row])
            row = self.ops[row].parent
        return tuple(reversed(chain))

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
        work = tuple(one for one in self.work if any(step.holds(one) for step in chosen))
        return replace(self, work=work, steps=tuple(chosen))

    def without_host(self) -> Recording:
        """Only names and times, as a replay of a CUDA graph leaves them."""
        work = tuple(replace(one, op=-1) for one in self.work)
        return replace(self, work=work, ops=())


def busiest(devices: Counter[str]) -> tuple[str | None, int]:
    """The device with the most time, and how many others took part."""
    if not devices:
        return None, 0
    (device, _), *others = devices.most_common()
    return device, len(others)


RECORDING_FILE = FileKind(
    name="GPU recording",
    fix="give a Chrome trace of torch.profiler (.json or .json.gz), or of Nsight Systems an export to SQLite or the "
    "table of `nsys stats --report cuda_gpu_trace --format csv`",
    max_bytes=2**30,
    max_elements=2**27,
    error=UsageError,
)
_GZIP, _SQLITE = b"\x1f\x8b", b"SQLite format 3\x00"
_PIECE = 2**22


def read_recording(path: Path) -> Recording:
    """What a GPU ran, from a file of torch.profiler or Nsight Systems."""
    raw = read_bytes(path, RECORDING_FILE)
    with naming_file(path):
        if raw.startswith(_GZIP):
            raw = _unpacked(raw)
        if raw.startswith(_SQLITE):
            from llm_perf_opt.core.recordings.nsight_export import read_database_recording

            return read_database_recording(path, RECORDING_FILE)
        return _from_text(raw)


def _from_text(raw: bytes) -> Recording:
    first = raw[:64].removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    is_event_list = first == b"[" and b'"ph"' in raw[:_PIECE]  # the events alone, as Chrome takes them too
    if first == b"{" or is_event_list:
        from llm_perf_opt.core.recordings.chrome_trace import read_chrome_recording

        return read_chrome_recording(b'{"traceEvents":%b}' % raw if is_event_list else raw, RECORDING_FILE)
    from llm_perf_opt.core.recordings.nsight_export import read_csv_recording, read_table_recording

    if first == b"[":
        return read_table_recording(raw, RECORDING_FILE)
    return read_csv_recording(raw, RECORDING_FILE)


def _unpacked(packed: bytes) -> bytes:
    """The content of a gzip file, refused as soon as it grows beyond the bound."""
    pieces: list[bytes] = []
    size = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            while piece := file.read(_PIECE):
                size += len(piece)
                if size > RECORDING_FILE.max_bytes:
                    raise RECORDING_FILE.refusal(
                        "is too large",
                        f"it unpacks to more than {RECORDING_FILE.max_bytes:,} bytes, which could exhaust the memory",
                    )
                pieces.append(piece)
    except (OSError, EOFError, zlib.error) as error:
        raise RECORDING_FILE.refusal("is no whole gzip file", str(error)[:300]) from None
    return b"".join(pieces)

"""A joined recording as a report: the answer in three lines, then stages, modules, ops, and how it is known."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import label_of, path_pattern
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device, find_device, reported_elsewhere
from llm_perf_opt.core.recordings import read_recording
from llm_perf_opt.core.recordings.recording import Recording
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, Table, table_of
from llm_perf_opt.core.units import format_count, format_flops_per_s, format_ratio, format_seconds
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.measurements.correction import centre
from llm_perf_opt.measurements.join.attribution import ENOUGH, JoinedRecording, join_recording
from llm_perf_opt.measurements.join.sides import Evidence
from llm_perf_opt.measurements.join.totals import (
    TOO_MUCH,
    EvidenceShare,
    JoinedTotal,
    JoinTotals,
    UnattributedKernel,
    join_totals,
    sum_of_bands,
    too_fast,
)
from llm_perf_opt.ops.kernel_names import ATTENTION, CONVOLUTION, MATMUL
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.rate_sources import source_of

log = logging.getLogger(__name__)

_NS_PER_S = 10**9
_MANY = 20_000  # kernels that take about a second
_MODULES_SHOWN = 25
_OPS_SHOWN = 15
_KERNELS_SHOWN = 12
_LONGEST_NAME = 70
ENOUGH_FLOPS = 0.9  # of the traced forwards; with fewer the recording is of something else
_TIMES_SLOWER = 2.5  # than predicted: no whole forward of `docs/evidence/joined-recordings.md` takes 1.5 times as long
_HEAVY = frozenset({MATMUL, ATTENTION, CONVOLUTION})


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What a report is made of."""

    graph: CallGraph
    recording: Recording  # the steps that were joined
    joined: JoinedRecording
    totals: JoinTotals
    device: Device | None
    too_fast: float | None  # the share of the work that the device could not have done in the time; None: no device

    @property
    def device_ns(self) -> int:
        """All recorded time."""
        return self.recording.device_ns

    def share(self, device_ns: int) -> float:
        """A part of all recorded time."""
        return device_ns / self.device_ns if self.device_ns else 0.0

    @property
    def found_flops(self) -> float | None:
        """The share of the traced FLOPs that belongs to ops with kernels; None: unknown, or there are none."""
        expected, joined_flops = self.totals.traced_flops, self.totals.total.flops
        return (
            None if not expected or joined_flops is None else joined_flops / (expected * max(1, self.joined.forwards))
        )

    @property
    def attributed(self) -> float:
        """The share of the kernel time that belongs to an op or, by its place, to a module."""
        return self.share(self.totals.total.device_ns)

    @property
    def is_complete(self) -> bool:
        """Whether the figures describe the run.

        95 % of the time is attributed, 90 % of the FLOPs have kernels, and at most 5 % of the work is too fast: without
        a device nobody can tell.
        """
        is_found = self.found_flops is None or self.found_flops >= ENOUGH_FLOPS
        return self.attributed >= ENOUGH and is_found and self.too_fast is not None and self.too_fast <= TOO_MUCH


def read_joined(
    graph: CallGraph,
    file: str | Path,
    *,
    step: str | int | None = None,
    device: str | Device | None = None,
    devices_file: Path | None = None,
) -> Joined:
    """Join one phase with the recording in a file; the parameters mean the same as in `Trace.join`."""
    chosen = find_device(device, devices_file) if isinstance(device, str) else device
    first, last = _steps(step)
    recorded = read_recording(Path(file))
    recording = recorded.at_steps(first, last)
    if not recording.work:
        full = [str(step.number) for step in recorded.steps if any(map(step.holds, recorded.work))]
        raise UsageError(
            f"Step {', '.join(str(step.number) for step in recording.steps)} of the recording has no kernel.",
            why=f"steps with kernels: {', '.join(full)}" if full else "no kernel was launched in any of its steps",
            fix=f"add --step {full[-1]}" if full else "record again, and let the step end before the profiler does",
        )
    if chosen is None and recording.device_name is not None:
        chosen = _recorded_device(recording.device_name, devices_file)
    if len(recording.work) > _MANY:
        log.info("Laying %s pieces of work along the traced ops ...", format_count(len(recording.work)))
    return joined_with(graph, recording, chosen)


def joined_with(graph: CallGraph, recording: Recording, device: Device | None) -> Joined:
    """Everything that a recording says of one phase, next to what is predicted of eager PyTorch on the device."""
    joined = join_recording(recording, graph)
    rates = None if device is None else source_of(device, Execution.EAGER, None)
    return Joined(
        graph=graph,
        recording=recording,
        joined=joined,
        totals=join_totals(joined, graph, device, rates),
        device=device,
        too_fast=too_fast(joined, graph, device),
    )


def _recorded_device(name: str, devices_file: Path | None) -> Device | None:
    """The device of that name; None where the table does not know it, or knows several: then MFU is unknown."""
    try:
        return find_device(name, devices_file)
    except UsageError:
        return None


def _steps(step: str | int | None) -> tuple[int | None, int | None]:
    """`6`, or `6-8` from first to last."""
    if step is None:
        return None, None
    first, dash, last = str(step).partition("-")
    if not (first.isascii() and first.isdigit()) or (dash and not (last.isascii() and last.isdigit())):
        raise UsageError(
            f"{str(step)[:40]!r} is no step.", why="a step is a number, or a range such as 6-8", fix="give one"
        )
    return int(first), int(last) if dash else None


def join_report(joined: Joined) -> Report:
    """Tables of figures, and notes on what they are based on."""
    totals = joined.totals
    modules = tuple(families_of(joined.graph, totals.modules).values())
    tables = [
        _figures("Kernel time by stage", "stage", totals.stages, joined, total=totals.total),
        _figures("Modules with the most kernel time of their own", "module", modules[:_MODULES_SHOWN], joined),
        _figures("Kernel time by kind of op", "op", totals.op_kinds[:_OPS_SHOWN], joined),
        table_of("How it is known", totals.evidence, _evidence_cells(joined)),
    ]
    if totals.without_op:
        tables.append(_without_op_table(joined))
    tables.append(_answer_table(joined))
    title = f"{joined.graph.model}, {joined.graph.phase}: recorded kernels on the traced ops"
    answer = (f"Attributed: {_attributed(joined)}.", f"Reached: {_reached(joined)}.", f"Longest: {_longest(joined)}.")
    return Report(title=title, answer=answer, tables=tuple(tables), notes=tuple(_notes(joined, len(modules))))


def _answer_table(joined: Joined) -> Table:
    rows = (("attributed", _attributed(joined)), ("reached", _reached(joined)), ("longest", _longest(joined)))
    return Table(title="Answer", columns=(Column("what"), Column("answer")), rows=rows)


def _attributed(joined: Joined) -> str:
    place_ns = sum(share.device_ns for share in joined.totals.evidence if share.evidence is Evidence.PLACE)
    by_op, by_place = joined.share(joined.totals.total.device_ns - place_ns), joined.share(place_ns)
    text = f"{format_ratio(by_op + by_place)} of {format_seconds(joined.device_ns / _NS_PER_S)} of kernel time"
    text += f", in {format_count(joined.joined.forwards)} forward{'s' if joined.joined.forwards != 1 else ''}"
    return text + (f": {format_ratio(by_op)} to ops, {format_ratio(by_place)} to modules" if by_place else "")


def _reached(joined: Joined) -> str:
    total = joined.totals.total
    rate = "unknown FLOP/s" if total.flops_per_s is None else format_flops_per_s(total.flops_per_s)
    if joined.device is None:
        return f"{rate}; the device is not known, so there is no peak to compare with"
    used = [
        f"{name} {format_ratio(value)}" for name, value in (("MFU", total.mfu), ("MBU", total.mbu)) if value is not None
    ]
    matmuls = next((kind for kind in joined.totals.op_kinds if kind.name == MATMUL), None)
    if total.mbu is None and matmuls is not None and matmuls.mbu is not None:
        used.append(f"matmuls alone MFU {format_ratio(matmuls.mfu or 0)}, MBU {format_ratio(matmuls.mbu)}")
    return f"{rate} on {joined.device.name}" + (f": {', '.join(used)}" if used else "")


def _longest(joined: Joined) -> str:
    kinds = joined.totals.op_kinds[:3]
    if not kinds:
        return "no traced op has a kernel"
    return ", ".join(f"{kind.name} {format_ratio(joined.share(kind.device_ns))}" for kind in kinds) + " of the time"


def _figures(
    title: str, what: str, rows: Sequence[JoinedTotal], joined: Joined, *, total: JoinedTotal | None = None
) -> Table:
    cells: dict[Column, Callable[[JoinedTotal], Cell]] = {
        Column(what): lambda row: row.name or "(root)",
        Column("calls", Kind.COUNT): lambda row: row.calls,
        Column("kernels", Kind.COUNT): lambda row: row.kernels,
        Column("kernel time", Kind.SECONDS): lambda row: row.device_ns / _NS_PER_S,
        Column("share", Kind.RATIO): lambda row: joined.share(row.device_ns),
        Column("FLOPs", Kind.FLOPS): lambda row: row.flops,
        Column("FLOP/s", Kind.FLOPS_PER_S): lambda row: row.flops_per_s,
        Column("bytes/s", Kind.BYTES_PER_S): lambda row: row.bytes_per_s,
    }
    if joined.device is not None:
        cells[Column("MFU", Kind.RATIO)] = lambda row: row.mfu
        cells[Column("MBU", Kind.RATIO)] = lambda row: row.mbu
        cells[Column("expected", Kind.SECONDS)] = lambda row: None if row.predicted is None else centre(row.predicted)
        cells[Column("measured / expected", Kind.RATIO)] = lambda row: row.times_predicted
    return table_of(title, rows, cells, total=total)


def families_of(graph: CallGraph, modules: Sequence[JoinedTotal]) -> dict[str, JoinedTotal]:
    """Modules of one class with paths that differ in numbers alone, as one row under the path of the longest."""
    groups: dict[tuple[str, str], list[JoinedTotal]] = {}
    for module in modules:
        key = (path_pattern(module.name), graph.module_types.get(module.name, ""))
        groups.setdefault(key, []).append(module)
    order = {path: place for place, path in enumerate(graph.paths)}
    families = {
        group[0].name: replace(
            _sum(group),
            name=label_of(sorted((module.name for module in group), key=lambda path: order.get(path, -1)), most_runs=3),
        )
        for group in groups.values()
    }
    return dict(sorted(families.items(), key=lambda item: (-item[1].device_ns, item[1].name)))


def _sum(rows: Sequence[JoinedTotal]) -> JoinedTotal:
    return JoinedTotal(
        name="",
        calls=sum(row.calls for row in rows),
        kernels=sum(row.kernels for row in rows),
        device_ns=sum(row.device_ns for row in rows),
        flops=known_sum(row.flops for row in rows),
        bytes_moved=known_sum(row.bytes_moved for row in rows),
        peak_ns=known_sum(row.peak_ns for row in rows),
        memory_ns=known_sum(row.memory_ns for row in rows),
        predicted=sum_of_bands(row.predicted for row in rows),
        bound_by=max(rows, key=lambda row: row.device_ns).bound_by,
    )


def _evidence_cells(joined: Joined) -> dict[Column, Callable[[EvidenceShare], Cell]]:
    return {
        Column("evidence"): lambda share: "not attributed" if share.evidence is None else share.evidence.value,
        Column("kernels", Kind.COUNT): lambda share: share.kernels,
        Column("kernel time", Kind.SECONDS): lambda share: share.device_ns / _NS_PER_S,
        Column("share", Kind.RATIO): lambda share: joined.share(share.device_ns),
    }


def _without_op_table(joined: Joined) -> Table:
    cells: dict[Column, Callable[[UnattributedKernel], Cell]] = {
        Column("kernel"): lambda kernel: _short(kernel.name),
        Column("kind"): lambda kernel: kernel.label,
        Column("launched by"): lambda kernel: _short(kernel.launched_by or ""),
        Column("in a module"): lambda kernel: kernel.place or "",
        Column("kernels", Kind.COUNT): lambda kernel: kernel.kernels,
        Column("kernel time", Kind.SECONDS): lambda kernel: kernel.device_ns / _NS_PER_S,
        Column("share", Kind.RATIO): lambda kernel: joined.share(kernel.device_ns),
    }
    return table_of("Kernels that no traced op explains", joined.totals.without_op[:_KERNELS_SHOWN], cells)


def _short(name: str) -> str:
    """The end of a long template name says least; what encloses every kernel of PyTorch says nothing."""
    name = name.removeprefix("void ").replace("at::native::", "").replace("(anonymous namespace)::", "")
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def _notes(joined: Joined, modules: int) -> Iterator[Note]:
    yield Note(_recorded(joined))
    yield Note(
        "FLOPs are counted for the traced ops that have kernels here; a multiply-add counts as two. Bytes are as the "
        "traced code is written, so that an MBU above 100 % means a cache served them."
    )
    yield from _workload_notes(joined)
    share = joined.found_flops
    if share is not None and share < 1:
        text = f"The ops with kernels have {format_ratio(share)} of the FLOPs of the traced forwards."
        doubt = " If only a part of a forward was recorded, or another model or workload, no figure here holds."
        yield Note(text + (doubt if share < ENOUGH_FLOPS else ""), Level.WARNING)
    if joined.joined.merges_matmuls:
        yield Note(
            "The kernels fit better if matmuls of one input are merged, as engines merge weights (qkv_proj, "
            "gate_up_proj). Their time is divided by the bytes of each."
        )
    if any(work.is_fused for work in joined.joined.work):
        yield Note(
            "Some kernels do the work of several ops: the bytes that they move are unknown, and so is their MBU."
        )
    if joined.device is not None and (other := reported_elsewhere(joined.device, joined.recording.device_name)):
        yield Note(
            f"The recording is of {other.name}: MFU, MBU and expected time by the figures of {joined.device.name} say "
            "nothing of it.",
            Level.WARNING,
        )
    if joined.device is None:
        named = joined.recording.device_name
        why = "the recording names no device" if named is None else f"{named!r} is not in the table of devices"
        unknown = "MFU and MBU are not known, nor whether the device could have done the traced work in this time"
        yield Note(f"{unknown}: {why}; --device ID names one.", Level.WARNING)
    if joined.recording.other_devices:
        yield Note(f"{joined.recording.other_devices} other devices in the file are left out.", Level.WARNING)
    if modules > _MODULES_SHOWN:
        yield Note(f"{modules - _MODULES_SHOWN} more modules are not shown; `modules` of the answer in Python has all.")


def _workload_notes(joined: Joined) -> Iterator[Note]:
    """Signs that another workload was recorded than traced."""
    totals = joined.totals
    backward_ns = sum(one.device_ns for one in totals.without_op if _is_backward(one.launched_by or ""))
    if backward_ns:
        yield Note(
            f"{format_ratio(joined.share(backward_ns))} of the time is of a backward pass. A trace is of inference, so "
            "its kernels belong to no op.",
            Level.WARNING,
        )
    missing = [kernel for kernel in totals.without_op if kernel.launched_by and kernel.label in _HEAVY]
    if missing and missing[0].device_ns > (1 - ENOUGH) * totals.total.device_ns:
        yield Note(
            f"The recording ran {_short(missing[0].launched_by or '')}, and no traced op reads tensors of these sizes: "
            "trace the workload that was recorded.",
            Level.WARNING,
        )
    times = totals.total.times_predicted
    if times is not None and times > _TIMES_SLOWER and joined.attributed >= ENOUGH:
        yield Note(
            f"The kernels take {times:.0f} times as long as predicted for the trace: the device was slowed down, or a "
            "larger workload or another model was recorded.",
            Level.WARNING,
        )
    if joined.too_fast is not None and joined.too_fast > TOO_MUCH:
        yield Note(
            f"{format_ratio(joined.too_fast)} of the traced work would have run faster than the device allows: the "
            "recording is of another model, of a smaller workload or of other weight formats than the trace.",
            Level.WARNING,
        )


def _is_backward(launched_by: str) -> bool:
    """By the names that torch's autograd gives to what it runs: `MmBackward0`, `autograd::engine::...`."""
    name = launched_by.partition(" ")[0]
    return name.startswith("autograd::engine") or re.search(r"Backward\d*$", name) is not None


def _recorded(joined: Joined) -> str:
    recording = joined.recording
    steps = ", ".join(str(step.number) for step in recording.steps)
    text = f"Recorded by {recording.source}" + (f" on {recording.device_name}" if recording.device_name else "")
    text += f": {format_count(len(recording.work))} kernels, copies and fills"
    text += f" of step {steps}" if steps else ""
    return f"{text}; one traced forward makes {format_count(joined.joined.launches)} launches."

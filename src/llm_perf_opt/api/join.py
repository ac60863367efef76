"""A recording of someone's GPU on a trace: which op and module each kernel belongs to, and what rate it reached."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device, find_device
from llm_perf_opt.core.reading import filled
from llm_perf_opt.core.recordings import read_recording
from llm_perf_opt.core.report import Report
from llm_perf_opt.core.units import format_count
from llm_perf_opt.measurements.join.attribution import ENOUGH, join_recording
from llm_perf_opt.measurements.join.join_report import ENOUGH_FLOPS, Joined, join_report
from llm_perf_opt.measurements.join.totals import (
    TOO_MUCH,
    EvidenceShare,
    JoinedTotal,
    UnattributedKernel,
    join_totals,
    too_fast,
)

log = logging.getLogger(__name__)

_MANY = 20_000  # kernels that take about a second


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class JoinAnswer(Answer):
    """Recorded kernels by stage, module and op. Times are of all `forwards` together; modules hold their own work.

    `without_op` are kernels that no traced op explains, those given to a module by their place among them.
    """

    model: str
    phase: str
    recorded_by: str
    recorded_on: str | None  # the device by its driver's name
    device: Device | None  # whose peaks MFU and MBU refer to
    forwards: int
    device_ns: int  # all recorded time
    stages: tuple[JoinedTotal, ...]
    modules: tuple[JoinedTotal, ...]
    op_kinds: tuple[JoinedTotal, ...]
    total: JoinedTotal
    evidence: tuple[EvidenceShare, ...]
    without_op: tuple[UnattributedKernel, ...]
    too_fast: float | None  # the share of the work that the device could not have done in its time; None: no device
    _joined: Joined

    @property
    def attributed(self) -> float:
        """The share of the kernel time that belongs to an op or, by its place, to a module."""
        return self._joined.share(self.total.device_ns)

    @property
    def is_complete(self) -> bool:
        """Whether the figures stand for the run.

        95 % of the time is attributed, 90 % of the FLOPs have kernels, and at most 5 % of the work is too fast.
        """
        is_found = self.found_flops is None or self.found_flops >= ENOUGH_FLOPS
        return self.attributed >= ENOUGH and is_found and (self.too_fast or 0) <= TOO_MUCH

    @property
    def found_flops(self) -> float | None:
        """The share of the FLOPs of the traced forwards whose ops have kernels: low where another run was recorded."""
        return self._joined.found_flops

    def report(self) -> Report:
        """The answer in three lines, stages, modules, ops, the evidence, and what no op explains."""
        return join_report(self._joined)


def join_answer(
    graph: CallGraph,
    recording: str | Path,
    *,
    step: str | int | None = None,
    device: str | Device | None = None,
    devices_file: Path | None = None,
) -> JoinAnswer:
    """Join one phase with a recording; the parameters are those of `Trace.join`."""
    chosen = find_device(device, devices_file) if isinstance(device, str) else device
    first, last = _steps(step)
    found = read_recording(Path(recording)).at_steps(first, last)
    if not found.work:
        raise UsageError(
            "The chosen steps hold no kernel.",
            why="the recording ended before the device ran them, or they are empty",
            fix="choose other steps, or leave --step out",
        )
    if chosen is None and found.device_name is not None:
        chosen = _recorded_device(found.device_name, devices_file)
    if len(found.work) > _MANY:
        log.info("Laying %s pieces of work along the traced ops ...", format_count(len(found.work)))
    joined = join_recording(found, graph)
    totals = join_totals(joined, graph, chosen)
    fast = too_fast(joined, graph, chosen)
    return filled(
        JoinAnswer,
        totals,
        model=graph.model,
        phase=graph.phase,
        recorded_by=found.source,
        recorded_on=found.device_name,
        device=chosen,
        forwards=joined.forwards,
        device_ns=found.device_ns,
        too_fast=fast,
        _joined=Joined(graph=graph, recording=found, joined=joined, totals=totals, device=chosen, too_fast=fast),
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

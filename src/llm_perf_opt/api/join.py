"""A recording of someone's GPU on a trace: which op and module each kernel belongs to, and what rate it reached."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.reading import filled
from llm_perf_opt.core.report import Report
from llm_perf_opt.measurements.join.join_report import Joined, join_report, read_joined
from llm_perf_opt.measurements.join.totals import (
    EvidenceShare,
    JoinedTotal,
    UnattributedKernel,
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
    device: Device | None  # MFU and MBU refer to its peaks
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
        return self._joined.attributed

    @property
    def is_complete(self) -> bool:
        """Whether the figures stand for the run.

        95 % of the time is attributed, 90 % of the FLOPs have kernels, and at most 5 % of the work is too fast: without
        a device nobody can tell.
        """
        return self._joined.is_complete

    @property
    def found_flops(self) -> float | None:
        """The share of the traced FLOPs with a kernel in the recording: low where another run was recorded."""
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
    """Join one phase with a recording; the parameters are as in `Trace.join`."""
    joined = read_joined(graph, recording, step=step, device=device, devices_file=devices_file)
    return filled(
        JoinAnswer,
        joined.totals,
        model=graph.model,
        phase=graph.phase,
        recorded_by=joined.recording.source,
        recorded_on=joined.recording.device_name,
        device=joined.device,
        forwards=joined.joined.forwards,
        device_ns=joined.device_ns,
        too_fast=joined.too_fast,
        _joined=joined,
    )

"""Does it fit: what a device must hold, part by part, and whether a given one does, alone and as a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import Hardware, device_of, find_hardware, require_room
from llm_perf_opt.core.report import Report
from llm_perf_opt.costs.memory.kv_cache import TracedKvCache
from llm_perf_opt.costs.memory.memory_report import AttentionCase, attention_cases, memory_report
from llm_perf_opt.costs.memory.need import PhaseMemory, RunMemory, run_memory
from llm_perf_opt.costs.run_description import deployment_notes
from llm_perf_opt.serving.fit import ServingFit, TracedFit, traced_fit, with_serving_fit
from llm_perf_opt.tracing.traced_run import is_eager


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MemoryAnswer(Answer):
    """What each phase needs at its peak. `serving` is the fit of a serving engine with the traced batch and context."""

    model: str
    phases: tuple[PhaseMemory, ...]
    cache: TracedKvCache | None  # None: no phase decodes
    attention_cases: tuple[AttentionCase, ...]
    device: Device | None
    serving: ServingFit | None  # None: no device, or no decode step
    _graphs: tuple[CallGraph, ...]
    _fit: TracedFit | None  # what `serving` rests on

    @property
    def total_bytes(self) -> int | None:
        """What the most demanding phase needs; None while one phase is unknown."""
        return self._memory.total_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the device has as much; None where one of the two is not known."""
        if self.device is None or self.total_bytes is None:
            return None
        return self.total_bytes <= self.device.memory_bytes

    @property
    def _memory(self) -> RunMemory:
        return RunMemory(phases=self.phases, cache=self.cache)

    def report(self) -> Report:
        """Memory by phase and stage, what is alive at the peak, curves, and the fit of the device."""
        report = with_serving_fit(memory_report(self._memory, self.attention_cases, self.device), self._fit)
        return replace(report, notes=(*deployment_notes(self._graphs), *report.notes))


def memory_answer(
    graphs: tuple[CallGraph, ...],
    device: str | Hardware | None = None,
    *,
    devices_file: Path | None = None,
    other_attention: Sequence[CallGraph] = (),
) -> MemoryAnswer:
    """The memory of a run, and of `device` by its id or reported name."""
    hardware = None if device is None else find_hardware(device, devices_file)
    if hardware is not None:
        require_room(graphs, hardware)
    single_device = None if hardware is None else device_of(hardware)
    memory = run_memory(graphs)
    fit = None if single_device is None else traced_fit(graphs, single_device)
    return MemoryAnswer(
        model=graphs[0].model,
        phases=memory.phases,
        cache=memory.cache,
        attention_cases=tuple(attention_cases(*eager_and_fused(graphs, other_attention))),
        device=single_device,
        serving=None if fit is None else fit[1],
        _graphs=graphs,
        _fit=fit,
    )


def eager_and_fused(
    graphs: Sequence[CallGraph], other: Sequence[CallGraph]
) -> tuple[Sequence[CallGraph], Sequence[CallGraph]]:
    """The runs of the two kinds of attention, of which `graphs` are one and `other` the other."""
    return (graphs, other) if is_eager(graphs) else (other, graphs)

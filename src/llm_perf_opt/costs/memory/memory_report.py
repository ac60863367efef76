"""The memory of a run as a chapter for people and as JSON-safe values in bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.report import (
    Axis,
    Cell,
    Chart,
    Column,
    Kind,
    Level,
    Line,
    LineChart,
    Mark,
    Note,
    Report,
    Table,
    table_of,
)
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.costs.memory.attention_cases import AttentionCase, attention_table, stage_label
from llm_perf_opt.costs.memory.kv_cache import TracedKvCache
from llm_perf_opt.costs.memory.live_memory import Peak, StageCurve, step_points
from llm_perf_opt.costs.memory.need import PhaseMemory, RunMemory, StageMemory, need_table


def memory_json(memory: RunMemory, cases: Sequence[AttentionCase] = ()) -> dict[str, Any]:
    """Every part by name, what is alive at each phase's peak, and the two kinds of attention if both were traced."""
    return {
        "needed_bytes": memory.total_bytes,
        "kv_cache": None
        if memory.cache is None
        else {
            "tensors": len(memory.cache.tensors),
            "bytes": memory.cache.bytes,
            "bytes_per_token": memory.cache.bytes_per_token,
        },
        "phases": [_phase(phase) for phase in memory.phases],
        "attention_cases": list(map(asdict, cases)),
    }


def _phase(phase: PhaseMemory) -> dict[str, Any]:
    return {
        "phase": phase.phase,
        "weight_bytes": phase.weight_bytes,
        "buffer_bytes": phase.buffer_bytes,
        "input_bytes": phase.input_bytes,
        "peak_kv_bytes": phase.peak_kv_bytes,
        "peak_input_bytes": phase.peak_input_bytes,
        "peak_live_bytes": None if phase.peak is None else phase.peak.bytes,
        "needed_bytes": phase.total_bytes,
        "peak": None if phase.peak is None else _peak(phase.peak),
        "stages": [
            {
                "stage": stage.stage,
                "weight_bytes": stage.weight_bytes,
                "input_bytes": stage.input_bytes,
                "kv_bytes": stage.kv_bytes,
                "peak_live_bytes": stage.peak.bytes,
                "module": stage.peak.path,
                "op": stage.peak.op,
            }
            for stage in phase.stages
        ],
    }


def _peak(peak: Peak) -> dict[str, Any]:
    return {
        "module": peak.path,
        "op": peak.op,
        "alive": [
            {
                "tensor": one.tensor,
                "count": one.count,
                "bytes": one.bytes,
                "made_by": one.made_by,
                "module": one.path,
            }
            for one in peak.alive
        ],
    }


TOP_TENSORS = 10


def memory_report(memory: RunMemory, cases: Sequence[AttentionCase] = (), device: Device | None = None) -> Report:
    """Everything about memory that the phases of one run tell; `cases` adds eager against fused attention."""
    peaks = [phase for phase in memory.phases if phase.peak is not None]
    curves = tuple(chart for phase in memory.phases for chart in _stage_charts(phase))
    return Report(
        title="Does it fit?",
        tables=(
            need_table(memory, device),
            *([_cache_table(memory.cache)] if memory.cache is not None else []),
            _stage_table([stage for phase in memory.phases for stage in phase.stages]),
            *(_alive_table(phase.phase, phase.peak) for phase in peaks if phase.peak is not None),
            *([attention_table(cases)] if cases else []),
        ),
        charts=tuple(chart for phase in memory.phases for chart in _whole_chart(phase)),
        notes=tuple(_notes(memory)),
        chapters=(Report(title="Live memory, stage by stage", charts=curves),) if curves else (),
    )


def _cache_table(cache: TracedKvCache) -> Table:
    return table_of(
        "KV cache",
        [cache],
        {
            Column("tensors", Kind.COUNT): lambda cache: len(cache.tensors),
            Column("before the first decode step", Kind.BYTES): lambda cache: cache.bytes,
            Column("per token", Kind.BYTES): lambda cache: cache.bytes_per_token,
        },
    )


def _stage_table(stages: Sequence[StageMemory]) -> Table:
    return table_of(
        "Memory by stage",
        stages,
        {
            Column("stage"): lambda stage: stage_label(stage.phase, stage.stage),
            Column("weights", Kind.BYTES): lambda stage: stage.weight_bytes,
            Column("given", Kind.BYTES): lambda stage: stage.input_bytes,
            Column("KV cache", Kind.BYTES): lambda stage: stage.kv_bytes,
            Column("peak live", Kind.BYTES): lambda stage: stage.peak.bytes,
            Column("module at the peak"): lambda stage: stage.peak.path,
            Column("op at the peak"): lambda stage: stage.peak.op,
        },
    )


def _alive_table(phase: str, peak: Peak) -> Table:
    columns = (
        Column("tensor"),
        Column("tensors", Kind.COUNT),
        Column("bytes", Kind.BYTES),
        Column("made by"),
        Column("in module"),
    )
    shown, rest = peak.alive[:TOP_TENSORS], peak.alive[TOP_TENSORS:]
    rows: list[tuple[Cell, ...]] = [(one.tensor, one.count, one.bytes, one.made_by, one.path) for one in shown]
    if rest:
        rows.append(("all others", sum(one.count for one in rest), sum(one.bytes for one in rest), "", ""))
    total = ("total", sum(one.count for one in peak.alive), sum(one.bytes for one in peak.alive), "", "")
    return Table(title=f"Alive at the peak of {phase}", columns=columns, rows=tuple(rows), footer=total)


def _whole_chart(phase: PhaseMemory) -> Iterator[Chart]:
    """The whole phase with a mark at each stage's peak."""
    if phase.timeline is not None:
        marks = tuple(_mark(stage.stage, stage.peak.op_row, stage.peak) for stage in phase.stages)
        yield _chart(f"Live memory, all of {phase.phase}", phase.timeline.whole, marks)


def _stage_charts(phase: PhaseMemory) -> Iterator[Chart]:
    """Each stage by itself, if there are several."""
    if phase.timeline is not None and len(phase.timeline.stages) > 1:
        for curve, stage in zip(phase.timeline.stages, phase.stages, strict=True):
            mark = _mark("peak", curve.live_bytes.index(curve.peak_bytes), stage.peak)
            yield _chart(f"Live memory of {stage_label(phase.phase, curve.stage)}", curve, (mark,))


def _chart(title: str, curve: StageCurve, marks: tuple[Mark, ...]) -> LineChart:
    return LineChart(
        title=title,
        x=Axis("ops run", Kind.COUNT),
        y=Axis("live bytes", Kind.BYTES),
        lines=(Line("live bytes", step_points(curve.live_bytes), "step"),),
        marks=marks,
        caption="Bytes alive while each op ran: activations, cache, and what the phase was given. Weights are apart.",
    )


def _mark(name: str, x: int, peak: Peak) -> Mark:
    return Mark(x, peak.bytes, f"{name}: {format_bytes(peak.bytes)} in {peak.path}")


def _notes(memory: RunMemory) -> Iterator[Note]:
    yield Note(
        "Live memory is that of tensors, from the op that makes one until its last reference is gone, and of what a "
        "composite op holds while it runs. Fragmentation of the allocator, workspaces inside kernels and the CUDA "
        "context (some hundred MiB) are not in it."
    )
    for phase in memory.phases:
        if phase.peak is None:
            yield Note(f"{phase.phase}: the trace follows no memory, so its peak is unknown.", Level.WARNING)
    if memory.cache is None:
        yield Note("No phase decodes, so the size of a KV cache is unknown; trace at least one decode step.")

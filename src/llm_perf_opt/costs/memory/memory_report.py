"""The memory of a run as a chapter for people and as JSON-safe values in bytes.

Eager attention and a fused kernel are two traces of one workload, side by side where they differ. The modules in
question are found, not named: those that run attention as one op in the fused trace and not in the eager one. A stage's
own peak may lie elsewhere, in which case fusing does not lower it; both are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, label_of, ops_of, stage_names, stage_of_calls
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
from llm_perf_opt.costs.memory.kv_cache import TracedKvCache
from llm_perf_opt.costs.memory.live_memory import Peak, StageCurve, Timeline, held_bytes, step_points, timeline
from llm_perf_opt.costs.memory.need import PhaseMemory, RunMemory, StageMemory, need_table


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPeak:
    """The most bytes alive while the attention modules of a stage ran, and the peak of the whole stage.

    `added_bytes` is the most that one call of such a module added to what was alive when it began.
    """

    bytes: int
    added_bytes: int
    stage_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """The attention of one stage in both forms; a form that was not traced is None."""

    phase: str
    stage: str
    modules: str
    eager: AttentionPeak | None
    fused: AttentionPeak | None


def attention_cases(eager: Sequence[CallGraph], fused: Sequence[CallGraph]) -> tuple[AttentionCase, ...]:
    """Every stage with attention that the two traces run differently; `eager` may be empty.

    Without a fused trace it is unknown which modules are attention, and there is no case.
    """
    by_phase = {graph.phase: graph for graph in eager}
    return tuple(case for graph in fused for case in _cases(by_phase.get(graph.phase), graph))


def _cases(eager: CallGraph | None, fused: CallGraph) -> Iterator[AttentionCase]:
    curve = timeline(fused)
    if curve is None:
        return
    eager_curve = None if eager is None else timeline(eager)
    already = set() if eager is None else {path for path, _ in _fused_modules(eager)}
    by_stage: dict[str, list[str]] = {}
    for path, stage in _fused_modules(fused):
        if path not in already:
            by_stage.setdefault(stage, []).append(path)
    for stage, paths in by_stage.items():
        yield AttentionCase(
            phase=fused.phase,
            stage=stage,
            modules=label_of(paths),
            eager=None if eager is None or eager_curve is None else _attention_peak(eager, eager_curve, stage, paths),
            fused=_attention_peak(fused, curve, stage, paths),
        )


def _fused_modules(graph: CallGraph) -> Iterator[tuple[str, str]]:
    """Path and stage of every module that runs attention as one op directly, each once."""
    calls, stages, names = calls_of(graph), stage_of_calls(graph), stage_names(graph)
    is_attention = ["attention" in kind.name or "attn" in kind.name for kind in graph.op_kinds]
    fused_calls = dict.fromkeys(
        call for kind, call in zip(ops_of(graph).kind, ops_of(graph).call, strict=True) if is_attention[kind]
    )
    return iter(
        dict.fromkeys((graph.paths[calls.path[call]], names[stages[call]]) for call in fused_calls if call >= 0)
    )


def _attention_peak(graph: CallGraph, curve: Timeline, stage: str, paths: Sequence[str]) -> AttentionPeak | None:
    assert graph.storages is not None, "a graph that has a timeline has storages"
    calls, wanted = calls_of(graph), set(paths)
    live = curve.whole.live_bytes
    live_bytes = held_bytes(graph.storages, len(live))
    peaks = []
    for path, first, end in zip(calls.path, calls.first_op, calls.end_op, strict=True):
        if graph.paths[path] in wanted and first < end:
            highest = max(live[first:end])
            peaks.append((highest, highest - live_bytes[first]))
    stage_bytes = next((stage_peak.peak_bytes for stage_peak in curve.stages if stage_peak.stage == stage), None)
    if not peaks or stage_bytes is None:
        return None
    return AttentionPeak(
        bytes=max(highest for highest, _ in peaks),
        added_bytes=max(added for _, added in peaks),
        stage_bytes=stage_bytes,
    )


_LIVE = (
    "storages that live at that op of the trace, each from the op that makes it to its last use (docs/how/memory.md)"
)


def attention_table(cases: Sequence[AttentionCase]) -> Table:
    """One row per case and form."""
    forms = ((case, *form) for case in cases for form in (("eager", case.eager), ("fused", case.fused)))
    return table_of(
        "Memory with eager and with fused attention",
        forms,
        {
            Column("stage"): lambda row: stage_label(row[0].phase, row[0].stage),
            Column("attention"): lambda row: row[1],
            Column("added by one attention", Kind.BYTES): lambda row: None if row[2] is None else row[2].added_bytes,
            Column("peak in attention", Kind.BYTES): lambda row: None if row[2] is None else row[2].bytes,
            Column("peak of the stage", Kind.BYTES): lambda row: None if row[2] is None else row[2].stage_bytes,
            Column("modules"): lambda row: row[0].modules,
        },
        origin=_LIVE,
    )


def stage_label(phase: str, stage: str) -> str:
    """`prefill`, or `prefill: sam` where the stage has a name of its own."""
    return phase if stage == phase else f"{phase}: {stage}"


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
                "tensor": item.tensor,
                "count": item.count,
                "bytes": item.bytes,
                "made_by": item.made_by,
                "module": item.path,
            }
            for item in peak.alive
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
        origin="keys, values and states that the traced decode step reads",
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
        origin=_LIVE,
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
    rows: list[tuple[Cell, ...]] = [(item.tensor, item.count, item.bytes, item.made_by, item.path) for item in shown]
    if rest:
        rows.append(("all others", sum(item.count for item in rest), sum(item.bytes for item in rest), "", ""))
    total = ("total", sum(item.count for item in peak.alive), sum(item.bytes for item in peak.alive), "", "")
    return Table(title=f"Alive at the peak of {phase}", columns=columns, rows=tuple(rows), footer=total, origin=_LIVE)


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
        "Live memory counts each tensor from the op that creates it until its last reference is gone, and the scratch "
        "that a composite op holds while it runs. It does not include fragmentation of the allocator, workspaces "
        "inside kernels, or the CUDA context (some hundred MiB)."
    )
    for phase in memory.phases:
        if phase.peak is None:
            yield Note(f"{phase.phase}: the trace does not record memory, so its peak is unknown.", Level.WARNING)
    if memory.cache is None:
        yield Note("No phase decodes, so the size of a KV cache is unknown; trace at least one decode step.")

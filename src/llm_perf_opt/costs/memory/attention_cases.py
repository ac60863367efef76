"""Eager attention against a fused kernel: two traces of one workload, side by side where they differ.

The modules in question are found, not named: those that run attention as one op in the fused trace and not in the eager
one. A stage's own peak may lie elsewhere, in which case fusing does not lower it; both are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.path_labels import label_of
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of, stage_names, stage_of_calls
from llm_perf_opt.core.report import Column, Kind, Table, table_of
from llm_perf_opt.costs.memory.live_memory import Timeline, held_bytes, timeline


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
            eager=None if eager is None or eager_curve is None else _peak(eager, eager_curve, stage, paths),
            fused=_peak(fused, curve, stage, paths),
        )


def _fused_modules(graph: CallGraph) -> Iterator[tuple[str, str]]:
    """Path and stage of every module that runs attention as one op directly, each once."""
    calls, stages, names = calls_of(graph), stage_of_calls(graph), stage_names(graph)
    is_attention = ["attention" in kind.name or "attn" in kind.name for kind in graph.op_kinds]
    found = dict.fromkeys(
        call for kind, call in zip(ops_of(graph).kind, ops_of(graph).call, strict=True) if is_attention[kind]
    )
    return iter(dict.fromkeys((graph.paths[calls.path[call]], names[stages[call]]) for call in found if call >= 0))


def _peak(graph: CallGraph, curve: Timeline, stage: str, paths: Sequence[str]) -> AttentionPeak | None:
    assert graph.storages is not None, "a graph that has a timeline has storages"
    calls, wanted = calls_of(graph), set(paths)
    live = curve.whole.live_bytes
    held = held_bytes(graph.storages, len(live))
    peaks = []
    for path, first, end in zip(calls.path, calls.first_op, calls.end_op, strict=True):
        if graph.paths[path] in wanted and first < end:
            highest = max(live[first:end])
            peaks.append((highest, highest - held[first]))
    stage_bytes = next((one.peak_bytes for one in curve.stages if one.stage == stage), None)
    if not peaks or stage_bytes is None:
        return None
    return AttentionPeak(
        bytes=max(highest for highest, _ in peaks),
        added_bytes=max(added for _, added in peaks),
        stage_bytes=stage_bytes,
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
    )


def stage_label(phase: str, stage: str) -> str:
    """`prefill`, or `prefill: sam` where the stage has a name of its own."""
    return phase if stage == phase else f"{phase}: {stage}"

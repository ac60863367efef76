"""How long each stage of a trace takes on a calibrated machine: every op by the table of its kind of work."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llm_perf_opt.analyses.calibrated.heap import fresh_bytes_by_op
from llm_perf_opt.analyses.calibrated.interpolation import time_at
from llm_perf_opt.analyses.calibrated.layouts import Scattered, count_variants_by_stage
from llm_perf_opt.analyses.calibrated.work import MODULE_CALL, Work, work_of
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import stage_names, stage_of_calls, stage_of_ops
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.hardware.calibration import Calibration, Timing

FRESH_MEMORY = "fresh_memory"
_NOTHING = Timing(median_s=0.0, fastest_s=0.0, slowest_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime:
    """One distinct op of a stage: what it takes each time, in which families of work."""

    kind: OpKind
    count: int
    each: Timing
    families: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """A stage: its time, the part of it that each family of work has, and the ops that no family describes.

    `time.fastest_s` and `time.slowest_s` are a band: all work at the fastest, or all at the slowest try of calibrating.
    """

    name: str
    time: Timing
    by_family: Mapping[str, float]  # seconds, the most first
    ops: tuple[OpTime, ...]
    fresh_bytes: int  # that the system hands out while the stage runs
    unpredicted: Mapping[str, int]  # op name -> how often it ran


def predict_stages(graph: CallGraph, calibration: Calibration) -> tuple[StageTime, ...]:
    """Every stage of a trace that has ops, in order."""
    names = stage_names(graph)
    calls = Counter(names[row] for row in stage_of_calls(graph))
    counts = count_variants_by_stage(graph)
    fresh = _fresh_bytes_by_stage(graph, calibration)
    return tuple(_stage(name, counts[name], calls[name], fresh[name], calibration) for name in names if counts[name])


def _fresh_bytes_by_stage(graph: CallGraph, calibration: Calibration) -> Counter[str]:
    """Where memory from the system costs nothing, none is counted."""
    fresh: Counter[str] = Counter()
    if calibration.fresh_byte is not None:
        names = stage_names(graph)
        for stage, taken in zip(stage_of_ops(graph), fresh_bytes_by_op(graph), strict=True):
            fresh[names[stage]] += taken
    return fresh


def _stage(
    name: str,
    counts: Mapping[tuple[OpKind, Scattered], int],
    calls: int,
    fresh_bytes: int,
    calibration: Calibration,
) -> StageTime:
    ops: list[OpTime] = []
    unpredicted: Counter[str] = Counter()
    by_family: dict[str, Timing] = defaultdict(lambda: _NOTHING)
    for (kind, scattered), count in counts.items():
        parts = op_times(kind, calibration, scattered)
        if parts is None:
            unpredicted[kind.name] += count
            continue
        for family, time in parts:
            by_family[family] = _sum((by_family[family], _times(time, count)))
        families = tuple(family for family, _ in parts)
        ops.append(OpTime(kind=kind, count=count, each=_sum(time for _, time in parts), families=families))
    by_family[FRESH_MEMORY] = _times(calibration.fresh_byte or _NOTHING, fresh_bytes)
    by_family[MODULE_CALL.family] = _times(_work_time(MODULE_CALL, calibration) or _NOTHING, calls)
    ranked = sorted(by_family.items(), key=lambda part: -part[1].median_s)
    return StageTime(
        name=name,
        time=_sum(by_family.values()),
        by_family={family: time.median_s for family, time in ranked if time.median_s},
        ops=tuple(ops),
        fresh_bytes=fresh_bytes,
        unpredicted=dict(unpredicted),
    )


def op_times(
    kind: OpKind, calibration: Calibration, scattered: Scattered = frozenset()
) -> list[tuple[str, Timing]] | None:
    """The time of one run by family of work, or None: no family describes it, or its table was not measured."""
    works = work_of(kind, scattered)
    if works is None:
        return None
    parts = []
    for work in works:
        time = _work_time(work, calibration)
        if time is None:
            return None
        parts.append((work.family, time))
    return parts


def _work_time(work: Work, calibration: Calibration) -> Timing | None:
    table = calibration.table(work.family, work.dtype)
    return None if table is None else _times(time_at(table, work.sizes), work.times)


def _times(time: Timing, count: float) -> Timing:
    return Timing(median_s=time.median_s * count, fastest_s=time.fastest_s * count, slowest_s=time.slowest_s * count)


def _sum(times: Iterable[Timing]) -> Timing:
    fastest = median = slowest = 0.0
    for time in times:
        fastest, median, slowest = fastest + time.fastest_s, median + time.median_s, slowest + time.slowest_s
    return Timing(median_s=median, fastest_s=fastest, slowest_s=slowest)

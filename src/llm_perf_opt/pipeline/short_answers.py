"""The first table of the one report: every question with its answer in one line, as read from the results at hand.

The figures themselves, to the last digit, are in the chapters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from llm_perf_opt.analyses.memory import RunMemory
from llm_perf_opt.analyses.prediction import Execution, predict_stages, total_wall
from llm_perf_opt.analyses.serving_fit import traced_fit
from llm_perf_opt.analyses.static_compute import StaticCompute
from llm_perf_opt.callgraph import CallGraph
from llm_perf_opt.document import Column, Report, Table
from llm_perf_opt.export_outcome import Check, PartOutcome, Verdict
from llm_perf_opt.hardware import Device
from llm_perf_opt.units import (
    format_bytes,
    format_count,
    format_flops,
    format_ratio,
    format_seconds,
    format_short_count,
)

_UNKNOWN = "not known"


def glance_table(answers: Sequence[tuple[Report, str]]) -> Table:
    """One row per chapter; a page turns the questions into links."""
    rows = tuple((chapter.title, answer) for chapter, answer in answers)
    return Table(title="At a glance", columns=(Column("question"), Column("answer")), rows=rows)


def unknown_because(reason: str) -> str:
    """The answer to a question that cannot be answered."""
    return f"{_UNKNOWN}: {reason}"


def _with_unknown(answer: str, phases: Iterable[str]) -> str:
    return ", ".join((answer, *(f"{phase} {_UNKNOWN}" for phase in phases)))


def what_runs(static: StaticCompute, graphs: Sequence[CallGraph], unknown_phases: Iterable[str] = ()) -> str:
    """Modules and calls of all phases, and the weights behind them."""
    modules = len({path for graph in graphs for path in graph.call_counts})
    calls = sum(sum(graph.call_counts.values()) for graph in graphs)
    told = [f"{format_count(modules)} modules in {format_count(calls)} calls"]
    if static.parameters is not None:
        told.append(f"{format_short_count(static.parameters)} parameters")
    if (active := static.active_parameters) is not None:
        unit = "decoded token" if static.workload.get("batch") == 1 else "decode step"
        told.append(f"{format_short_count(active)} active per {unit}")
    return _with_unknown(", ".join(told), unknown_phases)


def what_it_costs(static: StaticCompute) -> str:
    """FLOPs of every phase."""
    by_phase: dict[str, list[int | None]] = {}
    for stage in static.stages:
        by_phase.setdefault(stage.phase, []).append(stage.flops)
    return ", ".join(f"{phase} {_flops(parts)}" for phase, parts in by_phase.items()) or _UNKNOWN


def _flops(parts: Sequence[int | None]) -> str:
    known = [part for part in parts if part is not None]
    return format_flops(sum(known)) if len(known) == len(parts) else _UNKNOWN


def does_it_fit(memory: RunMemory, device: Device | None, unknown_phases: Collection[str] = ()) -> str:
    """What a device needs at the worst moment, the weights in it, and its share of `device`.

    A phase of which nothing is known may need more than the others, so it can turn a yes into no, and not the reverse.
    """
    if memory.total_bytes is None:
        return _UNKNOWN
    weights = max(phase.weight_bytes for phase in memory.phases)
    told = f"{format_bytes(memory.total_bytes)} at the peak, of which {format_bytes(weights)} are weights"
    if device is not None:
        fits = _UNKNOWN if unknown_phases else "yes"
        verdict = fits if memory.total_bytes <= device.memory_bytes else "no"
        told = f"{verdict}: {told}; {format_ratio(memory.total_bytes / device.memory_bytes)} of {device.name}"
    return _with_unknown(told, unknown_phases)


def does_it_serve(graphs: Sequence[CallGraph], device: Device) -> str | None:
    """Whether a server on `device` holds the traced batch and context, and the most that it could; None: not known."""
    found = traced_fit(graphs, device)
    if found is None or found[1].fits is None:
        return None
    fit = found[1]
    most = "" if fit.largest_batch is None else f", at most {format_count(fit.largest_batch)}"
    verdict = "yes" if fit.fits else "no"
    return f"a server with {format_count(fit.batch)} x {format_count(fit.context)} tokens: {verdict}{most} at once"


def how_fast(
    graphs: Sequence[CallGraph], device: Device, execution: Execution, unknown_phases: Iterable[str] = ()
) -> str:
    """The band of every phase; of a decode that of one step."""
    return _with_unknown(", ".join(_band(graph, device, execution) for graph in graphs), unknown_phases)


def _band(graph: CallGraph, device: Device, execution: Execution) -> str:
    steps = graph.runtime.get("decode_steps") if graph.phase == "decode" else None
    wall = total_wall(predict_stages(graph, device, execution))
    name = graph.phase
    if isinstance(steps, int) and steps:
        wall, name = wall.times(1 / steps), f"{graph.phase} of one token"
    return f"{name} {format_seconds(wall.low)} to {format_seconds(wall.high)}"


def what_exports(parts: Sequence[PartOutcome]) -> str:
    """How many parts torch.export takes."""
    verdicts = Counter(part.outcome(Check.EXPORT).verdict for part in parts)
    return f"{verdicts[Verdict.OK]} of {len(parts)} parts with {Check.EXPORT}"

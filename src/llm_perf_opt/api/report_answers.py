"""The questions of the whole report, each answered in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from llm_perf_opt.api.cost_answer import CostAnswer
from llm_perf_opt.api.per_rank import RanksAnswer
from llm_perf_opt.api.prediction import PhaseBand, PredictionAnswer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.export_outcome import Check, PartOutcome, Verdict
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.report import Column, Report, Table
from llm_perf_opt.core.units import (
    format_bytes,
    format_count,
    format_flops,
    format_parameters,
    format_ratio,
    format_seconds,
)
from llm_perf_opt.costs.collectives import family_collectives, total_of
from llm_perf_opt.costs.memory.need import RunMemory
from llm_perf_opt.costs.static_figures import StageCompute
from llm_perf_opt.serving.fit import TracedFit
from llm_perf_opt.timing.attention_what_if import ALL as ALL_STAGES
from llm_perf_opt.timing.attention_what_if import AttentionWhatIf

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


def what_runs(cost: CostAnswer, graphs: Sequence[CallGraph], unknown_phases: Iterable[str] = ()) -> str:
    """Modules and calls of all phases, and the weights behind them."""
    modules = len({path for graph in graphs for path in graph.call_counts})
    calls = sum(sum(graph.call_counts.values()) for graph in graphs)
    parts = [f"{format_count(modules)} modules in {format_count(calls)} calls"]
    if cost.parameters is not None:
        parts.append(f"{format_parameters(cost.parameters)} parameters")
    parts += cost.active_texts
    return _with_unknown(", ".join(parts), unknown_phases)


def what_is_exchanged(graphs: Sequence[CallGraph]) -> str:
    """The collectives of every phase, and the bytes of their payloads."""
    totals = ((graph.phase, total_of(family_collectives(graph))) for graph in graphs)
    return ", ".join(
        f"{phase} {format_count(total.count)} collectives of {format_bytes(total.payload_bytes)}"
        for phase, total in totals
    )


def what_it_costs(stages: Sequence[StageCompute]) -> str:
    """FLOPs of every phase."""
    by_phase: dict[str, list[int | None]] = {}
    for stage in stages:
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
    answer = f"{format_bytes(memory.total_bytes)} at the peak, of which {format_bytes(weights)} are weights"
    if device is not None:
        fits = _UNKNOWN if unknown_phases else "yes"
        verdict = fits if memory.total_bytes <= device.memory_bytes else "no"
        answer = f"{verdict}: {answer}; {format_ratio(memory.total_bytes / device.memory_bytes)} of {device.name}"
    return _with_unknown(answer, unknown_phases)


def does_it_serve(found: TracedFit | None) -> str | None:
    """Whether a server holds the traced batch and context, and the most that it could; None: not known."""
    if found is None or found[1].fits is None:
        return None
    fit = found[1]
    most = "" if fit.largest_batch is None else f", at most {format_count(fit.largest_batch)}"
    verdict = "yes" if fit.fits else "no"
    return f"a server with {format_count(fit.batch)} x {format_count(fit.context)} tokens: {verdict}{most} at once"


def how_fast(graphs: Sequence[CallGraph], predictions: Sequence[PredictionAnswer], unknown: Iterable[str] = ()) -> str:
    """The band of every phase; of a decode that of one step. Of several machines that with the lowest upper end."""
    best = min(predictions, key=lambda one: one.high_s)
    bands = ", ".join(_band_text(best.phase_band(graph)) for graph in graphs)
    several = f"fastest of {len(predictions)} is {best.machine}: " if len(predictions) > 1 else ""
    return _with_unknown(f"{several}{bands}", unknown)


def _band_text(band: PhaseBand) -> str:
    return f"{band.name} {format_seconds(band.low_s)} to {format_seconds(band.high_s)}"


def what_exports(parts: Sequence[PartOutcome]) -> str:
    """How many parts torch.export takes."""
    verdicts = Counter(part.outcome(Check.EXPORT).verdict for part in parts)
    return f"{verdicts[Verdict.OK]} of {len(parts)} parts with {Check.EXPORT}"


def other_attention(cases: Sequence[AttentionWhatIf]) -> str:
    """What attention by itself moves in the first phase, kind by kind."""
    first = [case for case in cases if case.phase == cases[0].phase]
    moved: dict[str, int] = {}
    for case in first:
        if case.stage != ALL_STAGES:
            moved[case.attention] = moved.get(case.attention, 0) + case.alone.bytes_moved
    listed = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in moved.items())
    return f"bytes that attention moves in {first[0].phase}: {listed}"


def what_ranks_hold(ranks: RanksAnswer) -> str:
    """How many ranks there are of each kind, the most that one of them needs, and whether every one serves."""
    kinds = ", ".join(f"{format_count(kind.ranks)} like rank {kind.rank}" for kind in ranks.kinds)
    needed = [phase.needed_bytes for kind in ranks.kinds for phase in kind.phases]
    known = [size for size in needed if size is not None]
    most = format_bytes(max(known)) if known and len(known) == len(needed) else _UNKNOWN
    serves = "" if ranks.fits is None else f"; every rank serves the batch: {'yes' if ranks.fits else 'no'}"
    return f"{ranks.plan.describe()}: {kinds}; at most {most} needed{serves}"

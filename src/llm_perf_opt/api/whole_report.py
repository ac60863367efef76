"""Everything that needs no weights in one report: what runs, what it costs, does it fit, how fast could it be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.analyses.call_checks import call_checks, with_call_checks
from llm_perf_opt.analyses.collectives import collectives_table, family_collectives, total_of
from llm_perf_opt.analyses.cost.stage_costs import stage_report
from llm_perf_opt.analyses.cost.static_figures import StageCompute
from llm_perf_opt.analyses.memory.memory_report import memory_report
from llm_perf_opt.analyses.memory.need import RunMemory
from llm_perf_opt.analyses.run_description import deployment_notes, run_notes, workload_note
from llm_perf_opt.analyses.serving.fit import TracedFit, traced_fit, with_serving_fit
from llm_perf_opt.analyses.time.attention_what_if import ALL as ALL_STAGES
from llm_perf_opt.analyses.time.attention_what_if import AttentionWhatIf
from llm_perf_opt.analyses.time.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.analyses.time.predict import StageTime, predict, total_wall
from llm_perf_opt.analyses.time.prediction_report import prediction_report
from llm_perf_opt.analyses.time.speed import speed_of
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.cost import QUICK_SOURCES
from llm_perf_opt.api.cost_answer import CostAnswer
from llm_perf_opt.api.export import ExportAnswer
from llm_perf_opt.api.graph import grouped
from llm_perf_opt.api.hardware import Hardware, cluster_of, device_of, find_hardware, hardware_id, require_room
from llm_perf_opt.api.per_rank import RanksAnswer
from llm_perf_opt.api.prediction import DATA_SHEET
from llm_perf_opt.api.prediction_words import execution_text, prediction_lines, shortage_on
from llm_perf_opt.api.predictions import find_devices, is_several
from llm_perf_opt.api.what_if import AttentionAnswer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.export_outcome import Check, PartOutcome, Verdict
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.cluster import Cluster
from llm_perf_opt.core.parallel_plan import plan_in
from llm_perf_opt.core.report import Column, Level, Note, Report, Table
from llm_perf_opt.core.units import (
    format_bytes,
    format_count,
    format_flops,
    format_ratio,
    format_seconds,
    format_short_count,
)

if TYPE_CHECKING:
    from llm_perf_opt.api.predictions import PredictionsAnswer
    from llm_perf_opt.api.sweep_answer import SweepAnswer
    from llm_perf_opt.api.trace import Trace

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
        parts.append(f"{format_short_count(cost.parameters)} parameters")
    if (active := cost.active_parameters) is not None:
        unit = "decoded token" if cost.workload.get("batch") == 1 else "decode step"
        parts.append(f"{format_short_count(active)} active per {unit}")
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


def how_fast(
    graphs: Sequence[CallGraph], times: Sequence[Sequence[StageTime]], unknown_phases: Iterable[str] = ()
) -> str:
    """The band of every phase, from the times of its stages; of a decode that of one step."""
    bands = (_band(graph, stages) for graph, stages in zip(graphs, times, strict=True))
    return _with_unknown(", ".join(bands), unknown_phases)


def _band(graph: CallGraph, stages: Sequence[StageTime]) -> str:
    steps = graph.runtime.get("decode_steps") if graph.phase == "decode" else None
    wall = total_wall(stages)
    name = graph.phase
    if isinstance(steps, int) and steps:
        wall, name = wall.times(1 / steps), f"{graph.phase} of one token"
    return f"{name} {format_seconds(wall.low)} to {format_seconds(wall.high)}"


def what_exports(parts: Sequence[PartOutcome]) -> str:
    """How many parts torch.export takes."""
    verdicts = Counter(part.outcome(Check.EXPORT).verdict for part in parts)
    return f"{verdicts[Verdict.OK]} of {len(parts)} parts with {Check.EXPORT}"


def what_ranks_hold(ranks: RanksAnswer) -> str:
    """How many ranks there are of each kind, the most that one of them needs, and whether every one serves."""
    kinds = ", ".join(f"{format_count(kind.ranks)} like rank {kind.rank}" for kind in ranks.kinds)
    needed = [phase.needed_bytes for kind in ranks.kinds for phase in kind.phases]
    known = [size for size in needed if size is not None]
    most = format_bytes(max(known)) if known and len(known) == len(needed) else _UNKNOWN
    serves = "" if ranks.fits is None else f"; every rank serves the batch: {'yes' if ranks.fits else 'no'}"
    return f"{ranks.plan.describe()}: {kinds}; at most {most} needed{serves}"


def other_attention(cases: Sequence[AttentionWhatIf]) -> str:
    """What attention by itself moves in the first phase, kind by kind."""
    first = [case for case in cases if case.phase == cases[0].phase]
    moved: dict[str, int] = {}
    for case in first:
        if case.stage != ALL_STAGES:
            moved[case.attention] = moved.get(case.attention, 0) + case.alone.bytes_moved
    listed = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in moved.items())
    return f"bytes that attention moves in {first[0].phase}: {listed}"


_FIRST = ("How fast", "How do the devices", "Does it fit")
EXECUTION = Execution.EAGER  # of the prediction: what the trace shows


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WholeReport(Answer):
    """One page with a chapter per question. `exports` is None where nothing was exported."""

    model: str
    cost: CostAnswer
    device: Device | None
    cluster: Cluster | None = None  # of these devices, where several were named
    exports: ExportAnswer | None
    attention: AttentionAnswer | None = None  # None: a phase stopped half-way, or there is no attention
    sweep: SweepAnswer | None = None  # None: not asked for
    ranks: RanksAnswer | None = None  # None: the model runs on one device, or a phase stopped half-way
    devices: PredictionsAnswer | None = None  # side by side, where several were named

    @property
    def answer(self) -> tuple[str, ...]:
        """The lines of the prediction where there is a device; of the costs otherwise."""
        hardware, graphs, memory = self.cluster or self.device, self.cost.graphs, self.cost.memory
        if hardware is None or memory is None or self.cost.stopped:
            return self.cost.answer
        rates, device = _rates(hardware), device_of(hardware)
        times = [predict(graph, rates) for graph in graphs]
        plan = plan_in(graphs[0].deployment)
        return prediction_lines(
            graphs,
            times,
            speed_of(graphs, times, devices=1 if plan is None else plan.ranks),
            memory,
            device,
            machine=hardware_id(hardware) or device.name,
            how=execution_text(EXECUTION),
            rates=rates.name,
            shortage=shortage_on(graphs, memory, device),
        )

    def report(self) -> Report:
        """The answers at a glance, then the chapters."""
        graphs, answered = self.cost.graphs, tuple(self._chapters())
        return Report(
            title=self.model,
            answer=self.answer,
            tables=(glance_table(answered),),
            notes=(
                *([workload_note(graphs), *run_notes(graphs)] if graphs else []),
                Note("One page, made from the model's own code: no weights were read and nothing was timed."),
            ),
            chapters=tuple(chapter for chapter, _ in answered),
        )

    def summary(self) -> Report:
        """The same for a terminal: how fast it is and whether it fits before what runs."""
        report = self.report()
        first = [chapter for chapter in report.chapters if chapter.title.startswith(_FIRST)]
        return replace(report, chapters=(*first, *(one for one in report.chapters if one not in first)))

    def _chapters(self) -> Iterator[tuple[Report, str]]:
        """Every chapter that was asked for, with its answer in one line, which may be that it is not known."""
        runs, *others = _traced_chapters(self.cost, self.cluster or self.device)
        yield runs
        yield replace(self.cost.summary(), title="What does it cost?"), what_it_costs(self.cost.stages)
        yield from others
        if self.ranks is not None:
            yield replace(self.ranks.report(), title="What does each rank hold and run?"), what_ranks_hold(self.ranks)
        if self.devices is not None:
            beside = replace(self.devices.report(), title="How do the devices compare?", answer=())
            yield beside, " ".join(self.devices.answer[1:2])
        if self.attention is not None:
            yield self._attention(self.attention), other_attention(self.attention.cases)
        if self.sweep is not None:
            yield replace(self.sweep.report(), title="How does it change with batch and context?"), self.sweep.headline
        if self.exports is not None:
            yield replace(self.exports.report(), title="What exports?"), what_exports(self.exports.parts)

    def _attention(self, answer: AttentionAnswer) -> Report:
        """The chapter; what ran stands on top of the page."""
        chapter, on_top = answer.report(), workload_note(self.cost.graphs)
        notes = tuple(note for note in chapter.notes if note != on_top)
        return replace(chapter, title="What if the attention ran another way?", notes=notes)


def whole_report(
    trace: Trace,
    *,
    device: str | Hardware | None = None,
    devices_file: Path | None = None,
    exports: bool = False,
    sweep: bool = False,
) -> WholeReport:
    """Ask a trace everything. Where its model can be run again, every source but the export is asked about costs.

    Of several devices, `l4,h100-sxm` or `all`, the first is the one of the chapters; a further one compares them.
    """
    from llm_perf_opt.api.sweep import default_sweep

    several = find_devices(device, devices_file) if isinstance(device, str) and is_several(device) else ()
    found = several[0] if several else find_report_device(device, devices_file)
    if found is not None:
        require_room(trace.graphs, found)
    # Exporting is asked for by its own word, and one rank of several is counted by its trace alone.
    sources = None if trace.origin is None or trace.plan is not None else QUICK_SOURCES
    cost = trace.cost(sources, other_attention=True)
    return WholeReport(
        model=cost.model,
        cost=cost,
        device=None if found is None else device_of(found),
        cluster=None if found is None else cluster_of(found),
        exports=trace.export() if exports else None,
        attention=_attention(trace, found),
        sweep=default_sweep(trace, found) if sweep else None,
        ranks=None if any(graph.stopped_in is not None for graph in trace.graphs) else trace.per_rank(found),
        devices=trace.predict_each(several, rates=DATA_SHEET) if several else None,
    )


def _attention(trace: Trace, device: Hardware | None) -> AttentionAnswer | None:
    if not trace.graphs or any(graph.stopped_in is not None or graph.ops is None for graph in trace.graphs):
        return None
    answer = trace.what_if(device=device)
    return answer if answer.cases else None


def find_report_device(device: str | Hardware | None, devices_file: Path | None) -> Hardware | None:
    """The device or cluster to predict for; a wrong one is refused before any work."""
    if isinstance(device, str):
        return find_hardware(device, devices_file)
    if device is None and devices_file is not None:
        raise UsageError(
            "--devices needs --device.",
            why="it is the file in which a device is looked up, and none was named",
            fix="add --device ID, or leave --devices out",
        )
    return device


def _rates(hardware: Hardware) -> DataSheetRates:
    return DataSheetRates(device_of(hardware), EXECUTION, cluster=cluster_of(hardware))


def _traced_chapters(run: CostAnswer, hardware: Hardware | None) -> Iterator[tuple[Report, str]]:
    """The chapters that are read from the trace; a phase that was not traced to its end is named in each of them."""
    graphs, stopped = run.graphs, run.stopped
    device = None if hardware is None else device_of(hardware)
    rates = None if hardware is None else _rates(hardware)
    how_fast_title = "" if rates is None else f"How fast could it be on {rates.title}?"
    if run.memory is None:
        reason = "; ".join(dict.fromkeys(stopped.values()))
        for title in ("What runs?", "Does it fit?", *([how_fast_title] if device else [])):
            yield _with_stopped(Report(title=title), stopped), unknown_because(reason)
        return
    yield _with_stopped(_what_runs(graphs), stopped), what_runs(run, graphs, stopped)
    found = None if device is None else traced_fit(graphs, device)
    fit = with_serving_fit(memory_report(run.memory, run.attention_cases, device), found)
    serves = does_it_serve(found)
    answer = does_it_fit(run.memory, device, stopped)
    yield _with_stopped(fit, stopped), answer if serves is None else f"{answer}; {serves}"
    if (exchanged := collectives_table(graphs)) is not None:
        notes = tuple(deployment_notes(graphs))
        yield Report(title="What do the ranks exchange?", tables=(exchanged,), notes=notes), what_is_exchanged(graphs)
    if rates is not None:
        times = [predict(graph, rates) for graph in graphs]
        fast = replace(prediction_report(graphs, rates, times), title=how_fast_title)
        yield _with_stopped(fast, stopped), how_fast(graphs, times, stopped)


def _with_stopped(chapter: Report, stopped: Mapping[str, str]) -> Report:
    warnings = (Note(f"{phase} is not known: {reason}", Level.WARNING) for phase, reason in stopped.items())
    return replace(chapter, notes=(*warnings, *chapter.notes))


def _what_runs(graphs: Sequence[CallGraph]) -> Report:
    phases = tuple(Report(title=graph.phase, graph=grouped(graph)) for graph in graphs if graph.calls is not None)
    stages = with_call_checks(stage_report(graphs), call_checks(graphs))
    on_top = (workload_note(graphs), *run_notes(graphs))
    notes = (*(note for note in stages.notes if note not in on_top), *_rest_note(graphs))
    return replace(stages, title="What runs?", notes=notes, chapters=phases)


def _rest_note(graphs: Sequence[CallGraph]) -> tuple[Note, ...]:
    """What a stage means that has the name of its phase, where the phase has other stages too."""
    mixed = [graph.phase for graph in graphs if graph.stages]
    if not mixed:
        return ()
    return (Note(f"The stage {mixed[0]} is what runs in that phase outside all its other stages."),)

"""Everything that needs no weights in one report: what it costs, how fast it could be, does it fit, what runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.cost import QUICK_SOURCES, cost_of_run
from llm_perf_opt.api.cost_answer import CostAnswer
from llm_perf_opt.api.export import ExportAnswer, export_parts
from llm_perf_opt.api.graph import grouped
from llm_perf_opt.api.per_rank import RanksAnswer, per_rank
from llm_perf_opt.api.prediction import PredictionAnswer, prediction_answer
from llm_perf_opt.api.predictions import find_devices, is_several
from llm_perf_opt.api.report_answers import (
    does_it_fit,
    does_it_serve,
    glance_table,
    how_fast,
    other_attention,
    unknown_because,
    what_exports,
    what_is_exchanged,
    what_it_costs,
    what_ranks_hold,
    what_runs,
)
from llm_perf_opt.api.report_deployment import deployment_table
from llm_perf_opt.api.report_speed import machine_table, speed_chapter
from llm_perf_opt.api.what_if import AttentionAnswer, attention_answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import shared_work
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import (
    Cluster,
    Hardware,
    cluster_of,
    device_of,
    find_hardware,
    hardware_id,
    require_room,
)
from llm_perf_opt.core.report import Level, Note, Report
from llm_perf_opt.costs.collectives import collectives_table
from llm_perf_opt.costs.memory.memory_report import memory_report
from llm_perf_opt.costs.run_description import deployment_notes, run_notes, workload_note
from llm_perf_opt.costs.stage_costs import stage_report
from llm_perf_opt.graphs.call_checks import call_checks, with_call_checks
from llm_perf_opt.serving.fit import traced_fit, with_serving_fit
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.rate_sources import refuse_rates
from llm_perf_opt.tracing.traced_run import TracedRun

if TYPE_CHECKING:
    from llm_perf_opt.api.sweep_answer import SweepAnswer

_FIRST = ("How fast", "Does it fit")
Devices = str | Hardware | Sequence[str | Hardware]  # one, or several to compare; a text may name several with commas


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WholeReport(Answer):
    """One page with a chapter per question. `exports` is None where nothing was exported."""

    model: str
    cost: CostAnswer
    device: Device | None  # the first, which memory is compared with
    cluster: Cluster | None = None  # of these devices, where several were named
    predictions: tuple[PredictionAnswer, ...] = ()  # one for each device; none: no device, or nothing ran to its end
    exports: ExportAnswer | None
    attention: AttentionAnswer | None = None  # None: a phase stopped half-way, or there is no attention
    sweep: SweepAnswer | None = None  # None: not asked for
    ranks: RanksAnswer | None = None  # None: the model runs on one device, or a phase stopped half-way

    @property
    def answer(self) -> tuple[str, ...]:
        """The lines of the first prediction where there is one; of the costs otherwise."""
        return self.predictions[0].answer if self.predictions and not self.cost.stopped else self.cost.answer

    def report(self) -> Report:
        """The answers at a glance and what they hold for, then the chapters: costs and speed before pictures."""
        graphs, answered = self.cost.graphs, tuple(self._chapters())
        several = (machine_table(graphs, self.predictions),) if len(self.predictions) > 1 else ()
        return Report(
            title=self.model,
            answer=self.answer,
            tables=(glance_table(answered), *several, deployment_table(graphs, self.predictions)),
            notes=(
                *([workload_note(graphs), *run_notes(graphs)] if graphs else []),
                Note("One page, made from the model's own code: no weights were read and nothing was timed."),
            ),
            chapters=tuple(chapter for chapter, _ in answered),
        )

    def summary(self) -> Report:
        """The same for a terminal: how fast it is and whether it fits before what it costs."""
        report = self.report()
        first = [chapter for chapter in report.chapters if chapter.title.startswith(_FIRST)]
        return replace(report, chapters=(*first, *(one for one in report.chapters if one not in first)))

    def _chapters(self) -> Iterator[tuple[Report, str]]:
        """Every chapter that was asked for, with its answer in one line, which may be that it is not known."""
        run = self.cost
        yield replace(run.summary(), title="What does it cost?"), what_it_costs(run.stages)
        yield from self._speed()
        yield self._fit()
        if (exchanged := collectives_table(run.graphs)) is not None:
            notes = tuple(deployment_notes(run.graphs))
            title = "What do the ranks exchange?"
            yield Report(title=title, tables=(exchanged,), notes=notes), what_is_exchanged(run.graphs)
        if self.ranks is not None:
            yield replace(self.ranks.report(), title="What does each rank hold and run?"), what_ranks_hold(self.ranks)
        if self.attention is not None:
            yield self._attention(self.attention), other_attention(self.attention.cases)
        if self.sweep is not None:
            yield replace(self.sweep.report(), title="How does it change with batch and context?"), self.sweep.headline
        if self.exports is not None:
            yield replace(self.exports.report(), title="What exports?"), what_exports(self.exports.parts)
        if run.memory is None:
            yield self._not_known("What runs?")
        else:
            yield _with_stopped(_what_runs(run.graphs), run.stopped), what_runs(run, run.graphs, run.stopped)

    def _speed(self) -> Iterator[tuple[Report, str]]:
        """Nothing where no device was named."""
        run = self.cost
        if self.predictions:
            chapter = _with_stopped(speed_chapter(run.graphs, self.predictions), run.stopped)
            yield chapter, how_fast(run.graphs, self.predictions, run.stopped)
        elif self.device is not None:
            yield self._not_known(f"How fast could it be on {self.device.name}?")

    def _fit(self) -> tuple[Report, str]:
        run, device = self.cost, self.device
        if run.memory is None:
            return self._not_known("Does it fit?")
        found = None if device is None else traced_fit(run.graphs, device)
        fit = with_serving_fit(memory_report(run.memory, run.attention_cases, device), found)
        serves = does_it_serve(found)
        answer = does_it_fit(run.memory, device, run.stopped)
        return _with_stopped(fit, run.stopped), answer if serves is None else f"{answer}; {serves}"

    def _not_known(self, title: str) -> tuple[Report, str]:
        stopped = self.cost.stopped
        return _with_stopped(Report(title=title), stopped), unknown_because("; ".join(dict.fromkeys(stopped.values())))

    def _attention(self, answer: AttentionAnswer) -> Report:
        """The chapter; what ran stands on top of the page."""
        chapter, on_top = answer.report(), workload_note(self.cost.graphs)
        notes = tuple(note for note in chapter.notes if note != on_top)
        return replace(chapter, title="What if the attention ran another way?", notes=notes)


def whole_report(
    run: TracedRun,
    *,
    device: Devices | None = None,
    devices_file: Path | None = None,
    execution: str = Execution.EAGER,
    rates: str | None = None,
    engine: str | None = None,
    exports: bool = False,
    sweep: bool = False,
) -> WholeReport:
    """Ask a trace everything. Where its model can be run again, every source but the export is asked about costs."""
    from llm_perf_opt.api.sweep import default_sweep

    refuse_rates(execution, rates, engine)
    found = find_report_devices(device, devices_file)
    for hardware in found:
        require_room(run.graphs, hardware)
    first = found[0] if found else None
    # Exporting is asked for by its own word, and one rank of several is counted by its trace alone.
    sources = None if run.origin is None or run.plan is not None else QUICK_SOURCES
    cost = cost_of_run(run, sources, other_attention=True)
    times = found if cost.memory is not None else ()
    with shared_work():
        predictions = tuple(
            prediction_answer(cost.graphs, hardware, execution, kernels=rates, engine=engine) for hardware in times
        )
    return WholeReport(
        model=cost.model,
        cost=cost,
        device=None if first is None else device_of(first),
        cluster=None if first is None else cluster_of(first),
        predictions=predictions,
        exports=export_parts(run._origin()) if exports else None,
        attention=_attention(run, first),
        sweep=default_sweep(run, first) if sweep else None,
        ranks=None if any(graph.stopped_in is not None for graph in run.graphs) else per_rank(run, first),
    )


def _attention(run: TracedRun, device: Hardware | None) -> AttentionAnswer | None:
    if not run.graphs or any(graph.stopped_in is not None or graph.ops is None for graph in run.graphs):
        return None
    answer = attention_answer(run, device)
    return answer if answer.cases else None


def find_report_devices(device: Devices | None, devices_file: Path | None) -> tuple[Hardware, ...]:
    """The devices or clusters to predict for; a wrong one is refused before any work."""
    if device is None and devices_file is not None:
        raise UsageError(
            "--devices needs --device.",
            why="it is the file in which a device is looked up, and none was named",
            fix="add --device ID, or leave --devices out",
        )
    if device is None:
        return ()
    if isinstance(device, str):
        device = find_devices(device, devices_file) if is_several(device) else [device]
    named = [device] if isinstance(device, Device | Cluster) else device
    found = tuple({hardware_id(one): one for one in (find_hardware(one, devices_file) for one in named)}.values())
    if len({device_of(one).torch_device for one in found}) > 1:
        raise UsageError(
            "Processors and GPUs cannot be compared in one report.",
            why="the model's code may take another way on each of them, and one trace shows one way",
            fix="make a report for each",
        )
    return found


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

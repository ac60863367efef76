"""Everything that needs no weights in one report: what runs, what it costs, does it fit, how fast, what exports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_perf_opt.analyses.memory import memory_report
from llm_perf_opt.analyses.prediction import Execution, prediction_report
from llm_perf_opt.analyses.serving_fit import with_serving_fit
from llm_perf_opt.analyses.stage_report import stage_report
from llm_perf_opt.analyses.workload_text import run_notes, workload_note
from llm_perf_opt.callgraph import CallGraph
from llm_perf_opt.document import Level, Note, Report
from llm_perf_opt.errors import UsageError
from llm_perf_opt.hardware import Device, find_device
from llm_perf_opt.pipeline.adapters import find_adapter
from llm_perf_opt.pipeline.costing import QUICK_SOURCES, CostRequest, CostRun, cost_of, cost_of_graphs
from llm_perf_opt.pipeline.deploying import redeployed
from llm_perf_opt.pipeline.drawing import GraphRequest, view_of
from llm_perf_opt.pipeline.exporting import ExportRequest, export_parts
from llm_perf_opt.pipeline.saved_wishes import refuse_wishes
from llm_perf_opt.pipeline.short_answers import (
    does_it_fit,
    does_it_serve,
    glance_table,
    how_fast,
    unknown_because,
    what_exports,
    what_it_costs,
    what_runs,
)
from llm_perf_opt.pipeline.trace_files import is_trace, read_traces
from llm_perf_opt.plugins import Deployment, ModelAdapter, Workload

EXECUTION = Execution.EAGER  # of the prediction: what the trace shows


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRequest:
    """Everything the one report can be asked for. `model` may be a trace made earlier: then nothing is traced."""

    model: str
    workload: Workload = field(default_factory=Workload)
    deployment: Deployment = field(default_factory=Deployment)
    device: str | None = None  # None: no prediction
    devices_file: Path | None = None
    with_exports: bool = False
    routing: str | None = None
    trust_remote_code: bool = False


def run_whole_report(request: WholeRequest) -> Report:
    """The report with a chapter per question; a wrong device is refused before anything is traced."""
    device = _device(request)
    adapter = _adapter(request)
    run = _cost(request, adapter)
    answered = tuple(_answered_chapters(request, adapter, run, device))
    return Report(
        title=run.static.model,
        tables=(glance_table(answered),),
        notes=(
            *([workload_note(run.graphs), *run_notes(run.graphs)] if run.graphs else []),
            Note("One page, made from the model's own code: no weights were read and nothing was timed."),
        ),
        chapters=tuple(chapter for chapter, _ in answered),
    )


def _device(request: WholeRequest) -> Device | None:
    if request.device is not None:
        return find_device(request.device, request.devices_file)
    if request.devices_file is not None:
        raise UsageError(
            "--devices needs --device.",
            why="it is the file in which a device is looked up, and none was named",
            fix="add --device ID, or leave --devices out",
        )
    return None


def _adapter(request: WholeRequest) -> ModelAdapter | None:
    """None for a trace made earlier, which can be asked for nothing but what it holds."""
    if not is_trace(request.model):
        return find_adapter(request.model, request.trust_remote_code)
    refuse_wishes(request.workload, routing=request.routing, exports=request.with_exports)
    return None


def _cost(request: WholeRequest, adapter: ModelAdapter | None) -> CostRun:
    if adapter is None:
        return cost_of_graphs(redeployed(read_traces([Path(request.model)]), request.deployment))
    wanted = CostRequest(
        model=request.model, workload=request.workload, deployment=request.deployment, routing=request.routing
    )
    return cost_of(adapter, wanted, QUICK_SOURCES)  # exporting is asked for by its own word


def _answered_chapters(
    request: WholeRequest, adapter: ModelAdapter | None, run: CostRun, device: Device | None
) -> Iterator[tuple[Report, str]]:
    """Every chapter that was asked for, with its answer in one line, which may be that it is not known."""
    runs, *others = _traced_chapters(run, device)
    yield runs
    costs = replace(run.summary, title="What does it cost?", chapters=run.stage_chapters)
    yield costs, what_it_costs(run.static)
    yield from others
    if request.with_exports and adapter is not None:
        exported = export_parts(adapter, ExportRequest(model=request.model, workload=request.workload))
        yield replace(exported.report, title="What exports?"), what_exports(exported.parts)


def _traced_chapters(run: CostRun, device: Device | None) -> Iterator[tuple[Report, str]]:
    """The chapters that are read from the trace; a phase that was not traced to its end is named in each of them."""
    graphs, stopped = run.graphs, run.stopped
    how_fast_title = "" if device is None else f"How fast could it be on {device.name}?"
    if run.memory is None:
        reason = "; ".join(dict.fromkeys(stopped.values()))
        for title in ("What runs?", "Does it fit?", *([how_fast_title] if device else [])):
            yield _with_stopped(Report(title=title), stopped), unknown_because(reason)
        return
    yield _with_stopped(_what_runs(graphs), stopped), what_runs(run.static, graphs, stopped)
    fit = memory_report(run.memory, run.attention_cases, device)
    fit = fit if device is None else with_serving_fit(fit, graphs, device)
    serves = None if device is None else does_it_serve(graphs, device)
    answer = does_it_fit(run.memory, device, stopped)
    yield _with_stopped(fit, stopped), answer if serves is None else f"{answer}; {serves}"
    if device is not None:
        fast = replace(prediction_report(graphs, device, EXECUTION), title=how_fast_title)
        yield _with_stopped(fast, stopped), how_fast(graphs, device, EXECUTION, stopped)


def _with_stopped(chapter: Report, stopped: Mapping[str, str]) -> Report:
    told = (Note(f"{phase} is not known: {reason}", Level.WARNING) for phase, reason in stopped.items())
    return replace(chapter, notes=(*told, *chapter.notes))


def _what_runs(graphs: Sequence[CallGraph]) -> Report:
    phases = tuple(
        Report(title=graph.phase, graph=view_of(graph, GraphRequest())) for graph in graphs if graph.calls is not None
    )
    stages, on_top = stage_report(graphs), (workload_note(graphs), *run_notes(graphs))
    notes = (*(note for note in stages.notes if note not in on_top), *_rest_note(graphs))
    return replace(stages, title="What runs?", notes=notes, chapters=phases)


def _rest_note(graphs: Sequence[CallGraph]) -> tuple[Note, ...]:
    """What a stage means that has the name of its phase, where the phase has other stages too."""
    mixed = [graph.phase for graph in graphs if graph.stages]
    if not mixed:
        return ()
    return (Note(f"The stage {mixed[0]} is what runs in that phase outside all its other stages."),)

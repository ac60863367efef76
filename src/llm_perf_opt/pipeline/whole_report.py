"""Everything that needs no weights in one report: what runs, what it costs, does it fit, how fast, what exports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_perf_opt.analyses.memory import memory_report
from llm_perf_opt.analyses.prediction import Execution, prediction_report
from llm_perf_opt.analyses.stage_report import stage_report
from llm_perf_opt.callgraph import CallGraph
from llm_perf_opt.document import Note, Report
from llm_perf_opt.hardware import Device, find_device
from llm_perf_opt.pipeline.adapters import find_adapter
from llm_perf_opt.pipeline.costing import SOURCES, CostRequest, CostRun, cost_of, cost_of_graphs
from llm_perf_opt.pipeline.drawing import GraphRequest, view_of
from llm_perf_opt.pipeline.exporting import ExportRequest, export_parts
from llm_perf_opt.pipeline.short_answers import (
    does_it_fit,
    glance_table,
    how_fast,
    what_exports,
    what_it_costs,
    what_runs,
)
from llm_perf_opt.pipeline.trace_files import is_trace, read_traces
from llm_perf_opt.plugins import ModelAdapter, Workload

EXECUTION = Execution.EAGER  # of the prediction: what the trace shows
QUICK_SOURCES = tuple(name for name in SOURCES if name != "exported")  # exporting is asked for by its own word


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRequest:
    """Everything the one report can be asked for. `model` may be a trace made earlier: then nothing is traced."""

    model: str
    workload: Workload = field(default_factory=Workload)
    device: str | None = None  # None: no prediction
    devices_file: Path | None = None
    with_exports: bool = False
    routing: str | None = None
    trust_remote_code: bool = False


def run_whole_report(request: WholeRequest) -> Report:
    """The report with a chapter per question; a wrong device is refused before anything is traced."""
    device = None if request.device is None else find_device(request.device, request.devices_file)
    adapter = None if is_trace(request.model) else find_adapter(request.model, request.trust_remote_code)
    run = _cost(request, adapter)
    answered = tuple(_answered_chapters(request, adapter, run, device))
    return Report(
        title=run.static.model,
        tables=(glance_table(answered),),
        notes=(Note("One page, made from the model's own code: no weights were read and nothing was timed."),),
        chapters=tuple(chapter for chapter, _ in answered),
    )


def _cost(request: WholeRequest, adapter: ModelAdapter | None) -> CostRun:
    if adapter is None:
        return cost_of_graphs(read_traces([Path(request.model)]))
    wanted = CostRequest(model=request.model, workload=request.workload, routing=request.routing)
    return cost_of(adapter, wanted, QUICK_SOURCES)


def _answered_chapters(
    request: WholeRequest, adapter: ModelAdapter | None, run: CostRun, device: Device | None
) -> Iterator[tuple[Report, str]]:
    """Every chapter with its answer in one line; without a trace those that need none."""
    graphs, static = run.graphs, run.static
    if graphs:
        yield _what_runs(graphs), what_runs(static, graphs)
    yield replace(run.summary, title="What does it cost?", chapters=run.stage_chapters), what_it_costs(static)
    if run.memory is not None:
        yield memory_report(run.memory, run.attention_cases, device), does_it_fit(run.memory, device)
    if device is not None and graphs:
        title = f"How fast could it be on {device.name}?"
        yield replace(prediction_report(graphs, device, EXECUTION), title=title), how_fast(graphs, device, EXECUTION)
    if request.with_exports and adapter is not None:
        exported = export_parts(adapter, ExportRequest(model=request.model, workload=request.workload))
        yield replace(exported.report, title="What exports?"), what_exports(exported.parts)


def _what_runs(graphs: Sequence[CallGraph]) -> Report:
    phases = tuple(
        Report(title=graph.phase, graph=view_of(graph, GraphRequest())) for graph in graphs if graph.calls is not None
    )
    stages = stage_report(graphs)
    return replace(stages, title="What runs?", notes=(*stages.notes, *_rest_note(graphs)), chapters=phases)


def _rest_note(graphs: Sequence[CallGraph]) -> tuple[Note, ...]:
    """What a stage means that has the name of its phase, where the phase has other stages too."""
    mixed = [graph.phase for graph in graphs if graph.stages]
    if not mixed:
        return ()
    return (Note(f"The stage {mixed[0]} is what runs in that phase outside all its other stages."),)

"""What a model costs: the count of a trace and independent counters side by side, why they differ, and its files."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from llm_perf_opt import __version__
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.output_files import make_folder, require_free, sealed_text, write_together
from llm_perf_opt.core.parallel_plan import ParallelPlan, plan_in
from llm_perf_opt.core.plugins import MODELS, REPORTERS, SOURCES
from llm_perf_opt.core.protocols import CountsWholeRuns, KnowsClosedForms, ReadsTraces, Source
from llm_perf_opt.core.reading import filled
from llm_perf_opt.core.report import Report, counted, largest_text, listed, stage_names
from llm_perf_opt.core.run_lock import OneRun, RunWatch
from llm_perf_opt.core.source_figures import Method, SourceFigures
from llm_perf_opt.core.target import Json
from llm_perf_opt.core.units import format_count, format_flops, format_parameters, format_seconds
from llm_perf_opt.costs.collectives import with_collectives
from llm_perf_opt.costs.counted import SOURCE as COUNTED
from llm_perf_opt.costs.counted import counted as counted_graph
from llm_perf_opt.costs.counted import counted_run
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.costs.memory.kv_cache import STEPS
from llm_perf_opt.costs.necessary.stage_needs import necessary_by_stage
from llm_perf_opt.costs.reconcile import FigureDifference, FlopsDifference, Ledger
from llm_perf_opt.costs.run_description import deployment_notes, run_notes
from llm_perf_opt.costs.static_figures import StageCompute, StaticCompute, static_compute
from llm_perf_opt.costs.static_file import static_compute_json
from llm_perf_opt.costs.static_report import incomplete_sources, sources_with_figures, static_report
from llm_perf_opt.tracing.origin import Origin
from llm_perf_opt.tracing.trace_files import workload_of
from llm_perf_opt.tracing.traced_run import TracedRun, trace_origin

if TYPE_CHECKING:
    from llm_perf_opt.costs.memory.memory_report import AttentionCase
    from llm_perf_opt.costs.memory.need import RunMemory
    from llm_perf_opt.costs.necessary.stage_needs import StageNeeds

log = logging.getLogger(__name__)

ESTIMATE = "vllm-estimate"  # of vLLM's own code alone
ALL_SOURCES = (COUNTED, *(name for name in SOURCES.names() if name != ESTIMATE))
QUICK_SOURCES = tuple(name for name in ALL_SOURCES if name != "exported")  # which takes longer than all the others
SOURCES_OF_A_TRACE = (COUNTED, "closed-form")  # those that run nothing
Sources = Sequence[str] | Literal["all"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CostAnswer(Answer):
    """What every source says of each stage. A source that fails is a reason in `ledger.missing`, not the end.

    `memory` is None where nothing was traced. `attention_cases` compare the memory of eager and of fused attention, if
    both were traced. `stopped` holds the phases in which the model raised.
    """

    model: str
    workload: Mapping[str, Json]
    deployment: Mapping[str, Json]
    stages: tuple[StageCompute, ...]
    ledger: Ledger  # pairs of sources: differences, their causes, and what is unexplained
    parameters: int | None
    stopped: Mapping[str, str]  # phase -> reason
    memory: RunMemory | None
    attention_cases: tuple[AttentionCase, ...]
    _static: StaticCompute
    _graphs: tuple[CallGraph, ...]

    @property
    def flops(self) -> int | None:
        """All stages together; one unknown stage makes the sum unknown."""
        return self._static.flops

    @property
    def flops_at_least(self) -> int | None:
        """The same, where a stage is unknown with the most that one source counted of it."""
        return self._static.flops_at_least

    @property
    def active_parameters(self) -> int | None:
        """Elements of weights that one decode step multiplies with, of experts those that its whole batch touches.

        None without a decode.
        """
        return self._static.active_parameters

    @property
    def active_per_token(self) -> int | None:
        """Elements of weights that one token is multiplied with, whatever the batch; None where no trace tells."""
        steps = [necessary_by_stage(graph) for graph in self._graphs if graph.phase in STEPS and graph.ops]
        return known_sum(work.active_matrix_parameters for step in steps for work in step.values()) if steps else None

    @property
    def bytes_moved(self) -> int | None:
        """By the ops of the trace; None where nothing was traced."""
        return known_sum(None if stage.cost is None else stage.cost.bytes_moved for stage in self.stages)

    @property
    def necessary_flops(self) -> int | None:
        """What any implementation must compute; None where the trace does not tell."""
        return known_sum(None if stage.necessary is None else stage.necessary.flops for stage in self._needs)

    @property
    def unpriced_ops(self) -> int | None:
        """Ops that are in no total; None where nothing was traced."""
        return self._static.unpriced_ops

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that gave a figure or a reason, in the order in which they were asked."""
        named = [source.source for stage in self.stages for source in stage.sources]
        return tuple(dict.fromkeys((*named, *(source for source, *_ in self.missing))))

    @property
    def differences(self) -> tuple[FlopsDifference, ...]:
        """Stages of which two sources count other FLOPs, with the causes."""
        return self.ledger.differences

    @property
    def unexplained(self) -> tuple[FlopsDifference | FigureDifference, ...]:
        """Whatever two sources differ in without a known cause."""
        return self.ledger.unexplained

    @property
    def missing(self) -> tuple[tuple[str, str, str, str], ...]:
        """Source, phase, stage and reason, where a source says nothing."""
        return self.ledger.missing

    @property
    def incomplete(self) -> tuple[SourceFigures, ...]:
        """Figures of stages that are no totals, since their source left something out or added something."""
        return tuple(source for stage in self.stages for source in incomplete_sources(stage))

    @property
    def whole_runs(self) -> tuple[SourceFigures, ...]:
        """What fvcore, if it was asked, says of each phase as one piece, by module and operator; part of no sum."""
        return self._static.whole_runs

    @property
    def static(self) -> StaticCompute:
        """The record that `static_compute.json` is written from."""
        return self._static

    @property
    def graphs(self) -> tuple[CallGraph, ...]:
        """The phases that were counted, those apart in which the model raised."""
        return self._graphs

    @property
    def active_texts(self) -> tuple[str, ...]:
        """`574 M active per token`, and where its batch touches more experts what a decode step multiplies with."""
        token, step = self.active_per_token, self.active_parameters
        texts = [] if token is None else [f"{format_parameters(token)} active per token"]
        if step is not None and step != token:
            texts.append(f"{format_parameters(step)} used by a decode step of batch {self.workload.get('batch', '?')}")
        return tuple(texts)

    @property
    def answer(self) -> tuple[str, ...]:
        """What it costs as written and at least, where most of it is, and whether the sources agree."""
        flops, needed = self.flops, self.necessary_flops
        written = "FLOPs not known" if flops is None else f"{format_flops(flops)} as written"
        least = "" if needed is None else f", {format_flops(needed)} necessary"
        held = "" if self.parameters is None else f"; {format_parameters(self.parameters)} parameters"
        held += "".join(f", {part}" for part in self.active_texts)
        flops_of = (stage.flops for stage in self.stages)
        most = largest_text(dict(zip(stage_names(self.stages), flops_of, strict=True)))
        differing, unknown = len(self.differences), len(self.unexplained)
        said = sources_with_figures(self._static)
        agree = f"{listed(said, 6)} agree" if len(said) > 1 else f"One source: {listed(said)}"
        if differing or unknown:
            causes = f"{format_count(unknown)} unexplained" if unknown else "each with its cause"
            agree = f"{counted(max(differing, unknown), 'difference')} between sources, {causes}"
        silent = f"; {counted(len(self.missing), 'figure')} missing" if self.missing else ""
        return (
            f"{self.model}: {written}{least}{held}.",
            *([f"Most FLOPs: {most}."] if most else []),
            f"{agree}{silent}.",
        )

    def report(self) -> Report:
        """Totals and stages side by side, a chapter per stage, and memory."""
        summary = self.summary()
        memory: tuple[Report, ...] = ()
        if self.memory is not None:
            from llm_perf_opt.costs.memory.memory_report import memory_report

            memory = (memory_report(self.memory, self.attention_cases),)
        notes = (*run_notes(self._graphs), *summary.notes)
        report = replace(with_collectives(summary, self._graphs), notes=notes, answer=self.answer)
        return replace(report, chapters=(*memory, *summary.chapters))

    def summary(self) -> Report:
        """The same without memory."""
        report = static_report(self._static, self._graphs)
        if not self._graphs:
            return report
        from llm_perf_opt.costs.necessary.stage_needs import with_necessary

        notes = (*deployment_notes(self._graphs), *report.notes)
        return with_necessary(replace(report, notes=notes), self._needs, after="Totals")

    @cached_property
    def _needs(self) -> tuple[StageNeeds, ...]:
        from llm_perf_opt.costs.necessary.stage_needs import stage_needs

        return stage_needs(self._graphs)

    def document(self, analysis: Mapping[str, Json] | None = None) -> dict[str, Any]:
        """What `static_compute.schema.json` describes; `analysis` is the configuration of the analyzer that asked."""
        memory: dict[str, Any] | None = None
        if self.memory is not None:
            from llm_perf_opt.costs.memory.memory_report import memory_json

            memory = memory_json(self.memory, self.attention_cases)
        return static_compute_json(
            self._static, tool_version=__version__, memory=memory, graphs=self._graphs, analysis=analysis
        )

    def to_json(self, analysis: Mapping[str, Json] | None = None) -> str:
        """The document as the file has it, sealed."""
        document = self.document(analysis)
        return sealed_text(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))

    def fvcore_table(self) -> str:
        """The tables that fvcore itself prints, of whole phases, then of stages; empty where it gave none.

        Its `#flops` are multiply-adds.
        """
        runs = [(f"{run.phase}, the whole phase", run) for run in self.whole_runs]
        stages = [(f"{source.stage} ({source.phase})", source) for stage in self.stages for source in stage.sources]
        return "\n\n".join(
            f"{heading}\n{source.own_table}"
            for heading, source in (*runs, *stages)
            if source.source == "fvcore" and source.own_table
        )

    def save_files(self, folder: str | Path, *, force: bool = False) -> tuple[Path, ...]:
        """`static_compute.json` after its schema, the report in every format, and fvcore's table if it was asked."""
        folder = Path(folder)
        reserve_cost_files(folder, force=force)
        report = self.report()
        texts = {JSON_FILE: self.to_json()}
        texts |= {STEM + suffix: REPORTERS.get(name)().render(report) for name, suffix in _FORMATS.items()}
        if table := self.fvcore_table():
            texts[FVCORE_FILE] = table
        write_together({folder / name: [text.encode()] for name, text in texts.items()})
        return tuple(folder / name for name in texts)


STEM = "static_compute"
JSON_FILE = f"{STEM}.json"
FVCORE_FILE = "fvcore_table.txt"
_FORMATS = {"markdown": ".md", "csv": ".csv", "html": ".html"}


def reserve_cost_files(folder: Path, *, force: bool) -> None:
    """Refuse, before the work begins, to overwrite a file of `save_files`; make the folder."""
    names = (JSON_FILE, FVCORE_FILE, *(STEM + suffix for suffix in _FORMATS.values()))
    require_free((folder / name for name in names), force=force)
    make_folder(folder)


def cost_answer(
    static: StaticCompute,
    graphs: tuple[CallGraph, ...] = (),
    memory: RunMemory | None = None,
    cases: tuple[AttentionCase, ...] = (),
) -> CostAnswer:
    """The answer that these figures give."""
    traced = {graph.phase for graph in graphs}
    silent = [entry for entry in static.ledger.missing if entry[0] == COUNTED]
    return filled(
        CostAnswer,
        static,
        stopped={phase: reason for _, phase, _, reason in silent if phase not in traced},
        memory=memory,
        attention_cases=cases,
        _static=static,
        _graphs=graphs,
    )


def cost_of(origin: Origin, sources: Sources = "all") -> CostAnswer:
    """The same for a model and workload that were found before."""
    names = check_sources(_sources_of_rank(sources, origin.plan))
    if COUNTED not in names:
        return ask_sources((), origin, names)
    return cost_of_run(trace_origin(origin, keep_partial=True), names, other_attention=True)


def cost_of_run(run: TracedRun, sources: Sources | None = None, *, other_attention: bool = False) -> CostAnswer:
    """The same for a run that was traced before."""
    other = run._other_attention if other_attention and run.graphs else ()
    return ask_sources(run.graphs, run.origin, sources, failures=run.failures, other_attention=other)


def check_sources(sources: Sources | None) -> tuple[str, ...]:
    """The names of the sources; a wrong one is refused before any work."""
    if sources is None:
        return SOURCES_OF_A_TRACE
    names = ALL_SOURCES if sources == "all" else tuple(sources)
    for name in names:
        SOURCES.check(name, besides=(COUNTED,))
    return names


def _sources_of_rank(sources: Sources | None, plan: ParallelPlan | None) -> Sources | None:
    """Of one rank the count of the trace alone: the others count the whole model, and are refused where named."""
    if plan is None or not plan.is_spread:
        return sources
    others = [] if sources in (None, "all") else [name for name in sources or () if name != COUNTED]
    if others:
        raise UsageError(
            f"One rank of {plan.describe()} has no figures from {', '.join(others)}.",
            why="these sources count the whole model",
            fix=f"ask {COUNTED} alone, or leave tp, ep, pp and fsdp out",
        )
    return (COUNTED,)


def _is_of_engine(graphs: Sequence[CallGraph]) -> bool:
    return bool(graphs) and graphs[0].deployment.get("code") == "vllm"


def _sources_of_engine(sources: Sources | None) -> tuple[str, ...]:
    """Of an engine's code the count and the engine's own estimate: the others run the model's code."""
    names = (COUNTED, ESTIMATE) if sources in (None, "all") else check_sources(sources)
    others = [name for name in names if name not in (COUNTED, ESTIMATE)]
    if others:
        raise UsageError(
            f"vLLM's code has no figures from {', '.join(others)}.",
            why="these sources run the model's own code",
            fix=f"ask {COUNTED} and {ESTIMATE}, or leave --code out",
        )
    return names


def ask_sources(
    graphs: tuple[CallGraph, ...],
    origin: Origin | None,
    sources: Sources | None = None,
    *,
    failures: Mapping[str, str] | None = None,
    other_attention: Sequence[CallGraph] = (),
) -> CostAnswer:
    """The answer of the sources on a run. Without `origin` its model is found by the name in the trace.

    `failures` says what the model raised in the phases that it did not finish.
    """
    plan = origin.plan if origin is not None else plan_in(graphs[0].deployment)
    names = _sources_of_engine(sources) if _is_of_engine(graphs) else check_sources(_sources_of_rank(sources, plan))
    counted_graphs = graphs if COUNTED in names else ()
    partial = {graph.phase: graph for graph in counted_graphs if graph.stopped_in is not None}
    # Of a phase that stopped, an older file is no figure either.
    finished = tuple(graph for graph in counted_graphs if graph.phase not in partial)
    figures = [figure for graph in partial.values() for figure in _of_partial(graph, failures or {})]
    others = [name for name in names if name != COUNTED]
    figures += _ask_model(origin, others) if origin is not None else _ask_of_trace(graphs, others)
    workload = graphs[0].workload if origin is None or finished else _described(origin)
    model = graphs[0].model if origin is None or graphs else origin.model
    return _answer(model, workload, finished, figures, other_attention)


def _of_partial(graph: CallGraph, failures: Mapping[str, str]) -> tuple[SourceFigures, ...]:
    figures = counted_graph(graph)
    reason = failures.get(graph.phase)
    return figures if reason is None else tuple(replace(figure, failure=reason) for figure in figures)


def _ask_of_trace(graphs: Sequence[CallGraph], names: Sequence[str]) -> list[SourceFigures]:
    model, workload = graphs[0].model, graphs[0].workload
    if names == [ESTIMATE]:
        source = SOURCES.get(ESTIMATE)()
        assert isinstance(source, ReadsTraces)
        return list(source.of_trace(graphs))
    if model not in MODELS.names():
        return [_failed(name, f"no model {model!r} is registered, and a trace holds no code") for name in names]
    routing = workload.get("routing")
    origin = Origin(
        name=model,
        source=MODELS.get(model)(),
        workload=workload_of(graphs[0]),
        routing=None if routing == "replay" else routing,  # by counts in a file that the trace does not name
        torch_device=workload.get("device"),
    )
    return _ask_model(origin, names)


def _ask_model(origin: Origin, names: Sequence[str]) -> list[SourceFigures]:
    figures: list[SourceFigures] = []
    for name in names:
        log.info("Asking %s ...", name)
        started = time.perf_counter()
        try:
            source = _source(name, origin)
            with OneRun(), RunWatch(f"{origin.name}, asking {name}"):
                answers = source.figures(origin.adapter, origin.workload)
                if isinstance(source, CountsWholeRuns):
                    answers += source.whole_runs(origin.adapter, origin.workload)
        except UsageError:  # what no source can be told, such as a routing that does not exist
            raise
        except PerfOptError as error:
            answers = (_failed(name, f"{error.what} {error.why or ''}".strip()),)
        figures += answers
        stages = sum(figure.method is not Method.WHOLE_RUN for figure in answers)
        log.info("  %d stages in %s", stages, format_seconds(time.perf_counter() - started))
    return figures


def _source(name: str, origin: Origin) -> Source:
    """The source; one that runs the model is given the routing, and the device that the code sees."""
    kind = SOURCES.get(name)
    settings = {"routing": origin.routing, "device": origin.torch_device} if kind.runs_model else {}
    make = cast("Callable[..., Source]", kind)
    return make(**{setting: value for setting, value in settings.items() if value is not None})


def _failed(source: str, reason: str) -> SourceFigures:
    return SourceFigures(source=source, phase="all", stage="all", method=Method.ISOLATED, failure=reason)


def _described(origin: Origin) -> Mapping[str, Json]:
    """The workload with the adapter's defaults filled in, where it can tell them without running anything."""
    if isinstance(origin.adapter, KnowsClosedForms):
        return origin.adapter.describe(origin.workload)
    return {name: value for name, value in asdict(origin.workload).items() if value is not None}


def _answer(
    model: str,
    workload: Mapping[str, Json],
    graphs: tuple[CallGraph, ...],
    figures: Sequence[SourceFigures],
    other_attention: Sequence[CallGraph],
) -> CostAnswer:
    if not graphs:
        static = static_compute(model=model, workload=workload, graphs=(), source_figures=figures)
        return cost_answer(static)
    from llm_perf_opt.api.memory import eager_and_fused
    from llm_perf_opt.costs.memory.memory_report import attention_cases
    from llm_perf_opt.costs.memory.need import run_memory

    memory = run_memory(graphs)
    all_figures = (*counted_run(graphs, memory), *figures)
    static = static_compute(model=model, workload=graphs[0].workload, graphs=graphs, source_figures=all_figures)
    cases = attention_cases(*eager_and_fused(graphs, other_attention))
    return cost_answer(static, graphs, memory, tuple(cases))

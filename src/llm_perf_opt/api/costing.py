"""What a model costs from several sources: the trace, the independent counters, the ledger, and the files of it."""

from __future__ import annotations

import inspect
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from llm_perf_opt import __version__
from llm_perf_opt.analyses.cost.counted import SOURCE as COUNTED
from llm_perf_opt.analyses.cost.counted import counted, counted_run
from llm_perf_opt.analyses.cost.static_document import static_compute_document
from llm_perf_opt.analyses.cost.static_figures import StaticCompute, static_compute
from llm_perf_opt.analyses.cost.static_report import static_report
from llm_perf_opt.analyses.run_description import run_notes
from llm_perf_opt.api.trace_files import is_trace, read_traces, refuse_wishes, workload_of
from llm_perf_opt.api.tracing import find_adapter
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import make_folder, require_free, write_result
from llm_perf_opt.core.protocols import (
    MODELS,
    REPORTERS,
    WITNESSES,
    Deployment,
    Json,
    ModelAdapter,
    PartialTrace,
    Witness,
    Workload,
)
from llm_perf_opt.core.report import Report
from llm_perf_opt.core.source_figures import Method, Testimony
from llm_perf_opt.core.units import format_seconds

if TYPE_CHECKING:
    from llm_perf_opt.analyses.memory import AttentionCase, RunMemory

log = logging.getLogger(__name__)


SOURCES = (COUNTED, *WITNESSES.names())
QUICK_SOURCES = tuple(name for name in SOURCES if name != "exported")  # which takes longer than all the others
SOURCES_OF_A_FILE = (COUNTED, "closed-form")  # what a saved trace is held against without running anything


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRequest:
    """Everything `cost` can be asked for. `model` may also be a trace made earlier, or a folder of them."""

    model: str
    workload: Workload
    deployment: Deployment = field(default_factory=Deployment)
    sources: tuple[str, ...] | None = None  # None: all there are, or for a saved trace those that run nothing
    routing: str | None = None
    device: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRun:
    """The traces that were counted, what all sources say together, and the report of it.

    A phase in which the model raised is in `stopped` and not among the graphs.
    """

    graphs: tuple[CallGraph, ...]
    static: StaticCompute
    summary: Report  # without chapters
    stage_chapters: tuple[Report, ...]
    memory: RunMemory | None = None  # None: nothing was traced
    attention_cases: tuple[AttentionCase, ...] = ()

    @property
    def stopped(self) -> dict[str, str]:
        """Phase -> why it was not traced to its end."""
        traced = {graph.phase for graph in self.graphs}
        silent = [entry for entry in self.static.ledger.missing if entry[0] == COUNTED]
        return {phase: reason for _, phase, _, reason in silent if phase not in traced}

    @property
    def report(self) -> Report:
        """Everything: the summary, a chapter per stage, and memory."""
        notes = (*run_notes(self.graphs), *self.summary.notes)
        return replace(self.summary, notes=notes, chapters=(*self.stage_chapters, *self._memory_chapters()))

    def memory_document(self) -> Mapping[str, Json] | None:
        """The part of `static_compute.json` on memory."""
        if self.memory is None:
            return None
        from llm_perf_opt.analyses.memory import memory_document

        return memory_document(self.memory, self.attention_cases)

    def _memory_chapters(self) -> tuple[Report, ...]:
        if self.memory is None:
            return ()
        from llm_perf_opt.analyses.memory import memory_report

        return (memory_report(self.memory, self.attention_cases),)


def run_cost(request: CostRequest) -> CostRun:
    """Ask every source, hold them side by side, and report; a source that fails is a note, not the end."""
    sources = _known(request.sources)
    if not is_trace(request.model):
        return cost_of(find_adapter(request.model, request.trust_remote_code), request, sources or SOURCES)
    refuse_wishes(request.workload, routing=request.routing)
    return cost_of_graphs(_stored_as(read_traces([Path(request.model)]), request.deployment), sources)


def _stored_as(graphs: tuple[CallGraph, ...], wanted: Deployment) -> tuple[CallGraph, ...]:
    from llm_perf_opt.api.deployed_traces import redeployed  # closed forms alone need none of it

    return redeployed(graphs, wanted)


def cost_of_graphs(graphs: tuple[CallGraph, ...], sources: Sequence[str] | None = None) -> CostRun:
    """The same for traces at hand, phases of one run; nothing is traced again."""
    asked = sources or SOURCES_OF_A_FILE
    kept = graphs if COUNTED in asked else ()
    stopped = {graph.phase: graph for graph in kept if graph.stopped_in is not None}
    finished = tuple(graph for graph in kept if graph.phase not in stopped)  # nor an older file of the same phase
    silent = [said for graph in stopped.values() for said in counted(graph)]
    told = _ask_about(graphs, [name for name in asked if name != COUNTED])
    return _run(graphs[0].model, finished, [*silent, *told], graphs[0].workload)


def cost_of(adapter: ModelAdapter, request: CostRequest, sources: Sequence[str] = SOURCES) -> CostRun:
    """The same for an adapter at hand; `request.model` is then only a name."""
    testimonies: list[Testimony] = []
    graphs: tuple[CallGraph, ...] = ()
    if COUNTED in sources:
        # wrong usage and a broken folder end the run; a model that raises ends its phase
        graphs, stopped = _traced(adapter, request, request.workload)
        testimonies += [said for stop in stopped for said in _stopped(stop)]
    wishes = {"routing": request.routing, "device": request.device}
    testimonies += _ask(adapter, request.workload, [name for name in sources if name != COUNTED], wishes)
    other = _other_attention(adapter, request, graphs) if graphs else ()
    return _run(request.model, graphs, testimonies, described(adapter, request.workload), other)


def _traced(
    adapter: ModelAdapter, request: CostRequest, workload: Workload
) -> tuple[tuple[CallGraph, ...], tuple[PartialTrace, ...]]:
    from llm_perf_opt.api.tracing import TraceRequest, trace_each_phase  # closed forms alone need none of it

    return trace_each_phase(
        adapter,
        TraceRequest(
            model=request.model,
            workload=workload,
            deployment=request.deployment,
            routing=request.routing,
            device=request.device,
        ),
    )


def _stopped(stop: PartialTrace) -> tuple[Testimony, ...]:
    """The trace's own silence, with what the model raised."""
    return tuple(replace(said, failure=f"{stop.what} {stop.why or ''}".strip()) for said in counted(stop.graph))


def _known(sources: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The sources as asked for; a wrong name is refused before any work."""
    for name in sources or ():
        if name != COUNTED:
            WITNESSES.check(name)
    return sources


def _ask(
    adapter: ModelAdapter, workload: Workload, names: Sequence[str], wishes: Mapping[str, str | None]
) -> list[Testimony]:
    testimonies: list[Testimony] = []
    for name in names:
        log.info("Asking %s ...", name)
        started = time.perf_counter()
        witness = _witness(name, wishes)
        try:
            said = witness.testify(adapter, workload)
        except PerfOptError as error:
            said = (_failed(name, f"{error.what} {error.why or ''}".strip()),)
        testimonies += said
        log.info("  %d stages in %s", len(said), format_seconds(time.perf_counter() - started))
    return testimonies


def _witness(name: str, wishes: Mapping[str, str | None]) -> Witness:
    """The witness, told what it has a use for: who gets the tokens, and the device that the model sees."""
    make = cast("Callable[..., Witness]", WITNESSES.get(name))
    takes = inspect.signature(make).parameters
    return make(**{wish: value for wish, value in wishes.items() if value is not None and wish in takes})


def _ask_about(graphs: Sequence[CallGraph], names: Sequence[str]) -> list[Testimony]:
    """Witnesses of a trace made earlier: the model is found again by the name in the file."""
    model = graphs[0].model
    if model not in MODELS.names():
        return [_failed(name, f"no model {model!r} is registered, and a trace holds no code") for name in names]
    told = {name: graphs[0].workload.get(name) for name in ("routing", "device")}
    if told["routing"] == "replay":  # by counts in a file that the trace does not name
        told["routing"] = None
    return _ask(MODELS.get(model)(), workload_of(graphs[0]), names, told)


def _failed(source: str, reason: str) -> Testimony:
    return Testimony(source=source, phase="all", stage="all", method=Method.ISOLATED, failure=reason)


def _run(
    model: str,
    graphs: tuple[CallGraph, ...],
    testimonies: Sequence[Testimony],
    workload: Mapping[str, Json],
    other_attention: Sequence[CallGraph] = (),
) -> CostRun:
    if not graphs:
        static = static_compute(model=model, workload=workload, graphs=(), testimonies=testimonies)
        return _cost_run(graphs, static)
    from llm_perf_opt.analyses.memory import attention_cases, run_memory
    from llm_perf_opt.analyses.necessary.necessary_table import with_necessary
    from llm_perf_opt.analyses.run_description import deployment_notes

    memory = run_memory(graphs)
    said = (*counted_run(graphs, memory), *testimonies)
    static = static_compute(model=model, workload=graphs[0].workload, graphs=graphs, testimonies=said)
    cases = attention_cases(*_eager_and_fused(graphs, other_attention))
    run = _cost_run(graphs, static)
    summary = with_necessary(replace(run.summary, notes=(*deployment_notes(graphs), *run.summary.notes)), graphs)
    return replace(run, summary=summary, memory=memory, attention_cases=tuple(cases))


def _cost_run(graphs: tuple[CallGraph, ...], static: StaticCompute) -> CostRun:
    report = static_report(static)
    summary = replace(report, chapters=())
    return CostRun(graphs=graphs, static=static, summary=summary, stage_chapters=report.chapters)


def described(adapter: ModelAdapter, workload: Workload) -> dict[str, Json]:
    """The workload with the adapter's defaults filled in, where it can tell them without running anything."""
    if hasattr(adapter, "describe"):
        return dict(adapter.describe(workload))
    return {name: value for name, value in asdict(workload).items() if value is not None}


def _other_attention(adapter: ModelAdapter, request: CostRequest, graphs: Sequence[CallGraph]) -> tuple[CallGraph, ...]:
    """The same workload with the other kind of attention; nothing where the model has but one."""
    other = "sdpa" if graphs[0].workload.get("attention", "eager") == "eager" else "eager"
    try:
        return _traced(adapter, request, replace(request.workload, attention=other))[0]
    except PerfOptError as error:
        log.info("No figures for %s attention: %s", other, error.what)
        return ()


def _eager_and_fused(
    graphs: Sequence[CallGraph], other: Sequence[CallGraph]
) -> tuple[Sequence[CallGraph], Sequence[CallGraph]]:
    is_eager = graphs[0].workload.get("attention", "eager") == "eager"
    return (graphs, other) if is_eager else (other, graphs)


STEM = "static_compute"
JSON_FILE = f"{STEM}.json"
FVCORE_FILE = "fvcore_table.txt"
_FORMATS = {"markdown": ".md", "csv": ".csv", "html": ".html"}


def free_cost_files(folder: Path, *, force: bool) -> None:
    """Refuse before the work begins where something would be overwritten, and make the folder."""
    names = (JSON_FILE, FVCORE_FILE, *(STEM + suffix for suffix in _FORMATS.values()))
    require_free((folder / name for name in names), force=force)
    make_folder(folder)


def write_cost(run: CostRun, folder: Path, *, force: bool = False) -> tuple[Path, ...]:
    """`static_compute.json` after its schema, the report in every format, and fvcore's own table if it was asked."""
    free_cost_files(folder, force=force)
    texts = {JSON_FILE: cost_json(run)}
    texts |= {STEM + suffix: REPORTERS.get(name)().render(run.report) for name, suffix in _FORMATS.items()}
    if table := fvcore_table(run):
        texts[FVCORE_FILE] = table
    for name, text in texts.items():
        write_result(folder / name, text)
    return tuple(folder / name for name in texts)


def fvcore_table(run: CostRun) -> str:
    """The tables that fvcore itself prints, stage after stage; empty where it was not asked or had none."""
    said = [source for stage in run.static.stages for source in stage.sources if source.own_table]
    return "\n\n".join(
        f"{source.stage} ({source.phase})\n{source.own_table}" for source in said if source.source == "fvcore"
    )


def cost_json(run: CostRun) -> str:
    """The document that `static_compute.schema.json` describes, as text."""
    document = static_compute_document(run.static, tool_version=__version__, memory=run.memory_document())
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

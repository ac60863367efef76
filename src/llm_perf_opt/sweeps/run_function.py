"""A trace as a function of batch and context: made from a few traces, asked at as many points as one likes.

Points are columns of whole numbers, checked before anything is evaluated. A step of several new tokens is a function of
batch, new tokens and context, next to the phases of a trace.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware.links import Hardware
from llm_perf_opt.core.protocols import KnowsLengths, Tracer
from llm_perf_opt.core.store import entry_key, find_entry, keep_entry
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.work_limits import refuse_workload
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.memory.kv_cache import CHUNK
from llm_perf_opt.sweeps.function.figures.costs import Region
from llm_perf_opt.sweeps.function.files.function_file import SavedFunction, function_lines, own_function
from llm_perf_opt.sweeps.function.form import Column, Point, Points
from llm_perf_opt.sweeps.function.phase_function import FIGURES, FunctionCell, PhaseFunction, find_function
from llm_perf_opt.sweeps.function.program.program import NoRule
from llm_perf_opt.sweeps.function.search.boxes import BoxSearch
from llm_perf_opt.sweeps.function.search.cells import CellSearch
from llm_perf_opt.sweeps.function.search.sampling import Traces
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.tracing.origin import Origin
from llm_perf_opt.tracing.stored_traces import about, trace_ingredients
from llm_perf_opt.tracing.traced_phases import make_tracer, trace_targets
from llm_perf_opt.tracing.traced_run import TracedRun, media_tokens

if TYPE_CHECKING:
    from llm_perf_opt.core.hardware.calibration import Calibration
    from llm_perf_opt.sweeps.function.figures.times import TimeColumns
    from llm_perf_opt.sweeps.function.form import Column, Points


def as_points(given: Mapping[str, ArrayLike], domain: Region) -> Points:
    """Numbers, lists and arrays as columns of one length; a single number stands for all points."""
    if given.keys() != domain.keys():
        raise UsageError(
            f"The points have {', '.join(given) or 'no variables'}.",
            why=f"the function is one of {', '.join(domain)}",
            fix="give a number or a list for each of these",
        )
    columns = {name: np.asarray(values) for name, values in given.items()}
    is_whole = all(np.issubdtype(column.dtype, np.integer) and column.ndim <= 1 for column in columns.values())
    lengths = {len(column) for column in columns.values() if column.ndim}
    if not is_whole or len(lengths) > 1:
        raise UsageError(
            "The points are not columns of whole numbers.",
            why="every variable needs one whole number for each point, or one for all points",
            fix="give lists of one length",
        )
    size = lengths.pop() if lengths else 1
    return {name: np.broadcast_to(column.astype(np.int64), (size,)) for name, column in columns.items()}


def first_outside(function: PhaseFunction, points: Points) -> Point | None:
    """The first point that no cell holds."""
    outside: Column = np.flatnonzero(function.cell_of_points(points) < 0)
    return {name: int(column[outside[0]]) for name, column in points.items()} if len(outside) else None


@contextmanager
def sizes_in_range() -> Iterator[None]:
    """A point at which a size is beyond 64 bits, or a loop cannot run as often as it would have to, is refused."""
    try:
        yield
    except NoRule as refusal:
        raise PerfOptError(
            "The program cannot run at such a point.", why=str(refusal), fix="trace the point by itself"
        ) from refusal
    except ArithmeticError as error:
        raise PerfOptError(
            "A size at such a point is beyond 64 bits.",
            why=str(error) or type(error).__name__,
            fix="ask at a smaller batch or context",
        ) from error


log = logging.getLogger(__name__)

R = TypeVar("R", bound=TracedRun)
R_co = TypeVar("R_co", bound=TracedRun, covariant=True)

BATCH, NEW_TOKENS, CONTEXT = "batch", "new_tokens", "context"
_KIND = "functions"  # of the entries of the cache
TRACES = 40  # at most, for each phase
COMMON_CHUNKS = (64, 128, 256)  # in which code cuts a sequence where the configuration does not say so


class PointTraces(Protocol):
    """Where the graph of a point comes from that no cell proves."""

    def origin_at(self, point: Point) -> Origin | None:
        """The origin with the workload of a point; None where there is no model."""

    def graph(self, phase: str, point: Point) -> CallGraph:
        """The graph of one phase at a point; an error where there is no model to trace."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunFunction(Generic[R_co]):
    """What a model runs, as a function of how many sequences run together and how long their context is.

    `context` counts the tokens that a prefill computes, and that a decode step finds in the cache: prompt and image
    tokens. All other fields are as in `workload`. A function that was read from a file has no `origin`: it answers
    what its cells prove, and refuses all other points.
    """

    name: str
    phases: tuple[PhaseFunction, ...]
    workload: Workload  # that was varied
    origin: Origin | None
    media_tokens: int  # of the context: what images and sound add to the prompt
    _run: R_co = field(repr=False)  # that was varied, or an empty one: those at other points are of its kind
    _traces: PointTraces = field(repr=False)
    chunk: PhaseFunction | None = None  # a step of several new tokens, over `batch`, `new_tokens` and `context`
    _chunk_traces: ChunkTraces | None = field(default=None, repr=False)

    def phase(self, name: str) -> PhaseFunction:
        """The function of one phase."""
        phases = self.phases if self.chunk is None else (*self.phases, self.chunk)
        wanted = next((phase for phase in phases if phase.phase == name), None)
        if wanted is None:
            known = ", ".join(phase.phase for phase in phases)
            raise UsageError(f"There is no phase {name!r}.", why=f"the phases are: {known}", fix="choose one")
        return wanted

    def at(self, *, batch: int = 1, context: int) -> R_co:
        """The run at one point. A phase that no cell proves there is traced."""
        point = {BATCH: batch, CONTEXT: context}
        graphs = tuple(self._graph(phase, point) for phase in self.phases)
        return self._with(graphs, self._traces.origin_at(point))

    def proven_graphs(self) -> tuple[CallGraph, ...]:
        """Each phase at some point of its first cell; phases without a cell are left out."""
        cells = [phase.cells[0] for phase in self.phases if phase.cells]
        return tuple(cell.rebuilt.graph({name: ends[0] for name, ends in cell.region.items()}) for cell in cells)

    def chunk_at(self, *, batch: int = 1, context: int, new_tokens: int) -> R_co:
        """The run of one chunk: `new_tokens` after a cache of `context`. Where no cell proves it, it is traced."""
        point = {BATCH: batch, NEW_TOKENS: new_tokens, CONTEXT: context}
        phase = self.phase(CHUNK)
        answer, traces = phase.graph_at(point), self._chunk_traces
        if answer is None and traces is None:
            raise phase_not_proven(phase, point)
        graph = traces.graph(point) if answer is None and traces is not None else answer
        assert graph is not None
        return self._with((graph,), None if traces is None else traces.origin_at(point))

    def _with(self, graphs: tuple[CallGraph, ...], origin: Origin | None) -> R_co:
        return replace(self._run, name=self.name, graphs=graphs, origin=origin, failures={}, files=(), others=())

    def _graph(self, phase: PhaseFunction, point: Point) -> CallGraph:

        with sizes_in_range():
            graph = phase.graph_at(point)
        if graph is None:
            log.info("%s at %s is outside the proven cells: it is traced", phase.phase, _text(point))
            return self._traces.graph(phase.phase, point)
        return graph

    def figures(self, phase: str, points: Mapping[str, ArrayLike], names: Sequence[str] = FIGURES) -> dict[str, Column]:
        """Figures at many points at once: arrays of `batch` and `context` to arrays of exact integers.

        Every point must lie in a cell. One that does not is traced by `at`, one by one.
        """
        columns = self._inside(phase, points)
        with sizes_in_range():
            return self.phase(phase).figures(columns, names)

    def times(
        self,
        phase: str,
        points: Mapping[str, ArrayLike],
        device: str | Hardware | None = None,
        *,
        calibration: str | Path | Calibration | None = None,
        devices_file: Path | None = None,
        execution: str = Execution.EAGER,
    ) -> TimeColumns:
        """Times at many points at once, as `predict` gives them for one."""
        from llm_perf_opt.timing.rate_sources import find_machine, source_of

        machine = find_machine(device, calibration=calibration, devices_file=devices_file, execution=execution)
        columns = self._inside(phase, points)
        with sizes_in_range():
            source = source_of(machine, execution, rates=None, runs=[self.proven_graphs()])
            return self.phase(phase).times(columns, source)

    def _inside(self, phase: str, points: Mapping[str, ArrayLike]) -> Points:
        """Points as columns, every one of them in a cell."""
        function = self.phase(phase)
        columns = as_points(points, function.domain)
        outside = first_outside(function, columns)
        if outside is not None:
            raise outside_cells(phase, outside, has_model=self.origin is not None)
        return columns


def outside_cells(phase: str, point: Point, *, has_model: bool) -> UsageError:
    """The refusal of a point that no cell proves."""
    given = ", ".join(f"{name}={value}" for name, value in point.items())
    wider = ", ".join(f"{name}=(..., {value})" for name, value in point.items())
    return UsageError(
        f"The function has no {phase} at {_text(point)}.",
        why="it is outside the cells that are proven" + ("" if has_model else ", and a file holds no model to trace"),
        fix=f"trace the point: function.at({given})"
        if has_model
        else f"trace the model over a wider range, trace(MODEL).over({wider}), and save it again",
    )


def _text(point: Point) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in point.items())


@dataclass(eq=False)
class _PhaseTraces:
    """Traces of an origin at points, each made once for all phases."""

    origin: Origin
    media_tokens: int
    _known: dict[tuple[int, int], dict[str, CallGraph]] = field(default_factory=dict)
    _failed: dict[tuple[tuple[int, int], bool], PerfOptError] = field(default_factory=dict)

    def origin_at(self, point: Point) -> Origin:
        """The origin with the workload of a point."""
        prompt = point[CONTEXT] - self.media_tokens
        return replace(self.origin, workload=replace(self.origin.workload, batch=point[BATCH], prompt_tokens=prompt))

    def is_known(self, point: Point) -> bool:
        """Whether a point was traced already."""
        return bool(self._known.get(self._key(point)))

    def graph(self, phase: str, point: Point) -> CallGraph:
        """The graph of one phase at a point. The first phase brings the others.

        A later one that was not asked for with it is traced alone, unless the model keeps something between phases.
        """
        from llm_perf_opt.harness.phase_runs import state_of

        known = self._known.setdefault(self._key(point), {})
        if phase not in known:
            targets = self._targets(point)
            is_whole = phase == targets[0].phase or self._keeps_weights or self.keeps_state
            known.update({graph.phase: graph for graph in self._traced(point, phase, targets, is_whole)})
            if is_whole and self._builds and len(self._states) < 2:
                self._states.append(state_of(self._builds[0]()))
        return known[phase]

    def _traced(self, point: Point, phase: str, targets: Sequence[Target], is_whole: bool) -> Sequence[CallGraph]:
        """All phases, or one. What failed is not run again: at a large point that takes as long as what works."""
        key = self._key(point), is_whole
        if key in self._failed:
            raise self._failed[key]
        chosen = [target for target in targets if is_whole or target.phase == phase]
        try:
            return trace_targets(self._tracer, self.origin.adapter, chosen, self.origin.deployment).graphs
        except PerfOptError as error:
            self._failed[key] = error
            raise

    @property
    def keeps_state(self) -> bool:
        """Whether what a phase runs may depend on the phase before it: not, if two points left the model the same."""
        from llm_perf_opt.harness.phase_runs import is_same_state

        return len(self._states) < 2 or not is_same_state(*self._states)

    def _key(self, point: Point) -> tuple[int, int]:
        return point[BATCH], point[CONTEXT]

    def _targets(self, point: Point) -> tuple[Target, ...]:
        """The phases at a point; all points share one built model, unless a run leaves something in it."""
        targets = self.origin_at(point).targets()
        if self._keeps_weights:
            return targets
        self._builds.append(targets[0].build)
        return tuple(replace(target, build=self._builds[0]) for target in targets)

    @property
    def _keeps_weights(self) -> bool:
        """Fully sharded, the first run gathers weights that later ones find gathered: each point begins anew."""
        return self.origin.plan.fsdp > 1

    @cached_property
    def _tracer(self) -> Tracer:
        return make_tracer(routing=self.origin.routing, torch_device=self.origin.torch_device)

    @cached_property
    def _builds(self) -> list[Any]:
        return []

    @cached_property
    def _states(self) -> list[Any]:
        return []  # of the model after its first two points


def trace_function(
    run: R,
    *,
    batch: int | tuple[int, int],
    context: tuple[int, int],
    new_tokens: tuple[int, int] | None = None,
    traces: int = TRACES,
) -> RunFunction[R]:
    """The function of a traced model over ranges of batch and context, both ends included."""
    origin = run.origin
    if origin is None or origin.is_module:
        raise UsageError(
            "This trace cannot be varied.",
            why="a function is made by tracing the model at other batches and lengths, and it was read from a file "
            "or is a trace of a module with given inputs",
            fix="trace the model by its name or folder",
        )
    if "prompt_tokens" not in run.graphs[0].workload:
        raise UsageError(
            f"The context of {run.name} cannot vary.",
            why="it takes no prompt: its inputs have one size",
            fix="trace it with each batch",
        )
    media = media_tokens(run.graphs[0])
    made = _PhaseTraces(origin, media)
    batches = batch if isinstance(batch, tuple) else (batch, batch)
    refuse_workload(batch=batches[1], tokens=context[1], decode_steps=1)  # the far corner is traced like any other
    domain: Region = {BATCH: batches, CONTEXT: context}
    boundaries = list[int]()
    phases = (
        _stored_phases(run, made, domain, traces)
        if new_tokens is None
        else _found_phases(run, made, domain, traces, boundaries)
    )
    chunks = (
        None
        if new_tokens is None
        else ChunkTraces(origin=origin, media_tokens=media, after_all_phases=made.keeps_state)
    )
    return RunFunction(
        name=run.name,
        phases=phases,
        workload=origin.workload,
        origin=origin,
        media_tokens=media,
        _run=run,
        _traces=made,
        chunk=None
        if chunks is None or new_tokens is None
        else chunk_function(
            chunks,
            batch=batches,
            context=context,
            new_tokens=new_tokens,
            hints=(*_hints(origin), *boundaries),
            traces=traces,
        ),
        _chunk_traces=chunks,
    )


def _found_phases(
    run: TracedRun, made: _PhaseTraces, domain: Region, traces: int, boundaries: list[int], *, with_chunk: bool = False
) -> tuple[PhaseFunction, ...]:
    """The function of each phase of a run, found by tracing it at other points; a chunk is found by itself."""
    hints, phases = _hints(made.origin), list[PhaseFunction]()
    for graph in (traced for traced in run.graphs if with_chunk or traced.phase != CHUNK):
        phase_traces = Traces(trace=partial(made.graph, graph.phase), budget=traces, is_traced=made.is_known)
        search = CellSearch(
            traces=phase_traces,
            domain=domain,
            length=CONTEXT,
            hints=hints,
            chunks=(*hints, *COMMON_CHUNKS),
            boundaries=boundaries,
        )
        phases.append(find_function(graph.phase, search))
    return tuple(phases)


def _stored_phases(run: TracedRun, made: _PhaseTraces, domain: Region, traces: int) -> tuple[PhaseFunction, ...]:
    """The phases, as an earlier run found them over the same ranges, for any device."""
    ingredients = trace_ingredients(replace(made.origin, deployment=replace(made.origin.deployment, device=None)))
    if ingredients is None:
        return _found_phases(run, made, domain, traces, [], with_chunk=True)
    key = entry_key(_KIND, {"of": ingredients, "domain": domain, "traces": traces, "phases": run.phases})
    name = f"{about(made.origin)}, over {_text_of(domain)}"
    if (stored := find_entry(_KIND, key, own_function)) is not None:
        phases = tuple(_on_device(phase, made.origin.deployment.device) for phase in stored.phases)
    else:
        phases = _found_phases(run, made, domain, traces, [], with_chunk=True)
        function = SavedFunction(
            name=run.name,
            tool_version="",
            workload={},
            deployment={},
            media_tokens=made.media_tokens,
            phases=tuple(_on_device(phase, None) for phase in phases),
        )
        keep_entry(_KIND, key, name, b"".join(function_lines(function)))
    for phase in phases:
        for number, cell in enumerate(phase.cells):
            cell.keep_forms(name, {"function": key, "phase": phase.phase, "cell": number})
    return phases


def _on_device(phase: PhaseFunction, device: str | None) -> PhaseFunction:
    """The same phase with the header of a run for another device, or for none."""

    def moved(cell: FunctionCell) -> FunctionCell:
        skeleton = cell.cell.program.skeleton
        header = {name: value for name, value in skeleton.deployment.items() if name != "device"}
        header |= {} if device is None else {"device": device}
        program = replace(cell.cell.program, skeleton=replace(skeleton, deployment=header))
        return replace(cell, cell=replace(cell.cell, program=program))

    return replace(phase, cells=tuple(map(moved, phase.cells)))


def _text_of(domain: Region) -> str:
    return ", ".join(f"{name} {low:,} to {high:,}" for name, (low, high) in domain.items())


def _hints(origin: Origin) -> list[int]:
    return list(origin.adapter.lengths_of_interest()) if isinstance(origin.adapter, KnowsLengths) else []


Span = tuple[int, int]


@dataclass(eq=False, kw_only=True)
class ChunkTraces:
    """Traces of one chunk at points; the prefill before it is traced only where a model keeps something from it."""

    origin: Origin
    media_tokens: int
    after_all_phases: bool = False
    _known: dict[tuple[int, int, int], CallGraph] = field(default_factory=dict)

    def origin_at(self, point: Point) -> Origin:
        """The origin with the workload of a point."""
        workload = replace(
            self.origin.workload,
            batch=point[BATCH],
            prompt_tokens=point[CONTEXT] - self.media_tokens,
            new_tokens=point[NEW_TOKENS],
            decode_steps=1,
        )
        return replace(self.origin, workload=workload)

    def graph(self, point: Point) -> CallGraph:
        """The graph of the chunk at a point."""
        key = point[BATCH], point[NEW_TOKENS], point[CONTEXT]
        if key not in self._known:
            origin = self.origin_at(point)
            tracer = make_tracer(routing=origin.routing, torch_device=origin.torch_device)
            targets = [target for target in origin.targets() if self.after_all_phases or target.phase == CHUNK]
            graphs = trace_targets(tracer, origin.adapter, targets, origin.deployment).graphs
            self._known[key] = next(graph for graph in graphs if graph.phase == CHUNK)
        return self._known[key]


def chunk_function(
    made: ChunkTraces, *, batch: Span, context: Span, new_tokens: Span, hints: Sequence[int], traces: int
) -> PhaseFunction:
    """The chunk over ranges of batch, new tokens and cached tokens, ends included."""
    if new_tokens[0] < 2 or new_tokens[1] < new_tokens[0]:
        raise UsageError(
            f"A chunk has 2 or more new tokens, not {new_tokens[0]:,} to {new_tokens[1]:,}.",
            why="a step of one new token is the decode, which the function has anyway",
            fix="begin the range at 2",
        )
    chunk_traces = Traces(trace=made.graph, budget=traces)
    domain = {BATCH: batch, NEW_TOKENS: new_tokens, CONTEXT: context}
    return find_function(CHUNK, BoxSearch(traces=chunk_traces, domain=domain, hints=hints))


def phase_not_proven(phase: PhaseFunction, point: Point) -> UsageError:
    """Why a point has no answer where there is no model to trace."""
    where = ", ".join(f"{name} {value:,}" for name, value in point.items())
    return UsageError(
        f"The {phase.phase} at {where} is not known.",
        why="it is outside the proven cells, and the function was read from a file",
        fix="make the function again from the model: trace.over(...)",
    )

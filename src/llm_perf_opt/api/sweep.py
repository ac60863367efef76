"""How cost, memory and time change with batch and context: one function of the model, asked at many points.

The answer has every phase at every point of a grid, with its report, its charts and its proof.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import shared_work
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import Hardware, device_of, find_devices, hardware_id
from llm_perf_opt.core.number_ranges import NumberRange, read_range, round_numbers
from llm_perf_opt.core.output_files import free_file, write_result
from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.report import Chart, Note, Report, Table, counted
from llm_perf_opt.costs.run_description import deployment_notes, workload_text
from llm_perf_opt.serving.fit import rank_memory
from llm_perf_opt.sweeps.function.figures.packed import CONTEXT
from llm_perf_opt.sweeps.function.phase_function import PhaseFunction
from llm_perf_opt.sweeps.function_files import save_function
from llm_perf_opt.sweeps.run_function import RunFunction, trace_function
from llm_perf_opt.sweeps.sweep_points import (
    BATCH,
    PREFILL,
    AddedCost,
    Bend,
    LargestBatch,
    Pair,
    PhaseSweep,
    SweepPoint,
    added_costs,
    bends,
    largest_batch,
    middle,
    shown_values,
)
from llm_perf_opt.sweeps.sweep_report import (
    EVERY_POINT,
    OpenCell,
    ProvenCell,
    added_line,
    bend_chart,
    charts_over,
    fit_chart,
    glance_rows,
    glance_table,
    gpu_table,
    headline,
    is_of_time,
    largest_line,
    per_token_chart,
    points_table,
    proof_notes,
    proof_tables,
    range_text,
    short_table,
)
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.rate_sources import source_of
from llm_perf_opt.timing.rates import RateSource
from llm_perf_opt.tracing.traced_run import TracedRun, media_tokens

if TYPE_CHECKING:
    import pandas

_OF_THE_POINT = ("batch", "prompt_tokens", "context_tokens", "inputs")  # what differs from point to point
_SMOOTH = 48  # points of a curve, where they cost nothing
_ALL_POINTS = "All points"

DEFAULT_USERS, DEFAULT_INPUT = "1..64", "1k..8k"
MOST_TRACED = 16  # points outside all cells, each traced by itself
MOST_ROWS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _OnGpu:
    """The function with the rates of one GPU; `hardware` None: none was named, and nothing has a time."""

    hardware: Hardware | None
    rates: RateSource | None
    phases: tuple[PhaseSweep, ...]
    points: tuple[SweepPoint, ...]
    added: tuple[AddedCost, ...]
    bends: tuple[Bend, ...]
    largest_batches: tuple[LargestBatch, ...]

    @property
    def device(self) -> Device | None:
        return None if self.hardware is None else device_of(self.hardware)

    def glance_rows(self, contexts: Collection[int]) -> Iterator[tuple[str, str]]:
        """Questions and answers, at some of the contexts."""
        largest = [limit for limit in self.largest_batches if limit.context in contexts]
        points = [point for point in self.points if point.context in contexts]
        name = None if self.device is None else self.device.name
        return glance_rows(self.added, largest, self.bends, points, name)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SweepAnswer(Answer):
    """Every phase at every point of a grid of batches and contexts, on each of `gpus`. No GPU: no times.

    `added` is what one more sequence and one more token cost, `bends` where something else begins to limit a decode
    step, `largest_batches` what a GPU holds: each says of which GPU it is. `cells` are proven, `open_regions` are not;
    `traces` were made, once for all GPUs.
    """

    model: str
    gpus: tuple[Hardware, ...]
    execution: str
    rates: tuple[str, ...]  # the source of the times of each GPU
    batches: NumberRange
    contexts: NumberRange
    points: tuple[SweepPoint, ...]
    added: tuple[AddedCost, ...]
    bends: tuple[Bend, ...]
    largest_batches: tuple[LargestBatch, ...]
    cells: tuple[ProvenCell, ...]
    open_regions: tuple[OpenCell, ...]
    traces: int
    _function: RunFunction[TracedRun]
    _on: tuple[_OnGpu, ...]
    _graphs: tuple[CallGraph, ...]  # of one point, for the description of the workload

    @property
    def headline(self) -> str:
        """What one more sequence and one more token add to the last phase, in one line."""
        return headline(self._on[0].added)

    @property
    def answer(self) -> tuple[str, ...]:
        """What another sequence and another token add, the largest batch that fits, and the bottleneck."""
        fits = [f"{self._on_text}, the largest batch: {largest_line(self.largest_batches)}."] if self.gpus else []
        proof = f"{counted(len(self.points), 'point')} from {counted(self.traces, 'trace')}"
        failed = sum(point.failure is not None for point in self.points)
        proof += f"; {failed:,} failed" if failed else ""
        proof += "; some are not proven." if self.open_regions else "; every point is proven."
        return (f"{self.model}, {added_line(self._on[0].added, timed=len(self._on) == 1)}.", *fits, proof)

    @property
    def _on_text(self) -> str:
        devices = self._devices
        where = devices[0].name if len(devices) == 1 else f"{len(devices)} GPUs"
        return f"On {where}, {Execution(self.execution).text}"

    @property
    def _devices(self) -> tuple[Device, ...]:
        return tuple(map(device_of, self.gpus))

    def report(self) -> Report:
        """The answers, the charts, every point, and how it was proven."""
        along = {
            f"Over {name}": Report(title=f"Over {name}", charts=tuple(self._charts_over(name)))
            for name in (BATCH, CONTEXT)
        }
        return Report(
            title=self._title,
            answer=self.answer,
            tables=(*self._by_gpu, self._glance),
            charts=tuple(self._charts()),
            notes=tuple(self._notes()),
            chapters=(
                *(chapter for chapter in along.values() if chapter.charts),
                Report(title=_ALL_POINTS, tables=(points_table(self.points),)),
                Report(title="How is it proven?", tables=self._proof, notes=tuple(self._proof_notes())),
            ),
        )

    def summary(self) -> Report:
        """For a terminal: the answers, some of the points, and how it was proven."""
        return Report(
            title=self._title,
            answer=self.answer,
            tables=(*(self._by_gpu or (self._glance,)), short_table(self.points), *self._proof),
            notes=(*self._notes(), *self._proof_notes()),
        )

    def save_points(self, path: str | Path, *, force: bool = False) -> Path:
        """Write every point as one CSV table in base units; lines that begin with `#` are comments."""
        path = Path(path)
        free_file(path, force=force)
        report = Report(title=self._title, tables=(points_table(self.points),))
        write_result(path, REPORTERS.get("csv")().render(report))
        return path

    def save_function(self, path: str | Path, *, force: bool = False) -> Path:
        """Keep the function that the points come from; `sweep` and `lpo.load_function` take it."""
        return save_function(self._function, Path(path), force=force)

    def to_pandas(self, table: str | None = None) -> pandas.DataFrame:
        """Every point as a data frame of raw numbers, or another one of `tables`."""
        return super().to_pandas(f"{_ALL_POINTS}: {EVERY_POINT}" if table is None else table)

    @property
    def _title(self) -> str:
        return f"{self.model}: batch {range_text(self.batches)}, context {range_text(self.contexts)}"

    @property
    def _glance(self) -> Table:
        shown = shown_values(self.contexts)
        return glance_table({hardware_id(on.hardware): tuple(on.glance_rows(shown)) for on in self._on})

    @property
    def _by_gpu(self) -> tuple[Table, ...]:
        """Several GPUs side by side; nothing for a single GPU, because the other tables have its figures."""
        place = middle(self.batches), middle(self.contexts)
        return (gpu_table(self.points, self.largest_batches, *place),) if len(self.gpus) > 1 else ()

    @property
    def _proof(self) -> tuple[Table, ...]:
        return proof_tables(self.cells, self.open_regions)

    def _charts(self) -> Iterator[Chart]:
        for on, curves in zip(self._on, self._curves[BATCH], strict=True):
            if on.device is not None:
                yield from bend_chart(curves, on.bends, middle(self.contexts), on.device)
                yield from per_token_chart(curves, on.device)
                yield from fit_chart(on.largest_batches, on.device)

    def _charts_over(self, name: str) -> Iterator[Chart]:
        """What no GPU changes is drawn once, with the memory of each; times are drawn for each."""
        first, *others = self._curves[name]
        yield from charts_over(name, first, *self._devices)
        for device, curves in zip(self._devices[1:], others, strict=True):
            yield from (chart for chart in charts_over(name, curves, device) if is_of_time(chart))

    def _notes(self) -> Iterator[Note]:
        header = {name: value for name, value in self._graphs[0].workload.items() if name not in _OF_THE_POINT}
        yield Note(f"Workload of every point: {workload_text(header)}.")
        yield from deployment_notes(self._graphs)
        yield Note(
            "The context is the tokens that a prefill computes, or that a decode step reads from the cache, with image "
            "tokens. A decode row is a single step. FLOPs are as written: a multiply-add counts as two."
        )
        yield from dict.fromkeys(note for on in self._on if on.rates is not None for note in on.rates.notes())

    def _proof_notes(self) -> Iterator[Note]:
        return proof_notes(self.points, self.traces)

    @cached_property
    def _curves(self) -> dict[str, list[tuple[SweepPoint, ...]]]:
        """Points of the charts of each GPU: many batches at a few contexts, and many contexts at a few batches."""
        over_batch = [*product(self._smooth(self.batches, BATCH), shown_values(self.contexts))]
        over_context = [*product(shown_values(self.batches), self._smooth(self.contexts, CONTEXT))]
        return {
            name: [tuple(point for phase in on.phases for point in phase.at(pairs)) for on in self._on]
            for name, pairs in ((BATCH, over_batch), (CONTEXT, over_context))
        }

    def _smooth(self, values: NumberRange, name: str) -> list[int]:
        """The values of the grid, every bend and every edge of a cell; where figures are formulas many between them."""
        is_dense = values.is_range and all(phase.is_by_form for on in self._on for phase in on.phases)
        more = round_numbers(values.low, values.high, _SMOOTH) if is_dense else ()
        bent = [bend.batch for bend in self.bends] if name == BATCH else []
        edges = (edge for cell in self.cells for edge in (cell.batch if name == BATCH else cell.context))
        inside = [edge for edge in edges if values.is_range and values.low <= edge <= values.high]
        return sorted({*values.values, *more, *bent, *inside})


def default_sweep(run: TracedRun, device: Hardware | None) -> SweepAnswer:
    """A traced model over the default ranges; a context that its images exceed begins behind them."""
    batches, contexts = read_range(DEFAULT_USERS, BATCH), read_range(DEFAULT_INPUT, CONTEXT)
    longer = 2 ** media_tokens(run.graphs[0]).bit_length()
    if contexts.low < longer:
        contexts = read_range((longer, contexts.high * longer // contexts.low), CONTEXT)
    function = trace_function(run, batch=batches.ends, context=contexts.ends)
    return sweep_answer(
        function,
        function._traces.graph,
        batches=batches,
        contexts=contexts,
        gpus=() if device is None else (device,),
        execution=Execution.EAGER,
    )


def find_gpus(
    given: str | Hardware | Sequence[str | Hardware] | None, devices_file: Path | None = None
) -> tuple[Hardware, ...]:
    """`l4,h100-sxm`, `all`, a cluster, or a list of them; None: no GPU. A wrong one is refused before any work."""
    if given is None:
        return ()
    named = find_devices(given if isinstance(given, str | Sequence) else [given], devices_file)
    if len({device_of(hardware).torch_device for hardware in named}) > 1:
        raise UsageError(
            "CPUs and GPUs cannot share a sweep.",
            why="the model's code may run differently on each of them, and it is traced once",
            fix="make a sweep for each",
        )
    return named


def refuse_rows(batches: NumberRange, contexts: NumberRange) -> None:
    """Refuse a grid that no table could show."""
    rows = len(batches.values) * len(contexts.values)
    if rows > MOST_ROWS:
        raise UsageError(
            f"{rows:,} points are too many to show.",
            why=f"a table shows at most {MOST_ROWS:,}",
            fix="lower --points, or evaluate the function in Python: trace.over(...).figures(...)",
        )


def sweep_answer(
    function: RunFunction[TracedRun],
    trace_phase: Callable[[str, Any], CallGraph],
    *,
    batches: NumberRange,
    contexts: NumberRange,
    gpus: Sequence[Hardware],
    execution: str,
) -> SweepAnswer:
    """The function at every point of the grid, on each GPU; `trace_phase` traces a point that no cell proves."""
    refuse_rows(batches, contexts)
    grid = _Grid(function, trace_phase, batches, contexts)
    with shared_work():
        per_gpu = tuple(grid.on(hardware, execution) for hardware in gpus or (None,))
    return SweepAnswer(
        model=grid.graphs[0].model,
        gpus=tuple(gpus),
        execution=execution,
        rates=tuple(gpu.rates.name for gpu in per_gpu if gpu.rates is not None),
        batches=batches,
        contexts=contexts,
        points=tuple(point for gpu in per_gpu for point in gpu.points),
        added=tuple(cost for gpu in per_gpu for cost in gpu.added),
        bends=tuple(bend for gpu in per_gpu for bend in gpu.bends),
        largest_batches=tuple(limit for gpu in per_gpu for limit in gpu.largest_batches),
        cells=tuple(cell for phase in function.phases for cell in _proven(phase)),
        open_regions=tuple(
            OpenCell(
                phase=phase.phase,
                batch=open_region.region[BATCH],
                context=open_region.region[CONTEXT],
                only=None if open_region.stride is None else str(open_region.stride),
                why=str(open_region.why),
            )
            for phase in function.phases
            for open_region in phase.open_regions
        ),
        traces=sum(phase.traces for phase in function.phases),
        _function=function,
        _on=per_gpu,
        _graphs=grid.graphs,
    )


@dataclass(eq=False)
class _Grid:
    """The points that are asked for; `graphs` are of one of them, and every GPU shares them."""

    function: RunFunction[TracedRun]
    trace_phase: Callable[[str, Any], CallGraph]
    batches: NumberRange
    contexts: NumberRange
    graphs: tuple[CallGraph, ...] = ()

    def on(self, hardware: Hardware | None, execution: str) -> _OnGpu:
        """Every figure, with the times of one GPU."""
        rates = (
            None
            if hardware is None
            else source_of(hardware, execution, rates=None, runs=[self.function.proven_graphs()])
        )
        phases = tuple(self._phase(phase, rates, hardware_id(hardware)) for phase in self.function.phases)
        points = self._points(phases)
        steps = [phase for phase in phases if phase.phase != PREFILL]
        shown = shown_values(self.contexts)
        return _OnGpu(
            hardware=hardware,
            rates=rates,
            phases=phases,
            points=points,
            added=tuple(cost for phase in phases for cost in added_costs(phase, self.batches, self.contexts)),
            bends=tuple(bend for phase in steps for context in shown for bend in bends(phase, self.batches, context)),
            largest_batches=() if hardware is None else self._largest(phases, device_of(hardware)),
        )

    def _phase(self, function: PhaseFunction, rates: RateSource | None, gpu: str | None) -> PhaseSweep:
        return PhaseSweep(
            function=function,
            rates=rates,
            trace=lambda point: self.trace_phase(function.phase, point),
            new_tokens=self.function.workload.new_tokens,
            gpu=gpu,
        )

    def _points(self, phases: Sequence[PhaseSweep]) -> tuple[SweepPoint, ...]:
        pairs: list[Pair] = [*product(self.batches.values, self.contexts.values)]
        unproven = {pair for phase in phases for pair, held in zip(pairs, phase.proven(pairs), strict=True) if not held}
        can_trace = self.function.origin is not None and len(unproven) <= MOST_TRACED
        points = tuple(_points(phases, pairs, traced=can_trace))
        if not self.graphs:
            failed = {(point.batch, point.context) for point in points if point.failure is not None}
            batch, context = min(pairs, key=lambda pair: (pair in failed, pair in unproven))
            self.graphs = self.function.at(batch=batch, context=context).graphs
        return points

    def _largest(self, phases: Sequence[PhaseSweep], device: Device) -> tuple[LargestBatch, ...]:
        serving = rank_memory(self.graphs, device)
        return tuple(largest_batch(phases, self.batches, context, device, serving) for context in self.contexts.values)


def _points(phases: Sequence[PhaseSweep], pairs: Sequence[Pair], *, traced: bool) -> Iterator[SweepPoint]:
    """Phase by phase; the cache that a prefill leaves is what the decode step at the same point is handed."""
    evaluated = {phase.phase: phase.at(pairs, traced=traced) for phase in phases}
    caches = {
        (point.batch, point.context): point.cache_bytes
        for rows in evaluated.values()
        for point in rows
        if point.cache_bytes is not None
    }
    for point in (point for rows in evaluated.values() for point in rows):
        cache = caches.get((point.batch, point.context))
        yield point if point.cache_bytes == cache else replace(point, cache_bytes=cache)


def _proven(phase: PhaseFunction) -> Iterator[ProvenCell]:
    for cell in phase.cells:
        yield ProvenCell(
            phase=phase.phase,
            batch=cell.region[BATCH],
            context=cell.region[CONTEXT],
            only=None if cell.cell.stride is None else str(cell.cell.stride),
            checked_points=len({tuple(sorted(point.items())) for point in cell.cell.checked}),
            flops=None if cell.figures is None else str(cell.figures.total.flops),
        )

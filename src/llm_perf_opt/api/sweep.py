"""How cost, memory and time change with batch and context: one function of the model, asked at many points.

The answer has every phase at every point of a grid, with its report, its charts and its proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import Cluster, Hardware, cluster_of, device_of
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
    glance_table,
    headline,
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

DEFAULT_BATCH, DEFAULT_CONTEXT = "1..64", "1k..8k"
MOST_TRACED = 16  # points outside all cells, each traced by itself
MOST_ROWS = 20_000


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SweepAnswer(Answer):
    """Every phase at every point of a grid of batches and contexts. `device` None: no times.

    `added` is what one more sequence and one more token cost, `bends` where something else begins to limit a decode
    step, `largest_batches` what the device holds. `cells` are proven, `open_regions` are not; `traces` were made.
    """

    model: str
    device: Device | None
    cluster: Cluster | None = None  # of these devices, where several were named
    execution: str
    rates: str | None = None  # the source of the times; None: no device was named
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
    _phases: tuple[PhaseSweep, ...]
    _graphs: tuple[CallGraph, ...]  # of one point, for the description of the workload
    _rates: RateSource | None

    @property
    def headline(self) -> str:
        """What one more sequence and one more token add to the last phase, in one line."""
        return headline(self.added)

    @property
    def answer(self) -> tuple[str, ...]:
        """What one more sequence and token add, the largest batch that fits, and what limits."""
        name = "" if self.device is None else self.device.name
        device = [f"Largest batch on {name}: {largest_line(self.largest_batches)}."] if self.largest_batches else []
        proof = f"{counted(len(self.points), 'point')} from {counted(self.traces, 'trace')}"
        failed = sum(point.failure is not None for point in self.points)
        proof += f"; {failed:,} failed" if failed else ""
        proof += "; some are not proven." if self.open_regions else "; every one is proven."
        return (f"{self.model}, {added_line(self.added)}.", *device, proof)

    def report(self) -> Report:
        """The answers, the charts, every point, and how it was proven."""
        along = {
            f"Over {name}": Report(title=f"Over {name}", charts=tuple(charts_over(name, curves, self.device)))
            for name, curves in self._curves.items()
        }
        return Report(
            title=self._title,
            answer=self.answer,
            tables=(self._glance,),
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
            tables=(self._glance, short_table(self.points), *self._proof),
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
        name = None if self.device is None else self.device.name
        shown = set(shown_values(self.contexts))
        largest = [one for one in self.largest_batches if one.context in shown]
        points = [point for point in self.points if point.context in shown]
        return glance_table(self.added, largest, self.bends, points, name)

    @property
    def _proof(self) -> tuple[Table, ...]:
        return proof_tables(self.cells, self.open_regions)

    def _charts(self) -> Iterator[Chart]:
        if self.device is not None:
            curves = self._curves[BATCH]
            yield from bend_chart(curves, self.bends, middle(self.contexts), self.device)
            yield from per_token_chart(curves, self.device)
            yield from fit_chart(self.largest_batches, self.device)

    def _notes(self) -> Iterator[Note]:
        header = {name: value for name, value in self._graphs[0].workload.items() if name not in _OF_THE_POINT}
        yield Note(f"Workload of every point: {workload_text(header)}.")
        yield from deployment_notes(self._graphs)
        yield Note(
            "Context: the tokens that a prefill computes, and that a decode step finds in the cache; image tokens "
            "count. A decode row is one step. FLOPs are as written: a multiply-add counts as two."
        )
        if self._rates is not None:
            yield from self._rates.notes()

    def _proof_notes(self) -> Iterator[Note]:
        return proof_notes(self.points, self.traces)

    @cached_property
    def _curves(self) -> dict[str, tuple[SweepPoint, ...]]:
        """Points of the charts: many batches at a few contexts, and many contexts at a few batches."""
        over_batch = [*product(self._smooth(self.batches, BATCH), shown_values(self.contexts))]
        over_context = [*product(shown_values(self.batches), self._smooth(self.contexts, CONTEXT))]
        return {
            name: tuple(point for phase in self._phases for point in phase.at(pairs))
            for name, pairs in ((BATCH, over_batch), (CONTEXT, over_context))
        }

    def _smooth(self, values: NumberRange, name: str) -> list[int]:
        """The values of the grid, every bend and every edge of a cell; where figures are formulas many between them."""
        is_dense = values.is_range and all(phase.is_by_form for phase in self._phases)
        more = round_numbers(values.low, values.high, _SMOOTH) if is_dense else ()
        bent = [bend.batch for bend in self.bends] if name == BATCH else []
        edges = (edge for cell in self.cells for edge in (cell.batch if name == BATCH else cell.context))
        inside = [edge for edge in edges if values.is_range and values.low <= edge <= values.high]
        return sorted({*values.values, *more, *bent, *inside})


def default_sweep(run: TracedRun, device: Hardware | None) -> SweepAnswer:
    """A traced model over the default ranges; a context that its images exceed begins behind them."""
    batches, contexts = read_range(DEFAULT_BATCH, BATCH), read_range(DEFAULT_CONTEXT, CONTEXT)
    longer = 2 ** media_tokens(run.graphs[0]).bit_length()
    if contexts.low < longer:
        contexts = read_range((longer, contexts.high * longer // contexts.low), CONTEXT)
    function = trace_function(run, batch=batches.ends, context=contexts.ends)
    return sweep_answer(
        function,
        function._traces.graph,
        batches=batches,
        contexts=contexts,
        device=device,
        execution=Execution.EAGER,
    )


def refuse_rows(batches: NumberRange, contexts: NumberRange) -> None:
    """Refuse a grid that no table could show."""
    rows = len(batches.values) * len(contexts.values)
    if rows > MOST_ROWS:
        raise UsageError(
            f"{rows:,} points are too many to show.",
            why=f"a table has at most {MOST_ROWS:,}",
            fix="ask for fewer with --points, or ask the function: trace.over(...).figures(...)",
        )


def sweep_answer(
    function: RunFunction[TracedRun],
    trace_phase: Callable[[str, Any], CallGraph],
    *,
    batches: NumberRange,
    contexts: NumberRange,
    device: Hardware | None,
    execution: str,
) -> SweepAnswer:
    """The function at every point of the grid; `trace_phase` traces a point that no cell proves."""
    refuse_rows(batches, contexts)
    one = None if device is None else device_of(device)
    cluster = None if device is None else cluster_of(device)
    rates = None if device is None else source_of(device, execution, rates=None, runs=[function.proven_graphs()])
    phases = tuple(_phase_sweep(one, rates, trace_phase, function.workload.new_tokens) for one in function.phases)
    pairs: list[Pair] = [*product(batches.values, contexts.values)]
    unproven = {pair for phase in phases for pair, held in zip(pairs, phase.proven(pairs), strict=True) if not held}
    can_trace = function.origin is not None and len(unproven) <= MOST_TRACED
    points = tuple(_points(phases, pairs, traced=can_trace))
    failed = {(point.batch, point.context) for point in points if point.failure is not None}
    batch, context = min(pairs, key=lambda pair: (pair in failed, pair in unproven))
    graphs = function.at(batch=batch, context=context).graphs
    steps = [phase for phase in phases if phase.phase != PREFILL]
    serving = None if one is None else rank_memory(graphs, one)
    return SweepAnswer(
        model=graphs[0].model,
        device=one,
        cluster=cluster,
        execution=execution,
        rates=None if rates is None else rates.name,
        batches=batches,
        contexts=contexts,
        points=points,
        added=tuple(added_cost for phase in phases for added_cost in added_costs(phase, batches, contexts)),
        bends=tuple(
            bend for phase in steps for context in shown_values(contexts) for bend in bends(phase, batches, context)
        ),
        largest_batches=()
        if one is None
        else tuple(largest_batch(phases, batches, context, one, serving) for context in contexts.values),
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
        _phases=phases,
        _graphs=graphs,
        _rates=rates,
    )


def _phase_sweep(
    function: PhaseFunction,
    rates: RateSource | None,
    trace_phase: Callable[[str, Any], CallGraph],
    new_tokens: int,
) -> PhaseSweep:
    return PhaseSweep(
        function=function,
        rates=rates,
        trace=lambda point: trace_phase(function.phase, point),
        new_tokens=new_tokens,
    )


def _points(phases: Sequence[PhaseSweep], pairs: Sequence[Pair], *, traced: bool) -> Iterator[SweepPoint]:
    """Phase by phase; the cache that a prefill leaves is what the decode step at the same point is handed."""
    found = {phase.phase: phase.at(pairs, traced=traced) for phase in phases}
    caches = {
        (point.batch, point.context): point.cache_bytes
        for rows in found.values()
        for point in rows
        if point.cache_bytes is not None
    }
    for rows in found.values():
        yield from (replace(point, cache_bytes=caches.get((point.batch, point.context))) for point in rows)


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

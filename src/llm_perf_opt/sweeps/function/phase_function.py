"""A phase as a function of its workload: cells that are proven, regions that are not, and figures at many points.

A point in a cell is answered from the cell's program. A point outside all cells has no answer here: whoever asks traces
it, or says that it is not known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.store import stored_record
from llm_perf_opt.sweeps.function.figures.costs import CHECKS, FigureForms, Region, figure_forms, generic_points
from llm_perf_opt.sweeps.function.figures.kernel_forms import (
    CollectiveCounts,
    KernelCounts,
    collective_counts,
    kernel_forms,
)
from llm_perf_opt.sweeps.function.figures.needs import (
    RESIDENT,
    NeedForms,
    costs_of,
    figures_of,
    necessary_column,
    need_forms,
    sum_of,
)
from llm_perf_opt.sweeps.function.figures.rebuilding import Rebuilt, looped_figures, small_region
from llm_perf_opt.sweeps.function.form import AnsweredBy, Column, Evaluation, Form, Point, Points
from llm_perf_opt.sweeps.function.program.alignment import Parting
from llm_perf_opt.sweeps.function.program.program import NO_RULE, NoRule
from llm_perf_opt.sweeps.function.search.boxes import BoxSearch
from llm_perf_opt.sweeps.function.search.cells import Cell, CellSearch, OpenRegion
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution

if TYPE_CHECKING:
    from llm_perf_opt.sweeps.function.figures.times import TimeColumns
    from llm_perf_opt.timing.kernel_rates import KernelTableRates
    from llm_perf_opt.timing.rates import RateSource, StagePieces

log = logging.getLogger(__name__)

PEAK = "peak_bytes"
FIGURES = ("flops", "vector_flops", "bytes_moved", "launches", PEAK)
NEEDS = ("weight_bytes", "parameters", "cache_bytes", "needed_bytes", "necessary_flops", "necessary_bytes")
ALL_FIGURES = (*FIGURES, *NEEDS)
MOST_POINTS = 1_000  # that are answered one by one
KIND = "forms"  # of entries in the store

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launches:
    """Kernels of a cell as the store has them. None: they are no fixed list."""

    counts: KernelCounts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Collectives:
    """Collectives of a cell as the store has them. None: they are no fixed list."""

    counts: CollectiveCounts | None


@dataclass(frozen=True, kw_only=True, eq=False)
class FunctionCell:
    """A cell with its figures as forms; `no_figures` is why there are none: then each point is priced by itself."""

    cell: Cell
    figures: FigureForms | None
    no_figures: Parting | None = None
    _key: dict[str, object] = field(default_factory=dict, init=False)  # of its forms in the store; empty: not kept

    @property
    def region(self) -> Region:
        """Variable -> its lowest and highest value in the cell."""
        return self.cell.region

    @cached_property
    def rebuilt(self) -> Rebuilt:
        """Graphs of the cell at points."""
        return Rebuilt(self.cell.program, self.region, small_region(self.cell.program, self.region))

    @cached_property
    def needs(self) -> NeedForms:
        """Weights, cache, memory and necessary work as forms; worked out when first asked for."""
        return self._stored("needs", NeedForms, lambda: need_forms(self.rebuilt))

    def keep_forms(self, about: str, ingredients: Mapping[str, object]) -> None:
        """Keep what is fitted from here on in the store, under ingredients that no other cell has."""
        self._key.update(about=about, of=ingredients)

    def _stored(self, what: str, record: type[T], fit: Callable[[], T]) -> T:
        ingredients = {"what": what, **self._key} if self._key else None
        return stored_record(KIND, ingredients, f"{self._key.get('about')}, {what}", record, fit)

    @cached_property
    def _kernels(self) -> dict[tuple[Execution, bool], KernelCounts | None]:
        return {}

    def kernels(self, execution: Execution, *, least: bool = True) -> KernelCounts | None:
        """The kernels that are launched, with sizes that are forms; None where they are no such list."""
        key = (execution, least)
        if key not in self._kernels:
            what = f"kernels, {execution}{', at least' if least else ''}"
            stored = self._stored(what, _Launches, lambda: self._fitted_kernels(execution, least=least))
            self._kernels[key] = stored.counts
        return self._kernels[key]

    def _fitted_kernels(self, execution: Execution, *, least: bool) -> _Launches:
        try:
            return _Launches(counts=kernel_forms(self.rebuilt, execution, least=least))
        except NoRule as refusal:
            log.info("the kernels of %s are not forms: %s", self.region, refusal)
            return _Launches(counts=None)

    @cached_property
    def collectives(self) -> CollectiveCounts | None:
        """The collectives that ranks must run, with payloads that are forms; None where it is no such list."""
        return self._stored("collectives", _Collectives, self._fitted_collectives).counts

    def _fitted_collectives(self) -> _Collectives:
        try:
            return _Collectives(counts=collective_counts(self.rebuilt))
        except NoRule as refusal:
            log.info("the collectives of %s are not forms: %s", self.region, refusal)
            return _Collectives(counts=None)

    def origin_of(self, name: str) -> AnsweredBy:
        """How a figure is answered here."""
        if name in FIGURES:
            has_form = self.figures is not None and (name != PEAK or bool(self.figures.peak_bytes))
        elif name == "needed_bytes":
            has_form = self.origin_of(PEAK) is AnsweredBy.FORM and RESIDENT not in self.needs.by_point
        elif name in ("necessary_flops", "necessary_bytes"):
            has_form = self.needs.necessary is not None
        else:
            has_form = name not in self.needs.by_point
        return AnsweredBy.FORM if has_form else AnsweredBy.POINT

    def figures_at(self, points: Points, names: Sequence[str]) -> dict[str, Column]:
        """Figures at points of the cell."""
        at = Evaluation(points)
        one_by_one = [name for name in names if self.origin_of(name) is AnsweredBy.POINT]
        known = self._by_point(points, one_by_one) if one_by_one else {}
        return {name: known[name] if name in known else self._by_form(name, at) for name in names}

    def _by_form(self, name: str, at: Evaluation) -> Column:
        if name in FIGURES:
            assert self.figures is not None, "figures without forms are answered point by point"
            return self.figures.column(name, at)
        if name == "needed_bytes":
            resident = self.needs.resident_bytes
            return _unknown(at) if resident is None else sum_of([at.of(resident), self._by_form(PEAK, at)])
        if name in ("necessary_flops", "necessary_bytes"):
            return necessary_column(name, self.needs, at)
        form: Form | None = getattr(self.needs, name)
        return _unknown(at) if form is None else at.of(form)

    def _by_point(self, points: Points, names: Sequence[str]) -> dict[str, Column]:
        places, distinct = _distinct_points(points)
        ask = costs_of if set(names) <= set(FIGURES) else figures_of
        rows = [ask(self.rebuilt.graph(point)) for point in distinct]
        return {name: _narrowed(np.array([row[name] for row in rows], dtype=object)[places]) for name in names}

    def times_at(self, points: Points, rates: RateSource) -> TimeColumns:
        """Times at points of the cell."""
        from llm_perf_opt.sweeps.function.figures.times import times_by_form, times_by_point, times_by_tables
        from llm_perf_opt.timing.kernel_rates import KernelTableRates
        from llm_perf_opt.timing.predict import predict

        is_table = isinstance(rates, KernelTableRates)
        kernels = (
            self.kernels(rates.execution, least=not is_table)
            if isinstance(rates, DataSheetRates | KernelTableRates)
            else None
        )
        collectives = {} if rates.cluster is None or kernels is None else self.collectives
        necessary = None if kernels is None or collectives is None else self.needs.necessary
        policy = self.needs.policy
        if isinstance(rates, DataSheetRates) and kernels is not None and necessary is not None:
            return times_by_form(kernels, necessary, policy, Evaluation(points), rates, collectives)
        places, distinct = _distinct_points(points)
        if isinstance(rates, KernelTableRates) and kernels is not None and necessary is not None:
            at = Evaluation({name: np.array([point[name] for point in distinct]) for name in points})
            steps = self._steps(distinct, rates)
            return times_by_tables(kernels, necessary, policy, distinct, at, rates, collectives, steps).taken(places)
        return times_by_point([predict(self.rebuilt.graph(point), rates) for point in distinct]).taken(places)

    def _steps(self, points: Sequence[Point], rates: KernelTableRates) -> dict[str, list[StagePieces]]:
        """The decoder's stage at every point, where an engine's rates know it as a whole."""
        from llm_perf_opt.timing.stage_work import stage_works
        from llm_perf_opt.timing.step.step_rates import StepRates, forward_at

        if not isinstance(rates, StepRates) or not points:
            return {}
        graph = self.rebuilt.graph(points[0])
        decoder = rates.decoder_of(graph)
        if decoder is None or rates.step_of(graph, stage_works(graph)) is None:
            return {}
        return {graph.phase: [rates.step(decoder, [forward_at(graph.phase, point)]) for point in points]}


def _unknown(at: Evaluation) -> Column:
    return np.full(at.size, None, dtype=object)


def _distinct_points(points: Points) -> tuple[Column, list[Point]]:
    """For each point the place of its like among the distinct ones, and these, not too many."""
    names = list(points)
    distinct, places = np.unique(np.stack([points[name] for name in names]), axis=1, return_inverse=True)
    if distinct.shape[1] > MOST_POINTS:
        raise PerfOptError(
            f"{distinct.shape[1]:,} points would each be analysed by itself.",
            why=f"a figure or a time is not a form of {' and '.join(names)}, and {MOST_POINTS:,} points are the most",
            fix="ask at fewer points",
        )
    return places.reshape(-1), [dict(zip(names, map(int, column), strict=True)) for column in distinct.T]


@dataclass(frozen=True, kw_only=True, eq=False)
class PhaseFunction:
    """Cells and open regions tile the domain without overlap."""

    phase: str
    domain: Region
    cells: tuple[FunctionCell, ...]
    open_regions: tuple[OpenRegion, ...]
    traces: int  # that were made to find it

    def cell_at(self, point: Point) -> FunctionCell | None:
        """The cell that holds a point; None where none is proven."""
        return next((cell for cell in self.cells if cell.cell.holds(point)), None)

    def graph_at(self, point: Point) -> CallGraph | None:
        """The call graph of a point, as a trace of it would be; None outside all cells."""
        cell = self.cell_at(point)
        return None if cell is None else cell.cell.program.graph_at(point)

    def cell_of_points(self, points: Points) -> Column:
        """Per point the number of its cell; -1 outside all of them."""
        size = len(next(iter(points.values())))
        cell_of_points = np.full(size, -1, dtype=np.int64)
        for number, cell in enumerate(self.cells):
            inside = np.ones(size, dtype=bool)
            for name, (low, high) in cell.region.items():
                inside &= (points[name] >= low) & (points[name] <= high)
            if (stride := cell.cell.stride) is not None:
                inside &= (points[stride.variable] % stride.chunk == 0) == stride.is_multiple
            cell_of_points[inside] = number
        return cell_of_points

    def figures(self, points: Points, names: Sequence[str] = FIGURES) -> dict[str, Column]:
        """Figures at many points, each exact; None where a figure is unknown. Every point must be in a cell."""
        parts = [(rows, cell.figures_at(inside, names)) for cell, rows, inside in self._by_cell(points)]
        if len(parts) == 1:
            return parts[0][1]
        size = len(next(iter(points.values())))
        return {name: _merged([(rows, part[name]) for rows, part in parts], size) for name in names}

    def times(self, points: Points, rates: RateSource) -> TimeColumns:
        """Times at many points by a source of rates, `predict` for all of them. Every point must be in a cell."""
        from llm_perf_opt.sweeps.function.figures.times import joined

        parts = [(rows, cell.times_at(inside, rates)) for cell, rows, inside in self._by_cell(points)]
        return joined(parts, len(next(iter(points.values()))))

    def origin_of(self, name: str) -> AnsweredBy:
        """How a figure is answered: by form, if that is so in every cell."""
        origins = {cell.origin_of(name) for cell in self.cells}
        return AnsweredBy.POINT if AnsweredBy.POINT in origins else AnsweredBy.FORM

    def _by_cell(self, points: Points) -> Iterator[tuple[FunctionCell, Column, Points]]:
        """Each cell that holds points, which ones, and these."""
        numbers = self.cell_of_points(points)
        outside = int((numbers < 0).sum())
        if outside:
            raise LookupError(f"{outside} points are outside the cells of the {self.phase}")
        present = np.unique(numbers)
        for number in present:
            rows = numbers == number
            inside = points if len(present) == 1 else {name: column[rows] for name, column in points.items()}
            yield self.cells[int(number)], rows, inside

    @cached_property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """Figure -> its form in each cell, as text."""
        return {name: tuple(_text(cell.figures, name) for cell in self.cells) for name in FIGURES}


def _text(forms: FigureForms | None, name: str) -> str:
    if forms is None or (name == PEAK and not forms.peak_bytes):
        return "priced point by point"
    return str(getattr(forms.total, name)) if name != PEAK else f"max({', '.join(map(str, forms.peak_bytes))})"


def _narrowed(column: Column) -> Column:
    """The column as int64 where every value is known and fits."""
    try:
        return column.astype(np.int64)
    except (OverflowError, TypeError):
        return column


def _merged(parts: Sequence[tuple[Column, Column]], size: int) -> Column:
    """Columns of different rows as one; int64 where all of them are."""
    is_small = all(column.dtype == np.int64 for _, column in parts)
    merged: Column = np.empty(size, dtype=np.int64 if is_small else object)
    for rows, column in parts:
        merged[rows] = column
    return merged


def find_function(phase: str, search: CellSearch | BoxSearch) -> PhaseFunction:
    """The function of a phase, from as many traces as its search is allowed."""
    cells: list[FunctionCell] = []
    left_open: list[OpenRegion] = []
    for cell in search.run():
        if isinstance(cell, OpenRegion):
            left_open.append(cell)
            continue
        try:
            cells.append(FunctionCell(cell=cell, figures=_checked_figures(cell)))
        except NoRule as refusal:
            cells.append(FunctionCell(cell=cell, figures=None, no_figures=refusal.parting))
    return PhaseFunction(
        phase=phase, domain=search.domain, cells=tuple(cells), open_regions=tuple(left_open), traces=search.traces.count
    )


def _checked_figures(cell: Cell) -> FigureForms:
    """The figures as forms, compared with rebuilt graphs at the corners and at some other points.

    A peak that is not what its forms give has none: it is found point by point.
    """
    forms = (looped_figures if cell.program.loops else figure_forms)(cell.program, cell.region)
    for point in generic_points(small_region(cell.program, cell.region), CHECKS):
        graph = cell.program.graph_at(point, with_observations=False)
        for name, value in costs_of(graph).items():
            if name == PEAK and (not forms.peak_bytes or value != forms.at(name, point)):
                forms = replace(forms, peak_bytes=())
            elif value != forms.at(name, point):
                raise NoRule(Parting(what=NO_RULE, op=None, text=f"{name} at {dict(point)} is not what its form gives"))
    return forms

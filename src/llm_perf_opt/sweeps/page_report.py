"""What a page costs: pixels, crops, tokens, FLOPs, cache and time, and what one more crop adds; pages side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.records import Json
from llm_perf_opt.core.report import (
    Axis,
    BarChart,
    Cell,
    Chart,
    Column,
    Kind,
    Line,
    LineChart,
    Note,
    Report,
    Series,
    Table,
    known_table_of,
    table_of,
)
from llm_perf_opt.core.units import format_count, format_flops, format_seconds
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.costs.memory.kv_cache import DECODE, kv_cache
from llm_perf_opt.costs.stage_costs import stage_costs
from llm_perf_opt.timing.predict import predict, total_wall
from llm_perf_opt.timing.rates import Band, RateSource

Grid = tuple[int, int]  # columns, rows
NOT_CUT: Grid = (1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """One workload as traced. `vision_flops` count all stages before the decoder, projector included.

    Times are low and high estimates on one device, None without a device; a decode step is one at this context.
    """

    grid: Grid | None  # None: the model does not cut pages
    image_tokens: int | None
    context_tokens: int | None
    vision_flops: int | None
    prefill_flops: int | None  # of the decoder
    cache_bytes: int | None
    prefill_low_s: float | None
    prefill_high_s: float | None
    decode_step_low_s: float | None
    decode_step_high_s: float | None

    @property
    def crops(self) -> int | None:
        """Tiles without the global view; a grid of one is a page that is not cut."""
        if self.grid is None:
            return None
        return 0 if self.grid == NOT_CUT else self.grid[0] * self.grid[1]

    @property
    def flops(self) -> int | None:
        """The FLOPs of the whole prefill."""
        return known_sum((self.vision_flops, self.prefill_flops))


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCost:
    """One page. Pages that are cut alike share one run."""

    name: str
    pixels: int | None  # None: only its crops were given
    run: RunCost


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedCrops:
    """The last row of crops of a grid, or its last column if there is one row: what it adds to the smaller grid.

    The figures are for each of the `crops` in it: differences of two runs, divided.
    """

    smaller: Grid
    grid: Grid
    crops: int
    image_tokens: float | None
    vision_flops: float | None
    prefill_flops: float | None
    cache_bytes: float | None
    prefill_low_s: float | None
    prefill_high_s: float | None


def run_cost(graphs: Sequence[CallGraph], rates: RateSource | None) -> RunCost:
    """The figures of one traced workload: its prefill, and a decode step if there is one."""
    prefill = graphs[0]
    stages = stage_costs(prefill).ran
    decode = next((graph for graph in graphs if graph.phase == DECODE), None)
    cache = kv_cache(graphs)
    header = prefill.workload
    wall = None if rates is None else _ends(total_wall(predict(prefill, rates)))
    step = None if rates is None or decode is None else _step(decode, rates)
    return RunCost(
        grid=_grid(header),
        image_tokens=_count(header, "image_tokens"),
        context_tokens=_count(header, "context_tokens"),
        vision_flops=known_sum((stage.flops for stage in stages if stage.name != prefill.phase), empty=0),
        prefill_flops=known_sum((stage.flops for stage in stages if stage.name == prefill.phase), empty=0),
        cache_bytes=None if cache is None else cache.bytes,
        prefill_low_s=None if wall is None else wall[0],
        prefill_high_s=None if wall is None else wall[1],
        decode_step_low_s=None if step is None else step[0],
        decode_step_high_s=None if step is None else step[1],
    )


def _grid(header: Mapping[str, Json]) -> Grid | None:
    crops = header.get("crops")
    if isinstance(crops, (list, tuple)) and len(crops) == 2 and all(type(side) is int for side in crops):
        return crops[0], crops[1]
    return None


def _count(header: Mapping[str, Json], name: str) -> int | None:
    value = header.get(name)
    return value if type(value) is int else None


def _ends(band: Band) -> tuple[float, float]:
    return band.low, band.high


def _step(decode: CallGraph, rates: RateSource) -> tuple[float, float] | None:
    steps = decode.runtime.get("decode_steps")
    return _ends(total_wall(predict(decode, rates)).times(1 / steps)) if type(steps) is int and steps else None


def smaller_grid(grid: Grid) -> Grid | None:
    """The grid without its last row of crops, or without its last column if there is one row; None: it is not cut."""
    columns, rows = grid
    if grid == NOT_CUT:
        return None
    return (columns, rows - 1) if rows > 1 else (columns - 1, 1)


def added_crops(smaller: RunCost, larger: RunCost) -> AddedCrops | None:
    """What one crop of the last row or column adds; None where the two runs do not differ in crops."""
    if smaller.grid is None or larger.grid is None or smaller.crops is None or larger.crops is None:
        return None
    crops = larger.crops - smaller.crops
    if crops <= 0:
        return None

    def each(before: float | None, after: float | None) -> float | None:
        return None if before is None or after is None else (after - before) / crops

    return AddedCrops(
        smaller=smaller.grid,
        grid=larger.grid,
        crops=crops,
        image_tokens=each(smaller.image_tokens, larger.image_tokens),
        vision_flops=each(smaller.vision_flops, larger.vision_flops),
        prefill_flops=each(smaller.prefill_flops, larger.prefill_flops),
        cache_bytes=each(smaller.cache_bytes, larger.cache_bytes),
        prefill_low_s=each(smaller.prefill_low_s, larger.prefill_low_s),
        prefill_high_s=each(smaller.prefill_high_s, larger.prefill_high_s),
    )


Cells = Mapping[Column, Callable[[PageCost], Cell]]
_FEWEST_POINTS = 3  # of a curve over crops


def page_report(
    title: str, pages: Sequence[PageCost], added: Sequence[AddedCrops], *, machine: str | None, notes: Sequence[Note]
) -> Report:
    """One row per page, then one per step from a grid to the next larger one."""
    tables = [_cost_table(pages), *([_time_table(pages, machine)] if machine else [])]
    if added:
        tables.append(_added_table(added, has_times=machine is not None))
    return Report(
        title=title,
        tables=tuple(tables),
        charts=tuple(_charts(pages, machine)),
        notes=(*notes, *_notes(pages, added)),
    )


def page_lines(model: str, pages: Sequence[PageCost], added: Sequence[AddedCrops], where: str) -> tuple[str, ...]:
    """The range of costs, the range of times, and what one more crop adds; `where`: GPU and kernels, or nothing."""
    costly = [page for page in pages if page.run.flops is not None]
    if not costly:
        return (f"{model}: the FLOPs of {len(pages)} pages are not known.",)
    least, most = (choose(costly, key=lambda page: page.run.flops or 0) for choose in (min, max))
    lines = [f"{model}: a page takes from {_page_text(least)} to {_page_text(most)}."]
    if where and (fast := _times_text(least)) and (slow := _times_text(most)):
        lines.append(f"On {where} the prefill takes {fast} ({least.name}) up to {slow} ({most.name}).")
    if added and (step := added[-1]).vision_flops is not None:
        tokens = "" if step.image_tokens is None else f" and {format_count(step.image_tokens)} tokens"
        lines.append(f"One more crop adds {format_flops(step.vision_flops)} to vision{tokens}.")
    return tuple(lines)


def _page_text(page: PageCost) -> str:
    tokens = "" if page.run.image_tokens is None else f", {format_count(page.run.image_tokens)} vision tokens"
    return f"{format_flops(page.run.flops or 0)}{tokens} ({page.name})"


def _times_text(page: PageCost) -> str:
    low, high = page.run.prefill_low_s, page.run.prefill_high_s
    return "" if low is None or high is None else f"{format_seconds(low)} to {format_seconds(high)}"


def grid_text(grid: Grid | None) -> str | None:
    """`2x3`, or that the page is not cut; None: the model cuts none."""
    if grid is None:
        return None
    return "not cut" if grid == NOT_CUT else f"{grid[0]}x{grid[1]}"


def _cost_table(pages: Sequence[PageCost]) -> Table:
    cells: Cells = {
        Column("page"): lambda page: page.name,
        Column("pixels", Kind.COUNT): lambda page: page.pixels,
        Column("crop grid"): lambda page: grid_text(page.run.grid),
        Column("crops", Kind.COUNT): lambda page: page.run.crops,
        Column("vision tokens", Kind.COUNT): lambda page: page.run.image_tokens,
        Column("context tokens", Kind.COUNT): lambda page: page.run.context_tokens,
        Column("FLOPs of vision", Kind.FLOPS): lambda page: page.run.vision_flops,
        Column("of decoder prefill", Kind.FLOPS): lambda page: page.run.prefill_flops,
        Column("of both", Kind.FLOPS): lambda page: page.run.flops,
        Column("KV cache", Kind.BYTES): lambda page: page.run.cache_bytes,
    }
    return known_table_of("What a page costs", pages, _without_grid(pages, cells))


def _time_table(pages: Sequence[PageCost], machine: str | None) -> Table:
    cells: Cells = {
        Column("page"): lambda page: page.name,
        Column("crop grid"): lambda page: grid_text(page.run.grid),
        Column("prefill, low", Kind.SECONDS): lambda page: page.run.prefill_low_s,
        Column("prefill, high", Kind.SECONDS): lambda page: page.run.prefill_high_s,
        Column("decode step, low", Kind.SECONDS): lambda page: page.run.decode_step_low_s,
        Column("decode step, high", Kind.SECONDS): lambda page: page.run.decode_step_high_s,
    }
    return known_table_of(f"How long it takes on {machine}", pages, _without_grid(pages, cells))


def _without_grid(pages: Sequence[PageCost], cells: Cells) -> Cells:
    """Pages that are given as grids have the grid in their name already."""
    if any(page.name != grid_text(page.run.grid) for page in pages):
        return cells
    return {column: cell for column, cell in cells.items() if column.name != "crop grid"}


def _added_table(added: Sequence[AddedCrops], *, has_times: bool) -> Table:
    cells: dict[Column, Callable[[AddedCrops], Cell]] = {
        Column("from"): lambda step: grid_text(step.smaller),
        Column("to"): lambda step: grid_text(step.grid),
        Column("crops more", Kind.COUNT): lambda step: step.crops,
        Column("tokens each", Kind.COUNT): lambda step: _number(step.image_tokens),
        Column("vision FLOPs each", Kind.FLOPS): lambda step: _number(step.vision_flops),
        Column("decoder FLOPs each", Kind.FLOPS): lambda step: _number(step.prefill_flops),
        Column("KV cache each", Kind.BYTES): lambda step: _number(step.cache_bytes),
    }
    if has_times:
        cells[Column("prefill each, low", Kind.SECONDS)] = lambda step: step.prefill_low_s
        cells[Column("prefill each, high", Kind.SECONDS)] = lambda step: step.prefill_high_s
    return table_of("What one more crop adds", added, cells)


def _number(value: float | None) -> float | None:
    """Whole numbers as such."""
    return None if value is None else int(value) if value.is_integer() else value


def _charts(pages: Sequence[PageCost], machine: str | None) -> Iterator[Chart]:
    names = tuple(page.name for page in pages)
    yield BarChart(
        title="FLOPs of the prefill, by page",
        categories=names,
        series=(
            Series("vision", tuple(page.run.vision_flops for page in pages)),
            Series("decoder", tuple(page.run.prefill_flops for page in pages)),
        ),
        kind=Kind.FLOPS,
        is_stacked=True,
        caption="The model as written computes every position and every pair of query and key.",
    )
    if machine is not None:
        yield BarChart(
            title=f"Time of the prefill on {machine}, by page",
            categories=names,
            series=(
                Series("low", tuple(page.run.prefill_low_s for page in pages)),
                Series("high", tuple(page.run.prefill_high_s for page in pages)),
            ),
            kind=Kind.SECONDS,
            caption="A run is expected to take between the two.",
        )
    yield from _curve(pages)


def _curve(pages: Sequence[PageCost]) -> Iterator[Chart]:
    """FLOPs over the number of crops, where the pages differ in it."""
    runs = {page.run.grid: page.run for page in pages}.values()
    ordered = sorted((run for run in runs if run.crops is not None), key=lambda run: (run.crops, run.image_tokens))
    if len({run.crops for run in ordered}) < _FEWEST_POINTS:
        return
    figures = {
        "vision": [(run.crops, run.vision_flops) for run in ordered],
        "decoder": [(run.crops, run.prefill_flops) for run in ordered],
        "both": [(run.crops, run.flops) for run in ordered],
    }
    yield LineChart(
        title="FLOPs of the prefill, by crops",
        x=Axis("crops", Kind.COUNT),
        y=Axis("FLOPs", Kind.FLOPS),
        lines=tuple(
            Line(name, tuple((x, y) for x, y in points if x is not None and y is not None))
            for name, points in figures.items()
        ),
        caption="Each crop adds the same vision work; the decoder's attention grows with the square of the tokens.",
    )


def _notes(pages: Sequence[PageCost], added: Sequence[AddedCrops]) -> Iterator[Note]:
    shared: dict[int, list[str]] = {}
    for page in pages:
        shared.setdefault(id(page.run), []).append(page.name)
    for names in (names for names in shared.values() if len(names) > 1):
        yield Note(f"{', '.join(names)} look the same to the model: they share one trace.")
    if added:
        yield Note(
            "One more crop: the grid is compared with the grid without its last row of crops, or without its last "
            "column if there is one row. The difference is divided by the number of crops in it."
        )
    if any(step.prefill_high_s == 0 for step in added):
        yield Note(
            "A time that does not grow is the time of the kernel launches: the host takes longer to launch the kernels "
            "than the device takes to run them. --execution fused leaves the kernel launches out."
        )

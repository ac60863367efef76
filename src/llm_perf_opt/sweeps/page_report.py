"""Pages side by side, as tables and charts: size, tokens, FLOPs, cache, time, and one more crop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

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
from llm_perf_opt.sweeps.page_costs import NOT_CUT, AddedCrops, Grid, PageCost

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


def page_lines(
    model: str, pages: Sequence[PageCost], added: Sequence[AddedCrops], machine: str | None
) -> tuple[str, ...]:
    """The range of costs, the range of times, and what one more crop adds."""
    costly = [page for page in pages if page.run.flops is not None]
    if not costly:
        return (f"{model}: FLOPs of {len(pages)} pages are not known.",)
    least, most = (choose(costly, key=lambda page: page.run.flops or 0) for choose in (min, max))
    lines = [f"{model}: a page takes {_page_text(least)}, to {_page_text(most)}."]
    if machine is not None and (fast := _times_text(least)) and (slow := _times_text(most)):
        lines.append(f"On {machine}: prefill {fast} ({least.name}), to {slow} ({most.name}).")
    if added and (step := added[-1]).vision_flops is not None:
        tokens = "" if step.image_tokens is None else f" and {format_count(step.image_tokens)} tokens"
        lines.append(f"One more crop adds {format_flops(step.vision_flops)} of vision{tokens}.")
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
    """Pages that are given as grids are named after them already."""
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
        caption="As written: every position and every pair of query and key.",
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
            caption="A run is expected between the two.",
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
        yield Note(f"{', '.join(names)} are shown to the model alike: one trace is the figure of all.")
    if added:
        yield Note(
            "One more crop: the grid against the one without its last row of crops, or its last column if there is one "
            "row; the difference is divided by the crops in it."
        )
    if any(step.prefill_high_s == 0 for step in added):
        yield Note(
            "A time that does not grow is that of the launches: the host takes longer to launch the kernels than the "
            "device to run them. --execution fused leaves the launches out."
        )

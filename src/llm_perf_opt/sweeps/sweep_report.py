"""A sweep as a report: the answers at a glance, every point, and how the figures were proven."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.number_ranges import NumberRange, thinned
from llm_perf_opt.core.report import (
    Axis,
    Cell,
    Chart,
    Column,
    Kind,
    Level,
    Line,
    LineChart,
    Mark,
    Note,
    Table,
    known_table_of,
    table_of,
)
from llm_perf_opt.core.units import format_bytes, format_count, format_flops, format_seconds
from llm_perf_opt.sweeps.function.figures.packed import CONTEXT
from llm_perf_opt.sweeps.sweep_points import (
    BATCH,
    PREFILL,
    SEQUENCE,
    AddedCost,
    Bend,
    LargestBatch,
    PointOrigin,
    SweepPoint,
)

EVERY_POINT, GLANCE, CELLS, OPEN = "Every point", "At a glance", "Proven cells", "Not proven"
_SHOWN = 4  # values of each range in a terminal
_LONGEST_FORM = 90  # characters
_NOTHING_S = 1e-12
_NAMED_GPUS = 6  # in one line


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenCell:
    """A region in which a phase is one program. `flops` is its formula; None: figures are worked out point by point.

    `only` says which contexts of the range it holds, None: all. At `checked_points` a trace was the same run.
    """

    phase: str
    batch: tuple[int, int]
    context: tuple[int, int]
    only: str | None
    checked_points: int
    flops: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCell:
    """A region that no traces prove, and the reason."""

    phase: str
    batch: tuple[int, int]
    context: tuple[int, int]
    only: str | None
    why: str


def glance_rows(
    added: Sequence[AddedCost],
    largest: Sequence[LargestBatch],
    bends: Sequence[Bend],
    points: Sequence[SweepPoint],
    device_name: str | None,
) -> Iterator[tuple[str, str]]:
    """Questions and answers of one GPU; `largest` and `points` at the contexts to name."""
    yield from _added_rows(added)
    if device_name is not None:
        yield f"Which batch fits on {device_name}?", _largest_texts(largest) or "not known"
        yield from _limit_rows(bends, [point for point in points if point.bound_by is not None])


def glance_table(rows_by_gpu: Mapping[str | None, Sequence[tuple[str, str]]]) -> Table:
    """A row per question; of several GPUs each has its own rows."""
    columns = (Column("question"), Column("answer"))
    if len(rows_by_gpu) == 1:
        return Table(title=GLANCE, columns=columns, rows=tuple(*rows_by_gpu.values()))
    rows = tuple((gpu, *row) for gpu, rows in rows_by_gpu.items() for row in rows)
    return Table(title=GLANCE, columns=(Column("GPU"), *columns), rows=rows)


def gpu_table(points: Sequence[SweepPoint], largest: Sequence[LargestBatch], batch: int, context: int) -> Table:
    """A row per GPU at one point: the times of each phase, the bottleneck of the last, and how many sequences fit."""
    here = {(point.gpu, point.phase): point for point in points if (point.batch, point.context) == (batch, context)}
    limits = {limit.gpu: limit for limit in largest if limit.context == context}
    phases = list(dict.fromkeys(phase for _, phase in here))
    ends = [(phase, end) for phase in phases for end in ("low", "high")]
    columns = [Column("GPU"), *(Column(f"{phase}, {end}", Kind.SECONDS) for phase, end in ends)]
    columns += [
        Column(f"bottleneck of {phases[-1]}"),
        Column("largest batch", Kind.COUNT),
        Column("server", Kind.COUNT),
    ]
    rows = tuple(
        (
            gpu,
            *(getattr(here[gpu, phase], f"{end}_s") for phase, end in ends),
            here[gpu, phases[-1]].bound_by,
            limit.batch,
            limit.served,
        )
        for gpu, limit in limits.items()
    )
    return Table(title=f"Each GPU at batch {batch:,} and context {context:,}", columns=tuple(columns), rows=rows)


def _added_rows(added: Sequence[AddedCost]) -> Iterator[tuple[str, str]]:
    for cost in sorted(added, key=lambda added_cost: added_cost.what):
        place = f"at batch {cost.batch:,} and context {cost.context:,}"
        where = place if cost.what == SEQUENCE else f"{place}, each sequence one token longer"
        yield f"What does one more {cost.what} add to {cost.phase}?", f"{_added_text(cost)}; {where}"


def headline(added: Sequence[AddedCost]) -> str:
    """One more sequence and one more token in the last phase."""
    last = [cost for cost in added if cost.phase == added[-1].phase]
    if not last:
        return "not known"
    parts = "; ".join(f"one more {cost.what} adds {_added_text(cost)}" for cost in last)
    return f"{last[0].phase} at batch {last[0].batch:,} and context {last[0].context:,}: {parts}"


def added_line(added: Sequence[AddedCost], *, timed: bool) -> str:
    """The same in fewer words: `decode, +1 sequence: 374 kFLOP, 50.0 us to 200 us; +1 token of context: ...`."""
    last = [cost for cost in added if cost.phase == added[-1].phase]
    texts = [f"+1 {cost.what}: {_short_text(cost, timed)}" for cost in last]
    return f"{last[0].phase}, {'; '.join(texts)}" if last else "what one more sequence adds is not known"


def _short_text(cost: AddedCost, timed: bool) -> str:
    work = "FLOPs not known" if cost.flops is None else format_flops(cost.flops)
    return ", ".join(filter(None, (work, _time_text(cost) if timed else None)))


def largest_line(largest: Sequence[LargestBatch]) -> str:
    """The largest batch at the shortest and longest context; for several GPUs at the longest, the smallest first."""
    shortest, longest = (choose(limit.context for limit in largest) for choose in (min, max))
    if len({limit.gpu for limit in largest}) == 1:
        ends = [limit for limit in largest if limit.context in (shortest, longest)]
        return _largest_texts(ends)
    of_each = sorted((limit for limit in largest if limit.context == longest), key=lambda limit: limit.batch or 0)
    named = of_each if len(of_each) <= _NAMED_GPUS else (of_each[0], of_each[-1])
    more = f"; {len(of_each) - len(named)} GPUs between them" if len(named) < len(of_each) else ""
    return f"context {longest:,}: " + "; ".join(f"{limit.gpu} {_largest_text(limit)}" for limit in named) + more


def _added_text(cost: AddedCost) -> str:
    parts = [
        None if cost.flops is None else format_flops(cost.flops),
        None if cost.bytes_moved is None else f"{format_bytes(cost.bytes_moved)} moved",
        None if cost.cache_bytes is None else f"{format_bytes(cost.cache_bytes)} of cache",
        _time_text(cost),
    ]
    return ", ".join(part for part in parts if part) or "not known"


def _time_text(cost: AddedCost) -> str | None:
    """A difference of two times, or of two bands; what is below a picosecond is the rounding of floats."""
    ends = (cost.low_s, cost.high_s) if cost.expected_s is None else (cost.expected_s,)
    known = [end for end in ends if end is not None]
    if len(known) < len(ends):
        return None
    if max(map(abs, known)) < _NOTHING_S:
        return "no time"
    return " to ".join(format_seconds(end if abs(end) > _NOTHING_S else 0.0) for end in known)


def _largest_texts(largest: Iterable[LargestBatch]) -> str:
    return "; ".join(f"context {limit.context:,}: {_largest_text(limit)}" for limit in largest)


def _largest_text(limit: LargestBatch) -> str:
    if limit.batch is None:
        fits = "not known"
    elif limit.next_batch is None:
        fits = f"{limit.batch:,} or more"
    elif limit.batch == 0:
        fits = f"none, not even {limit.next_batch:,}"
    else:
        fits = f"{limit.batch:,}" + ("" if limit.next_batch == limit.batch + 1 else f", but not {limit.next_batch:,}")
    served = "" if limit.served is None else f" (a server: {limit.served:,})"
    return f"{fits}{served}"


def _limit_rows(bends: Sequence[Bend], points: Sequence[SweepPoint]) -> Iterator[tuple[str, str]]:
    """The bottleneck of a step after the prefill, by context, and from which batch on."""
    for phase in dict.fromkeys(point.phase for point in points if point.phase != PREFILL):
        of_phase = [point for point in points if point.phase == phase]
        contexts = sorted({point.context for point in of_phase})
        texts = (f"context {context:,}: {_limits(context, bends, of_phase)}" for context in contexts)
        yield f"What is the bottleneck of {phase}?", "; ".join(texts)


def _limits(context: int, bends: Sequence[Bend], decode: Sequence[SweepPoint]) -> str:
    first = min((point for point in decode if point.context == context), key=lambda point: point.batch)
    steps = [f"{bend.bound_by} from batch {bend.batch:,}" for bend in bends if bend.context == context]
    return ", ".join((str(first.bound_by), *steps)) if steps else f"{first.bound_by} throughout"


Cells = Mapping[Column, Callable[[SweepPoint], Cell]]
_COST: Cells = {
    Column("GPU"): lambda point: point.gpu,
    Column("phase"): lambda point: point.phase,
    Column("batch", Kind.COUNT): lambda point: point.batch,
    Column("context", Kind.COUNT): lambda point: point.context,
    Column("FLOPs", Kind.FLOPS): lambda point: point.flops,
    Column("vector FLOPs", Kind.FLOPS): lambda point: point.vector_flops,
    Column("bytes moved", Kind.BYTES): lambda point: point.bytes_moved,
    Column("kernel launches", Kind.COUNT): lambda point: point.launches,
    Column("KV cache", Kind.BYTES): lambda point: point.cache_bytes,
    Column("weights", Kind.BYTES): lambda point: point.weight_bytes,
    Column("peak", Kind.BYTES): lambda point: point.peak_bytes,
    Column("needed in all", Kind.BYTES): lambda point: point.needed_bytes,
    Column("lower bound", Kind.SECONDS): lambda point: point.lower_bound_s,
    Column("data sheet low", Kind.SECONDS): lambda point: point.low_s if point.expected_s is None else None,
    Column("data sheet high", Kind.SECONDS): lambda point: point.high_s if point.expected_s is None else None,
    Column("low", Kind.SECONDS): lambda point: None if point.expected_s is None else point.low_s,
    Column("expected", Kind.SECONDS): lambda point: point.expected_s,
    Column("high", Kind.SECONDS): lambda point: None if point.expected_s is None else point.high_s,
    Column("tokens per s, low", Kind.COUNT): lambda point: point.tokens_per_s_low,
    Column("tokens per s, high", Kind.COUNT): lambda point: point.tokens_per_s_high,
    Column("bottleneck"): lambda point: point.bound_by,
    Column("figures from"): lambda point: str(point.origin),
}
_LEFT_OUT_IN_SHORT = ("vector FLOPs", "weights", "peak", "figures from")


def points_table(points: Sequence[SweepPoint]) -> Table:
    """A row per phase and point; a column of which nothing is known is left out."""
    return known_table_of(EVERY_POINT, points, _COST)


def short_table(points: Sequence[SweepPoint]) -> Table:
    """Some points and the figures that are asked for most, for a terminal."""
    batches, contexts = (
        thinned(sorted({getattr(point, name) for point in points}), _SHOWN) for name in ("batch", "context")
    )
    shown = [point for point in points if point.batch in batches and point.context in contexts]
    left_out = _LEFT_OUT_IN_SHORT if len({point.gpu for point in points}) > 1 else (*_LEFT_OUT_IN_SHORT, "GPU")
    cells = {column: cell for column, cell in _COST.items() if column.name not in left_out}
    title = EVERY_POINT if len(shown) == len(points) else f"{len(shown):,} of {len(points):,} points"
    return known_table_of(title, shown, cells)


def proof_tables(cells: Sequence[ProvenCell], left_open: Sequence[OpenCell]) -> tuple[Table, ...]:
    """The cells with their formulas, and the regions left open with the reason."""
    proven = table_of(
        CELLS,
        cells,
        {
            Column("phase"): lambda cell: cell.phase,
            Column("batch"): lambda cell: _span(cell.batch),
            Column("context"): lambda cell: _span(cell.context, cell.only),
            Column("points checked", Kind.COUNT): lambda cell: cell.checked_points,
            Column("FLOPs"): lambda cell: "point by point" if cell.flops is None else _cut(cell.flops),
        },
    )
    if not left_open:
        return (proven,)
    unproven = table_of(
        OPEN,
        left_open,
        {
            Column("phase"): lambda region: region.phase,
            Column("batch"): lambda region: _span(region.batch),
            Column("context"): lambda region: _span(region.context, region.only),
            Column("reason"): lambda region: region.why,
        },
    )
    return proven, unproven


def _span(ends: tuple[int, int], only: str | None = None) -> str:
    low, high = ends
    text = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return text if only is None else f"{text}, {only}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_FORM else f"{text[: _LONGEST_FORM - 4].rstrip()} ..."


def range_text(values: NumberRange) -> str:
    """`1 to 512`, or the values that were listed."""
    return _span(values.ends) if values.is_range else ", ".join(map(format_count, values.values))


def proof_notes(points: Sequence[SweepPoint], traces: int) -> Iterator[Note]:
    """What was traced and compared, and what is not known."""
    yield Note(
        f"Made from {traces:,} traces of single points. In each cell the program was rebuilt at its corners, at random "
        "points and at every other traced point, and was the same run as the trace, op by op, shape by shape. Inside a "
        "proven cell every figure is exact, not interpolated."
    )
    traced = sum(point.origin is PointOrigin.TRACE for point in points)
    if traced:
        yield Note(f"{traced:,} rows are outside all proven cells; each comes from a trace of that point.")
    failures: dict[str, list[SweepPoint]] = {}
    for point in points:
        if point.failure is not None:
            failures.setdefault(point.failure, []).append(point)
    for failure, failed in failures.items():
        texts = (f"{point.phase} at batch {point.batch:,} and context {point.context:,}" for point in failed)
        places = "; ".join(dict.fromkeys(texts))
        yield Note(f"Failed, and not known: {places}. Reason: {failure}", Level.WARNING)
    unknown = sum(point.origin is PointOrigin.OPEN for point in points)
    if unknown:
        yield Note(
            f"{unknown:,} of {len(points):,} rows are outside all proven cells and are not known. Ask for fewer points "
            "there, which are then traced one by one, or trace one with llm-perf-opt trace.",
            Level.WARNING,
        )


Value = Callable[[SweepPoint], float | None]
_FEWEST = 2  # points of a curve
_STEPS = "Where a line jumps, other measured kernel efficiencies begin to apply."


@dataclass(frozen=True, slots=True)
class SweepFigure:
    """One figure that is drawn over batch and over context."""

    title: str
    axis: str
    kind: Kind
    of: Value
    caption: str


_FIGURES = (
    SweepFigure(
        "FLOPs",
        "FLOPs",
        Kind.FLOPS,
        lambda point: point.flops,
        "The model as written computes every position and every pair.",
    ),
    SweepFigure(
        "Bytes moved",
        "bytes",
        Kind.BYTES,
        lambda point: point.bytes_moved,
        "Each op reads its inputs and writes its outputs.",
    ),
    SweepFigure(
        "KV cache",
        "bytes",
        Kind.BYTES,
        lambda point: point.cache_bytes if point.phase != PREFILL else None,
        "The cache that a decode step reads.",
    ),
    SweepFigure(
        "Memory needed",
        "bytes",
        Kind.BYTES,
        lambda point: point.needed_bytes,
        "Weights, buffers, inputs, and activations at the peak.",
    ),
    SweepFigure(
        "Time",
        "time",
        Kind.SECONDS,
        lambda point: point.high_s,
        f"The high estimate for one run of the phase. {_STEPS}",
    ),
)


def charts_over(along: str, curves: Sequence[SweepPoint], *devices: Device) -> Iterator[Chart]:
    """Every figure over batch, a line per phase and context; or over context, a line per phase and batch.

    Times are of the first device; the memory of each is a line.
    """
    across = CONTEXT if along == BATCH else BATCH
    for figure in _FIGURES:
        lines = tuple(_lines(curves, along, across, figure.of))
        if not lines:
            continue
        where = f" on {devices[0].name}" if figure.kind is Kind.SECONDS else ""
        if figure.title == "Memory needed":
            lines = (*lines, *(_level(device, lines) for device in devices))
        yield LineChart(
            title=f"{figure.title} over {along}{where}",
            x=Axis(along, Kind.COUNT, is_log=True, base=2),
            y=Axis(figure.axis, figure.kind, is_log=True),
            lines=lines,
            caption=figure.caption,
        )


def is_of_time(chart: Chart) -> bool:
    """Whether the GPU decides what it shows."""
    return isinstance(chart, LineChart) and chart.y.kind is Kind.SECONDS


def _lines(curves: Sequence[SweepPoint], along: str, across: str, value: Value) -> Iterator[Line]:
    groups: dict[tuple[str, int], dict[int, float]] = {}
    for point in curves:
        number = value(point)
        if number is not None:
            groups.setdefault((point.phase, getattr(point, across)), {})[getattr(point, along)] = float(number)
    for (phase, other), found_at in groups.items():
        if len(found_at) >= _FEWEST:
            shown = f"{across} {other:,}"
            yield Line(f"{phase}, {shown}", tuple(sorted(found_at.items())), _style(phase), family=shown)


def _style(phase: str) -> str:
    return "dashed" if phase == PREFILL else "line"


def _level(device: Device, lines: Sequence[Line]) -> Line:
    """The memory of the device, from the first to the last place."""
    ends = [x for line in lines for x, _ in line.points]
    size = float(device.memory_bytes)
    return Line(f"memory of {device.name}", ((min(ends), size), (max(ends), size)))


def per_token_chart(curves: Sequence[SweepPoint], device: Device) -> Iterator[Chart]:
    """Prefill against decode: the time of one token, over the batch."""
    lines = tuple(_lines(curves, BATCH, CONTEXT, _per_token))
    if lines:
        yield LineChart(
            title=f"Time per token on {device.name}: prefill against decode",
            x=Axis(BATCH, Kind.COUNT, is_log=True, base=2),
            y=Axis("time per token", Kind.SECONDS, is_log=True),
            lines=lines,
            caption="The high estimate over the tokens that a prefill computes or a decode step generates.",
        )


def _per_token(point: SweepPoint) -> float | None:
    return None if point.high_s is None else point.high_s / point.tokens


def bend_chart(curves: Sequence[SweepPoint], bends: Sequence[Bend], context: int, device: Device) -> Iterator[Chart]:
    """The low and high estimate of a decode step per token over the batch, with a mark where the bottleneck changes."""
    step = {point.batch: point for point in curves if point.phase != PREFILL and point.context == context}
    ordered = [step[batch] for batch in sorted(step) if step[batch].high_s is not None]
    if len(ordered) < _FEWEST:
        return
    estimates: dict[str, tuple[str, Value]] = {
        "high estimate": ("line", lambda point: point.high_s),
        "low estimate": ("line", lambda point: point.low_s),
        "lower bound": ("dashed", lambda point: point.lower_bound_s),
    }
    lines = tuple(
        Line(name, tuple((point.batch, seconds / point.batch) for point in ordered if (seconds := of(point))), style)
        for name, (style, of) in estimates.items()
    )
    first = ordered[0]
    marked = [(first, f"bottleneck: {first.bound_by}")]
    marked += [
        (step[bend.batch], f"{bend.bound_by} from batch {bend.batch:,}")
        for bend in bends
        if bend.context == context and bend.batch in step
    ]
    yield LineChart(
        title=f"Where {first.phase} bends on {device.name}, context {context:,}",
        x=Axis(BATCH, Kind.COUNT, is_log=True, base=2),
        y=Axis("time per token", Kind.SECONDS, is_log=True),
        lines=tuple(line for line in lines if line.points),
        marks=tuple(Mark(point.batch, (point.high_s or 0.0) / point.batch, text) for point, text in marked),
        caption="Where kernel launches or reading the weights are the bottleneck, one more sequence is nearly free and "
        f"the time per token falls; where compute or reading the cache is, it stays. {_STEPS}",
    )


def fit_chart(largest: Sequence[LargestBatch], device: Device) -> Iterator[Chart]:
    """The largest batch over the context."""
    lines = (
        Line("as traced", tuple((batch.context, batch.batch) for batch in largest if batch.batch)),
        Line("a server", tuple((batch.context, batch.served) for batch in largest if batch.served), "dashed"),
    )
    shown = tuple(line for line in lines if len(line.points) >= _FEWEST)
    if shown:
        yield LineChart(
            title=f"Largest batch that fits on {device.name}",
            x=Axis(CONTEXT, Kind.COUNT, is_log=True, base=2),
            y=Axis(BATCH, Kind.COUNT, is_log=True, base=2),
            lines=shown,
            caption="As traced: weights, cache and activations of the model's own code, within the range of the sweep. "
            "A server: an engine with a paged cache and a prefill in chunks.",
        )

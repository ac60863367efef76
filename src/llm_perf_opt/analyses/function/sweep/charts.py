"""Charts of a sweep: cost, memory and time over batch and over context, where decode bends, which batch fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.analyses.function.sweep.findings import Bend, LargestBatch
from llm_perf_opt.analyses.function.sweep.points import BATCH, CONTEXT, PREFILL, SweepPoint
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.report import Axis, Chart, Kind, Line, LineChart, Mark

Value = Callable[[SweepPoint], float | None]
_FEWEST = 2  # points of a curve
_STEPS = "A step in a band: from there on other measured efficiencies of kernels apply."


@dataclass(frozen=True, slots=True)
class SweepFigure:
    """One figure that is drawn over batch and over context."""

    title: str
    axis: str
    kind: Kind
    of: Value
    caption: str


_FIGURES = (
    SweepFigure("FLOPs", "FLOPs", Kind.FLOPS, lambda point: point.flops, "As written: every position and every pair."),
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
        "What a decode step is handed.",
    ),
    SweepFigure(
        "Memory needed",
        "bytes",
        Kind.BYTES,
        lambda point: point.needed_bytes,
        "Weights, buffers, inputs and what is alive at the peak.",
    ),
    SweepFigure(
        "Time",
        "time",
        Kind.SECONDS,
        lambda point: point.high_s,
        f"The high edge of the band, of one run of the phase. {_STEPS}",
    ),
)


def charts_over(along: str, curves: Sequence[SweepPoint], device: Device | None) -> Iterator[Chart]:
    """Every figure over batch, a line per phase and context; or over context, a line per phase and batch."""
    across = CONTEXT if along == BATCH else BATCH
    for figure in _FIGURES:
        lines = tuple(_lines(curves, along, across, figure.of))
        if not lines:
            continue
        where = "" if device is None or figure.kind is not Kind.SECONDS else f" on {device.name}"
        if figure.title == "Memory needed" and device is not None:
            lines = (*lines, _level(device, lines))
        yield LineChart(
            title=f"{figure.title} over {along}{where}",
            x=Axis(along, Kind.COUNT, is_log=True, base=2),
            y=Axis(figure.axis, figure.kind, is_log=True),
            lines=lines,
            caption=figure.caption,
        )


def _lines(curves: Sequence[SweepPoint], along: str, across: str, value: Value) -> Iterator[Line]:
    groups: dict[tuple[str, int], dict[int, float]] = {}
    for point in curves:
        found = value(point)
        if found is not None:
            groups.setdefault((point.phase, getattr(point, across)), {})[getattr(point, along)] = float(found)
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
            caption="The high edge of the band over the tokens that a prefill computes or a decode step generates.",
        )


def _per_token(point: SweepPoint) -> float | None:
    return None if point.high_s is None else point.high_s / point.tokens


def bend_chart(curves: Sequence[SweepPoint], bends: Sequence[Bend], context: int, device: Device) -> Iterator[Chart]:
    """The band of a decode step per token over the batch, with a mark where something else begins to limit it."""
    step = {point.batch: point for point in curves if point.phase != PREFILL and point.context == context}
    ordered = [step[batch] for batch in sorted(step) if step[batch].high_s is not None]
    if len(ordered) < _FEWEST:
        return
    edges: dict[str, tuple[str, Value]] = {
        "high edge": ("line", lambda point: point.high_s),
        "low edge": ("line", lambda point: point.low_s),
        "lower bound": ("dashed", lambda point: point.lower_bound_s),
    }
    lines = tuple(
        Line(name, tuple((point.batch, seconds / point.batch) for point in ordered if (seconds := of(point))), style)
        for name, (style, of) in edges.items()
    )
    first = ordered[0]
    found = [(first, f"limited by {first.bound_by}")]
    found += [
        (step[bend.batch], f"{bend.bound_by} from batch {bend.batch:,}")
        for bend in bends
        if bend.context == context and bend.batch in step
    ]
    yield LineChart(
        title=f"Where {first.phase} bends on {device.name}, context {context:,}",
        x=Axis(BATCH, Kind.COUNT, is_log=True, base=2),
        y=Axis("time per token", Kind.SECONDS, is_log=True),
        lines=tuple(line for line in lines if line.points),
        marks=tuple(Mark(point.batch, (point.high_s or 0.0) / point.batch, text) for point, text in found),
        caption="Where launches or reading the weights limit a step, one more sequence is nearly free and the time per "
        f"token falls; where compute or reading the cache does, it stays. {_STEPS}",
    )


def fit_chart(largest: Sequence[LargestBatch], device: Device) -> Iterator[Chart]:
    """The largest batch over the context."""
    lines = (
        Line("as traced", tuple((one.context, one.batch) for one in largest if one.batch)),
        Line("a server", tuple((one.context, one.served) for one in largest if one.served), "dashed"),
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

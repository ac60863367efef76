"""The page of an advice: three lines, the ladder, the changes, and behind them the ladder of each stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from llm_perf_opt.advice.advise import Advice, Change
from llm_perf_opt.advice.ladder import UNEXPLAINED, Ladder, Rung
from llm_perf_opt.core.measurement import DECODE
from llm_perf_opt.core.report import Axis, Cell, Column, Kind, Level, Note, Report, Span, SpanChart, Table, share_text
from llm_perf_opt.core.units import format_bytes, format_count, format_seconds
from llm_perf_opt.core.witness import Witness, share_of, worked_out

LARGER_BATCH = "larger-batch"
LADDER_ROWS = 8  # on the first screen, the top and the bound among them
_NANO = 1e-9
_BEST = 5
_NOTES = (
    "Every rung is the difference of two states of the trace, both priced by the timer of trace --device and serve. "
    "The rungs and the lower bound add up to the time at the top, to the nanosecond, in every stage.",
    "Saves alone: as the only change, or right after the one that it needs. After those above: once the changes above "
    "it are made. Low and high are the same difference at the low and high ends of both times.",
)
_RESIZED = (
    "A larger batch counts the time of a step once for all of its sequences: what is left is the device's time for one "
    "request, which itself waits for whole steps. Prices are for the devices alone, rented by the hour."
)


_LADDER = "times of the traced ops, as the code runs down to the lower bound (docs/start/what-should-i-change-first.md)"
_CHANGED = (
    "the time before a change less the time after it, both of the rewritten trace (docs/evidence/advice-retraced.md)"
)


def advice_report(advice: Advice, title: str, asked: str, machine: str) -> Report:
    """Everything; the first tables make the first screen."""
    tables = [_ladder_table(advice.ladder)]
    if advice.changes:
        tables.append(_changes_table("What to change first", advice.changes[:_BEST], advice))
    if advice.in_code:
        tables.append(_changes_table("The same code in PyTorch, step by step", advice.in_code[:_BEST], advice))
    listed = (*advice.changes, *advice.in_code)
    if listed:
        tables += [_how_table(listed), _details_table(listed, advice)]
    tables.append(_stage_table(advice.ladder))
    return Report(
        title=title,
        answer=tuple(answer_lines(advice, asked, machine)),
        tables=tuple(tables),
        charts=(_waterfall(advice.ladder),),
        notes=tuple(_notes(advice)),
    )


def answer_lines(advice: Advice, asked: str, machine: str) -> Iterator[str]:
    """How long, where it goes, what to change first."""
    ladder = advice.ladder
    over = "" if advice.short_bytes is None else f" (does not fit: {format_bytes(advice.short_bytes)} over)"
    engine = "" if advice.engine_s is None else f", {format_seconds(advice.engine_s)} with an engine"
    yield (
        f"{asked} on {machine}{over}: {format_seconds(ladder.top_ns * _NANO)}{engine}; lower bound "
        f"{format_seconds(ladder.bottom_ns * _NANO)}."
    )
    largest = sorted(ladder.rungs, key=lambda rung: -rung.time_ns)[:3]
    told = [f"{rung.name} {share_text(rung.time_ns / ladder.top_ns)}" for rung in largest if rung.time_ns > 0]
    if not told:
        yield "It runs at its lower bound."
    elif 2 * sum(rung.time_ns for rung in largest) >= ladder.top_ns:
        yield f"Most of it: {', '.join(told)}."
    else:
        yield f"The lower bound is {share_text(ladder.bottom_ns / ladder.top_ns)} of it; then {', '.join(told)}."
    first = list(map(_saving_text, (advice.changes or advice.in_code)[:2]))
    yield f"First: {'; then '.join(first)}." if first else "No change of those that are known saves anything."


def _saving_text(change: Change) -> str:
    """What it saves; a larger batch saves time of the device, while each request takes longer."""
    whose = " of the device for each request" if change.name == LARGER_BATCH else ""
    return f"{change.title}, saves {format_seconds(change.after_s)}{whose}"


def shown_rungs(ladder: Ladder) -> tuple[tuple[str, int, Rung | None], ...]:
    """At most eight lines: the top, the largest rungs in their order, all others as one, the bound."""
    rungs = [rung for rung in ladder.rungs if rung.time_ns]
    room = LADDER_ROWS - 2
    largest = sorted(rungs, key=lambda rung: -abs(rung.time_ns))
    kept = largest if len(rungs) <= room else largest[: room - 1]
    shown = [(rung.name, rung.time_ns, rung) for rung in rungs if any(rung is one for one in kept)]
    rest = sum(rung.time_ns for rung in rungs) - sum(rung.time_ns for rung in kept)
    others = [(f"{len(rungs) - len(kept)} smaller rungs", rest, None)] if len(kept) < len(rungs) else []
    top = ("as measured" if ladder.measured else "as it runs now", ladder.top_ns, None)
    return (top, *shown, *others, ("lower bound", ladder.bottom_ns, None))


def _ladder_table(ladder: Ladder) -> Table:
    phases = list(dict.fromkeys(stage.phase for stage in ladder.stages))
    once = [phase for phase in phases if phase != DECODE]
    columns = [Column("one request"), Column("time", Kind.SECONDS), Column("share", Kind.RATIO)]
    if once:
        columns.append(Column("before decoding" if DECODE in phases else "of it", Kind.SECONDS))
    if DECODE in phases:
        columns.append(Column("each token", Kind.SECONDS))
    rows: list[tuple[Cell, ...]] = []
    for name, time_ns, rung in shown_rungs(ladder):
        cells: list[Cell] = [name, time_ns * _NANO, time_ns / ladder.top_ns if ladder.top_ns else None]
        if once:
            cells.append(_of_phases(ladder, name, rung, is_decode=False))
        if DECODE in phases:
            cells.append(_of_phases(ladder, name, rung, is_decode=True))
        rows.append(tuple(cells))
    return Table(
        title=f"Where the time goes{_tokens_text(ladder)}",
        columns=tuple(columns),
        rows=tuple(rows),
        origin=_LADDER,
        witnesses=lambda row, place: _rung_witness(rows, row, place),
    )


def _rung_witness(rows: Sequence[tuple[Cell, ...]], row: int, place: int) -> Witness | None:
    """The top is the sum of the rungs and the bound; a share is a time over the time of the top."""
    at = 1 if place == 2 else place
    times = [Witness(str(each[0]), cast("float", each[at]), "s", _LADDER) for each in rows]
    top = worked_out("sum", times[0].name, times[1:], "s")
    if place == 2:
        return share_of(times[row] if row else top, top)
    return top if row == 0 else None


def _tokens_text(ladder: Ladder) -> str:
    if not any(stage.phase == DECODE for stage in ladder.stages):
        return ""
    return f", {format_count(ladder.output_tokens)} tokens generated"


def _of_phases(ladder: Ladder, name: str, rung: Rung | None, *, is_decode: bool) -> float:
    """A row of the ladder for the stages of decode steps, or for all others: one run of each."""
    stages = [stage for stage in ladder.stages if (stage.phase == DECODE) is is_decode]
    whole = {"lower bound": sum(stage.bottom_ns / stage.runs for stage in stages)}
    whole |= dict.fromkeys(("as measured", "as it runs now"), sum(stage.top_ns / stage.runs for stage in stages))
    if name in whole:
        return whole[name] * _NANO
    shown = {shown.name for _, _, shown in shown_rungs(ladder) if shown is not None}
    return _NANO * sum(
        one.time_ns / stage.runs
        for stage in stages
        for one in stage.rungs
        if (one.name not in shown if rung is None else one.name == rung.name)
    )


def _changes_table(title: str, changes: Sequence[Change], advice: Advice) -> Table:
    rows = tuple(
        (
            change.title,
            change.where,
            change.alone_s,
            change.after_s,
            change.left_s,
            change.price_per_million,
        )
        for change in changes
    )
    columns = (
        Column("change"),
        Column("faster"),
        Column("saves alone", Kind.SECONDS),
        Column("after those above", Kind.SECONDS),
        Column("left", Kind.SECONDS),
        Column(f"{advice.currency or 'price'} per million tokens", Kind.COUNT),
    )
    return _without_unknown(Table(title=title, columns=columns, rows=rows, origin=_CHANGED))


def _without_unknown(table: Table) -> Table:
    """Without columns of which nothing is known."""
    kept = [at for at in range(len(table.columns)) if any(row[at] is not None for row in table.rows)]
    return Table(
        title=table.title,
        columns=tuple(table.columns[at] for at in kept),
        rows=tuple(tuple(row[at] for at in kept) for row in table.rows),
        origin=table.origin,
    )


def _how_table(changes: Sequence[Change]) -> Table:
    return Table(
        title="How, and what it may cost",
        columns=(Column("change"), Column("how"), Column("may cost"), Column("needs")),
        rows=tuple((change.title, change.how, change.may_cost, change.needs) for change in changes),
    )


def _details_table(changes: Sequence[Change], advice: Advice) -> Table:
    columns = (
        Column("change"),
        Column("low", Kind.SECONDS),
        Column("expected", Kind.SECONDS),
        Column("high", Kind.SECONDS),
        Column("decode step", Kind.SECONDS),
        Column("less memory", Kind.BYTES),
        Column("rests on"),
    )
    rows = tuple(
        (one.title, one.low_s, one.after_s, one.high_s, one.step_s, one.memory_bytes, one.rests_on) for one in changes
    )
    title = "What each change saves, and what that rests on"
    return _without_unknown(Table(title=title, columns=columns, rows=rows, origin=_CHANGED))


def _stage_table(ladder: Ladder) -> Table:
    columns = (
        Column("stage"),
        Column("rung"),
        Column("time", Kind.SECONDS),
        Column("share", Kind.RATIO),
        Column("bytes moved", Kind.BYTES),
        Column("modules"),
    )
    rows: list[tuple[Cell, ...]] = []
    for stage in ladder.stages:
        name = stage.stage if stage.phase == stage.stage else f"{stage.phase}, {stage.stage}"
        bottom = "lower bound" if stage.is_bound_known else "rooflines of its kernels"
        for text, time_ns, moved, families in (
            ("as it runs now", stage.top_ns, stage.top_bytes, ""),
            *((rung.name, rung.time_ns, rung.bytes_moved, rung.families) for rung in stage.rungs),
            (bottom, stage.bottom_ns, stage.bottom_bytes, ""),
        ):
            rows.append((name, text, time_ns * _NANO, time_ns / (stage.top_ns or 1), moved, families))
    return Table(title="The ladder of each stage, one run", columns=columns, rows=tuple(rows), origin=_LADDER)


def _waterfall(ladder: Ladder) -> SpanChart:
    spans, at = [], ladder.top_ns
    spans.append(Span("as it runs now", "all of it", 0.0, at * _NANO))
    for rung in (rung for rung in ladder.rungs if rung.time_ns):
        start, end = sorted((at - rung.time_ns, at))
        spans.append(Span(rung.name, rung.name, max(start, 0) * _NANO, max(end, 0) * _NANO))
        at -= rung.time_ns
    spans.append(Span("lower bound", "lower bound", 0.0, max(at, 0) * _NANO))
    return SpanChart(
        title="From the time as it runs now to the lower bound", axis=Axis("time", Kind.SECONDS), spans=tuple(spans)
    )


def _notes(advice: Advice) -> Iterator[Note]:
    yield from map(Note, _NOTES)
    if any(change.name in (LARGER_BATCH, "tensor-parallel") for change in advice.changes):
        yield Note(_RESIZED)
    if advice.ladder.measured:
        yield Note(
            "Where a phase waits for the host, what was measured tells what a kernel launch costs there, if that is "
            "plausible; any other difference between measured and predicted is a rung of its own."
        )
    unexplained = [rung for rung in advice.ladder.rungs if rung.name == UNEXPLAINED]
    if unexplained and unexplained[0].time_ns < 0:
        yield Note(
            "What was measured is shorter than what is predicted: the rung that nothing explains is below zero.",
            Level.WARNING,
        )

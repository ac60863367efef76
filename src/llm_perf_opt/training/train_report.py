"""The answer of `train`: three lines, memory by kind, the step by phase, communication, MFU, other runs that fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from llm_perf_opt.core.report import (
    BarChart,
    Cell,
    Column,
    Kind,
    Level,
    Note,
    Report,
    Series,
    Table,
    counted,
    three_digits,
)
from llm_perf_opt.core.units import format_bytes, format_seconds
from llm_perf_opt.core.witness import Witness, worked_out
from llm_perf_opt.timing.rates import Band
from llm_perf_opt.training.model_flops import conventions, necessary_flops, necessary_name
from llm_perf_opt.training.model_shape import ModelShape
from llm_perf_opt.training.rank_memory import HeldKind
from llm_perf_opt.training.search import Candidate, FasterRun, RunChange
from llm_perf_opt.training.step_kernels import Phase
from llm_perf_opt.training.training_run import TrainingRun

_WORK = (Phase.FORWARD, Phase.BACKWARD, Phase.LOSS)
MEMORY, STEP, WHY, LINKS, FLOPS, SEARCH, LIMITS, FASTER = (
    "Memory of the fullest GPU",
    "An optimizer step",
    "Why the MFU is what it is",
    "Communication",
    "MFU by convention",
    "Runs that fit, fastest first",
    "What fits",
    "What to change first",
)
_MOST_RUNS = 8
_DAY_HOURS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """All that a report shows of one question."""

    model: str
    shape: ModelShape
    best: Candidate
    others: Sequence[Candidate]
    repairs: Sequence[RunChange] | None
    faster: Sequence[FasterRun]
    largest: Mapping[str, int | None]
    tokens: float | None
    measured_tokens_per_s: float | None
    price_per_hour: float | None
    peak_flops_per_s: int | None
    notes: tuple[Note, ...]


def report_of(trained: Trained) -> Report:
    """Everything, the answer first."""
    best = trained.best
    tables = [_memory_table(best), *_times(trained), _limits(trained)]
    if trained.measured_tokens_per_s is not None:
        tables.sort(key=lambda table: table.title != WHY)  # the answer to whoever gives a rate of their own
    if trained.faster:
        tables.insert(0, _faster(trained.faster))
    if len(trained.others) > 1:
        tables.append(_search(trained.others))
    return Report(
        title=f"{trained.model}: {best.run.method} on {best.run.cluster}",
        answer=tuple(answer_lines(trained)),
        tables=tuple(tables),
        charts=tuple(_charts(best)),
        notes=(*trained.notes, *_notes(best)),
    )


def answer_lines(trained: Trained) -> Iterator[str]:
    """Whether it fits; how fast; how long and how much money."""
    best, run = trained.best, trained.best.run
    about = f"{trained.model}, {run.method}, {run.sequence:,} tokens, {settings(run)}, on {run.cluster}"
    memory = f"{format_bytes(best.memory.taken)} of {format_bytes(run.cluster.device.memory_bytes)} per GPU"
    if not best.fits:
        yield f"Does not fit, {format_bytes(best.over_bytes)} over: {about} takes {memory}."
        yield _repair_line(trained)
        return
    yield f"Fits: {about} takes {memory}, {format_bytes(-best.over_bytes)} left."
    if best.time is None:
        return
    low, expected, high = _rates(best)
    each = f", {expected / run.plan.gpus:,.0f} per GPU" if run.plan.gpus > 1 else ""
    yield (
        f"{expected:,.0f} tokens/s ({low:,.0f} to {high:,.0f}){each}; "
        f"a step of {run.step_tokens:,} tokens takes {format_seconds(best.time.seconds)}. {_mfu_text(trained)}"
    )
    own = _own_run(trained)
    if own is not None:
        yield own
    if own is None or trained.tokens is not None:
        yield _bill(trained)


def settings(run: TrainingRun) -> str:
    """Plan, micro batch and recomputation, as a reader would type them."""
    plan = f"{run.plan}, " if run.plan.gpus > 1 else ""
    accumulated = f" ({run.micro_batches} accumulated)" if run.micro_batches > 1 else ""
    return f"{plan}micro batch {run.micro_batch}{accumulated}, recompute {run.recompute}"


def _repair_line(trained: Trained) -> str:
    length = trained.largest["sequence"]
    shorter = f" As it is, it fits with --seq {length}." if length else ""
    if not trained.repairs:
        return (
            f"No change of recomputation, loss, plan or method makes it fit: take more GPUs, or larger ones.{shorter}"
        )
    words = " ".join(change.options for change in trained.repairs)
    return f"To make it fit: {', then '.join(change.what for change in trained.repairs)} ({words}).{shorter}"


def _rates(best: Candidate) -> tuple[float, float, float]:
    assert best.time is not None
    tokens, band = best.run.step_tokens, best.time.band
    return tokens / band.high, tokens / best.time.seconds, tokens / band.low


def _mfu_text(trained: Trained) -> str:
    if trained.peak_flops_per_s is None:
        return ""
    name = necessary_name(trained.best.run)
    low, expected, high = (_mfu(trained, rate, name) for rate in _rates(trained.best))
    return f"MFU {100 * expected:.0f} % ({100 * low:.0f} to {100 * high:.0f} %, {name})."


def _mfu(trained: Trained, tokens_per_s: float, name: str) -> float:
    assert trained.peak_flops_per_s is not None
    run = trained.best.run
    flops = conventions(trained.shape, run)[name].flops_per_token
    return flops * tokens_per_s / run.plan.gpus / trained.peak_flops_per_s


def _bill(trained: Trained) -> str:
    low, expected, high = _rates(trained.best)
    if trained.tokens is None:
        cost = _hour_cost(trained)
        per = (
            "" if cost is None else f", ${three_digits(cost / expected / 3600 * 1e9)} at ${three_digits(cost)} per hour"
        )
        return f"A billion tokens take {_hours(1e9 / expected)}{per}. --tokens says how many there are."
    hours = [trained.tokens / rate for rate in (high, expected, low)]
    text = f"{three_digits(trained.tokens)} tokens take {_hours(hours[1])} ({_hours(hours[0])} to {_hours(hours[2])})"
    cost = _hour_cost(trained)
    if cost is None:
        return f"{text}. The price of {trained.best.run.cluster.device.id} is not known: add --price."
    money = [three_digits(cost * seconds / 3600) for seconds in hours]
    return f"{text} and ${money[1]} (${money[0]} to ${money[2]}) at ${three_digits(cost)} per hour."


def _own_run(trained: Trained) -> str | None:
    """Where the time of the measured run goes; None: no rate was given, or no MFU is known."""
    rate = trained.measured_tokens_per_s
    if rate is None or trained.peak_flops_per_s is None:
        return None
    name = necessary_name(trained.best.run)
    rows = _parts(trained, trained.peak_flops_per_s)[1:]
    losses = sorted((row for row in rows if row[1] > 0), key=lambda row: -row[1])
    whole = trained.best.run.step_tokens / rate
    text = "; ".join(f"{100 * seconds / whole:.0f} % {part}" for part, seconds in losses[:3])
    mfu = 100 * _mfu(trained, rate, name)
    return f"Your run: {rate:,.0f} tokens/s, MFU {mfu:.0f} %. The rest of its step, largest first: {text}."


def _hour_cost(trained: Trained) -> float | None:
    price = trained.price_per_hour
    return None if price is None else price * trained.best.run.plan.gpus


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    if hours < 1:
        return f"{three_digits(60 * hours)} min"
    return f"{three_digits(hours / 24)} days" if hours > _DAY_HOURS else f"{three_digits(hours)} h"


_FULLEST = "memory of the fullest rank at its fullest moment (docs/start/does-my-fine-tune-fit.md)"
_FULL_ORIGIN = f"{_FULLEST}; the GPU's is its data sheet's"
_TIMED = "kernels and collectives of one step of a rank (docs/evidence/training-records.md)"


def _memory_table(best: Candidate) -> Table:
    memory, device = best.memory, best.run.cluster.device
    rows: list[tuple[Cell, ...]] = [
        (str(kind), round(size), memory.made_of[kind]) for kind, size in memory.by_kind.items() if size
    ]
    rows += [
        (f"needed, fullest at: {memory.moment}", round(memory.needed), "all of the above"),
        ("allowance for reserved memory", round(memory.reserved_allowance), "blocks that PyTorch's allocator keeps"),
        ("allowance for CUDA and NCCL", round(memory.context_bytes), "context, kernels, buffers of communicators"),
        ("taken", round(memory.taken), "as nvidia-smi would show it"),
        (f"memory of {device.id}", device.memory_bytes, ""),
    ]
    columns = (Column("kind"), Column("bytes", Kind.BYTES), Column("tensors"))
    return Table(
        title=MEMORY,
        columns=columns,
        rows=tuple(rows),
        origin=_FULL_ORIGIN,
        witnesses=lambda row, place: _summed(rows, row) if place == 1 else None,
    )


def _summed(rows: Sequence[tuple[Cell, ...]], row: int) -> Witness | None:
    """What is needed is the sum of the kinds above, what is taken of that and the rows between."""
    names = [str(name) for name, *_ in rows]
    needed = next(place for place, name in enumerate(names) if name.startswith("needed"))
    parts = {needed: range(needed), names.index("taken"): range(needed, names.index("taken"))}.get(row)
    if parts is None:
        return None
    leaves = [Witness(names[place], cast("int", rows[place][1]), "B", _FULL_ORIGIN) for place in parts]
    return worked_out("sum", names[row], leaves, "B")


def _charts(best: Candidate) -> Iterator[BarChart]:
    """Memory from moment to moment of a step, and its time from phase to phase."""
    memory, device = best.memory, best.run.cluster.device
    names = [f"{name}: the peak" if name == memory.moment else name for name in memory.moments]
    held = [kind for kind in HeldKind if any(moment.get(kind) for moment in memory.moments.values())]
    yield BarChart(
        title="Memory over a step",
        categories=tuple(names),
        series=tuple(
            Series(str(kind), tuple(round(moment.get(kind, 0.0)) for moment in memory.moments.values()))
            for kind in held
        ),
        kind=Kind.BYTES,
        is_stacked=True,
        caption=f"Allocated tensors of the fullest GPU, in order of time. Next to them {device.id} holds "
        f"{format_bytes(memory.taken - memory.needed)} of allowances, and has {format_bytes(device.memory_bytes)}.",
    )
    if best.time is None:
        return
    bands = {str(phase): band for phase, band in best.time.phases.items() if band.high > 0}
    yield BarChart(
        title="Time of a step",
        categories=tuple(bands),
        series=(
            Series("low", tuple(band.low for band in bands.values())),
            Series("expected", tuple(band.expected for band in bands.values())),
            Series("high", tuple(band.high for band in bands.values())),
        ),
        kind=Kind.SECONDS,
        interval=("low", "expected", "high"),
    )


def _times(trained: Trained) -> Iterator[Table]:
    time = trained.best.time
    if time is None:
        return
    columns = (
        Column("phase"),
        Column("expected", Kind.SECONDS),
        Column("share", Kind.RATIO),
        Column("low", Kind.SECONDS),
        Column("high", Kind.SECONDS),
    )
    rows = [_phase_row(str(phase), band, time.seconds) for phase, band in time.phases.items() if band.high > 0]
    step = _phase_row("step", time.band, time.seconds)
    formulas = {"share": ("share", "expected")}
    yield Table(title=STEP, columns=columns, rows=tuple(rows), footer=step, formulas=formulas, origin=_TIMED)
    if trained.peak_flops_per_s is not None:
        yield _ladder(trained, trained.peak_flops_per_s)
    if time.collectives:
        yield _links(trained.best)
    if trained.peak_flops_per_s is not None:
        yield _flops(trained)


def _phase_row(name: str, band: Band, whole: float) -> tuple[Cell, ...]:
    expected = band.expected or 0.0
    return name, expected, expected / whole if whole else None, band.low, band.high


def _parts(trained: Trained, peak: int) -> list[tuple[str, float]]:
    """From the necessary FLOPs at the peak to the step, or to the measured step."""
    best, time = trained.best, trained.best.time
    assert time is not None
    run = best.run
    ideal = run.step_tokens / run.plan.gpus / peak * necessary_flops(trained.shape, run)
    apart = {phase: band.expected or 0.0 for phase, band in time.phases.items() if phase not in _WORK}
    kernels = time.seconds - ideal - sum(apart.values())
    rows = [("necessary FLOPs at the peak: MFU", ideal), ("kernels below the peak, and vector work", kernels)]
    rows += [(str(phase), seconds) for phase, seconds in apart.items() if seconds > 0]
    if trained.measured_tokens_per_s is not None:
        rows.append(("slower than predicted", run.step_tokens / trained.measured_tokens_per_s - time.seconds))
    return rows


def _ladder(trained: Trained, peak: int) -> Table:
    rows = _parts(trained, peak)
    whole = sum(seconds for _, seconds in rows)
    columns = (Column("part of a step"), Column("time", Kind.SECONDS), Column("share", Kind.RATIO))
    cells = tuple((name, part, part / whole) for name, part in rows)
    formulas = {"share": ("share", "time")}
    return Table(title=WHY, columns=columns, rows=cells, footer=("step", whole, 1.0), formulas=formulas, origin=_TIMED)


def _links(best: Candidate) -> Table:
    assert best.time is not None
    columns = (
        Column("what"),
        Column("collective"),
        Column("ranks", Kind.COUNT),
        Column("times", Kind.COUNT),
        Column("payload", Kind.BYTES),
        Column("alone", Kind.SECONDS),
        Column("not hidden", Kind.SECONDS),
    )
    rows = tuple(
        (
            timed.collective.what,
            str(timed.collective.collective.kind),
            timed.collective.collective.group.size,
            round(timed.collective.count),
            timed.collective.collective.payload_bytes,
            None if timed.alone is None else timed.alone.expected,
            None if timed.alone is None else timed.exposed.expected,
        )
        for timed in best.time.collectives
    )
    return Table(title=LINKS, columns=columns, rows=rows, origin=_TIMED)


def _flops(trained: Trained) -> Table:
    _, expected, _ = _rates(trained.best)
    columns = (
        Column("convention"),
        Column("FLOPs per token", Kind.FLOPS),
        Column("per GPU", Kind.FLOPS_PER_S),
        Column("MFU", Kind.RATIO),
        Column("what it counts"),
    )
    rows = tuple(
        (
            row.name,
            round(row.flops_per_token),
            row.flops_per_token * expected / trained.best.run.plan.gpus,
            _mfu(trained, expected, row.name),
            row.meaning,
        )
        for row in conventions(trained.shape, trained.best.run).values()
    )
    return Table(title=FLOPS, columns=columns, rows=rows, origin="FLOPs of a token by this convention, and the step")


def _limits(trained: Trained) -> Table:
    rows = tuple((name, size) for name, size in trained.largest.items() if size is not None)
    columns = (Column("with the rest as above"), Column("largest", Kind.COUNT))
    return Table(title=LIMITS, columns=columns, rows=rows, origin=f"the largest with which it still fits: {_FULLEST}")


def _faster(changes: Sequence[FasterRun]) -> Table:
    """Each change of the run, with what it saves of a step, and the run that it leads to."""
    columns = (
        Column("change"),
        Column("option"),
        Column("saves of a step alone", Kind.SECONDS),
        Column("after those above", Kind.SECONDS),
        Column("tokens/s then", Kind.COUNT),
        Column("memory per GPU then", Kind.BYTES),
    )
    rows = tuple(
        (
            each.change.what,
            each.change.options,
            each.alone_s,
            each.after_s,
            round(each.made.tokens_per_s),
            round(each.made.memory.taken),
        )
        for each in changes
    )
    origin = f"this run priced anew with the change, next to the run as it is: {_TIMED}; {_FULLEST}"
    return Table(title=FASTER, columns=columns, rows=rows, origin=origin)


def _search(candidates: Sequence[Candidate]) -> Table:
    columns = (
        Column("plan"),
        Column("recompute"),
        Column("micro batch", Kind.COUNT),
        Column("tokens/s", Kind.COUNT),
        Column("memory per GPU", Kind.BYTES),
    )
    rows = tuple(
        (
            str(each.run.plan),
            each.run.recompute,
            each.run.micro_batch,
            round(each.tokens_per_s) if each.time is not None else None,
            round(each.memory.taken),
        )
        for each in candidates[:_MOST_RUNS]
    )
    return Table(title=SEARCH, columns=columns, rows=rows, origin=f"{_TIMED}; {_FULLEST}")


def _notes(best: Candidate) -> Iterator[Note]:
    yield Note(
        "Memory is of allocated tensors by rules that follow the ops of a layer; the allowances are what published "
        "runs reserved beyond it. docs/evidence/training-records.md has the error of memory and time against them."
    )
    if best.time is not None and best.time.unknown:
        yield Note(
            f"No time is known for: {', '.join(best.time.unknown)}. It is in no figure; name one with known links.",
            Level.WARNING,
        )
    if best.run.micro_batches > 1:
        batches = counted(best.run.micro_batches, "micro batch", "micro batches")
        yield Note(f"A step has {best.run.step_tokens // best.run.sequence:,} sequences: {batches} per GPU.")

"""The answer of `serve`: three lines, one row for each GPU, every plan as a point, and the times of the best fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from llm_perf_opt.core.report import (
    Axis,
    BarChart,
    Cell,
    Chart,
    Column,
    Kind,
    Level,
    Line,
    LineChart,
    Mark,
    Note,
    Series,
    Table,
    counted,
    listed,
    table_of,
    three_digits,
)
from llm_perf_opt.core.units import format_number_of, format_seconds
from llm_perf_opt.core.witness import Witness
from llm_perf_opt.serving.capacity.outcome import TIMES, ReplayOutcome
from llm_perf_opt.serving.capacity.queueing import PromptQueue
from llm_perf_opt.serving.capacity.replay_report import rounded_or_none
from llm_perf_opt.serving.capacity.sizing import NO_LIMIT, Demand, ServedTime, SizedFleet
from llm_perf_opt.serving.capacity.sizing_witness import (
    PLAN_WITNESSES,
    at_share,
    banded_witnesses,
    choice_witnesses,
    tpot,
    ttft,
)
from llm_perf_opt.serving.engines import ENGINE_NAMES

CHOICES, PLANS = "GPUs side by side", "Every plan that fits"
REPLAYED = "Steady state and replay through the engine's own scheduler"
_LIMITS = {
    "TPOT": "TPOT SLO",
    "TTFT": "TTFT SLO",
    "E2E": "E2E SLO",
    "cache": "KV cache",
    "steps": "GPU time",
    "queue": "arrival rate above throughput",
    "time": "GPU time",
    "prefill": "prefill workers",
    "decode": "decode workers",
}


def answer_lines(fleets: Sequence[SizedFleet], demand: Demand, why_none: str | None) -> tuple[str, ...]:
    """The best fleet with its times, its throughput and cost, and the runner-up; or why there is none."""
    meeting = [fleet for fleet in fleets if fleet.broken is None]
    if not meeting:
        return tuple(_without(fleets, demand, why_none))
    best = meeting[0]
    return (
        f"{_take(best, demand)}: {_times_text(best, demand)}.",
        f"{_rates(best)}. {_bill(best)}{_bottleneck(best)}.{_found_text(best)}",
        _others(best, meeting[1:], [fleet for fleet in fleets if fleet.broken is not None]),
    )


def _found_text(fleet: SizedFleet) -> str:
    """What a turn of a session finds of its prompt, and where; nothing without sessions."""
    if (reuse := fleet.state.reuse) is None:
        return ""
    mean, host = fleet.demand.mean, fleet.candidate.replica.steady.host
    cached = f"{reuse.tokens + mean.shared_tokens:,.0f} of {mean.prompt_tokens:,.0f}"
    where = ""
    if reuse.host_tokens:
        loaded = f"{reuse.host_tokens:,.0f} of them in host memory, loaded in {format_seconds(reuse.load_s)}"
        where = f" ({loaded} on average)"
    elif host is not None:
        where = " (none in host memory)"
    return f" Each turn finds {cached} prompt tokens in cache{where}."


def session_notes(fleet: SizedFleet | None) -> Iterator[Note]:
    """What the answer takes for granted of sessions and of host memory."""
    if fleet is None or (session := fleet.demand.mean.session) is None:
        return
    yield Note(
        f"Users think {format_seconds(session.think_s)} between an answer and the next turn on average, with "
        "exponential times, and all turns of a session go to the same replica."
    )
    if (host := fleet.candidate.replica.steady.host) is not None:
        is_used = fleet.candidate.replica.steady.worthy_host is not None
        yield Note(
            f"Host memory holds {host.tokens:,.0f} tokens and brings back {host.tokens_per_s:,.0f} a second over "
            f"{host.link}, by its data sheet. "
            + ("" if is_used else "Computing a prompt again is faster: leave --kv-offload out."),
            Level.INFO if is_used else Level.WARNING,
        )


def _rate(requests_per_s: float) -> str:
    number = three_digits(requests_per_s)
    return f"{number} {'request' if number == '1' else 'requests'}/s"


def _take(fleet: SizedFleet, demand: Demand) -> str:
    is_counted = fleet.replicas > 1 and fleet.prefill is None
    replicas = f"{fleet.replicas} replicas of {fleet.plan}" if is_counted else fleet.plan
    what = {
        "users": None if demand.users is None else f"serves {counted(demand.users, 'user')}",
        "rate": None if demand.requests_per_s is None else f"sustains {_rate(demand.requests_per_s)}",
        "pages": None
        if demand.deadline is None or fleet.hours is None
        else f"reads {demand.deadline.pages:,} pages in {fleet.hours:,.1f} h",
    }
    done = next((text for text in what.values() if text is not None), _held(fleet))
    origin = "" if fleet.is_measured else ", data-sheet times"
    return f"{fleet.gpus} x {fleet.device} ({replicas}, {ENGINE_NAMES[fleet.engine]}{origin}) {done}"


def _held(fleet: SizedFleet) -> str:
    """How many requests fit at once, and the longest context where that is known."""
    longest = fleet.candidate.replica.fit.largest_context
    context = "" if longest is None else f" (longest context {longest:,} tokens)"
    return f"holds {format_number_of(fleet.replicas * fleet.state.sequences, 'request')} at once{context}"


def _times_text(fleet: SizedFleet, demand: Demand) -> str:
    return ", ".join(time_text(name, time, demand) for name, time in _times(fleet, demand).items())


def _times(fleet: SizedFleet, demand: Demand) -> dict[str, ServedTime]:
    """TTFT and TPOT; an answer of one token has no TPOT."""
    return {"TTFT": fleet.ttft} | ({"TPOT": fleet.tpot} if demand.mean.output_tokens > 1 else {})


def time_text(name: str, time: ServedTime, demand: Demand) -> str:
    """`TTFT 310 ms (p99 620 ms, SLO 2.00 s)`; without the SLO where there is none."""
    limits = {} if demand.slo is None else demand.slo.limits_s
    limit = f", SLO {format_seconds(limits[name])}" if name in limits else ""
    return (
        f"{name} {format_seconds(time.expected_s)} (p{demand.share * 100:g} {format_seconds(time.at_share_s)}{limit})"
    )


def _rates(fleet: SizedFleet) -> str:
    tokens = fleet.output_tokens_per_s
    return (
        f"Throughput is {_rate(fleet.requests_per_s)}, {tokens:,.0f} output tokens/s "
        f"({tokens / fleet.gpus:,.0f} per GPU)"
    )


def _bill(fleet: SizedFleet) -> str:
    if fleet.cost_per_hour is None:
        return "Its price is not known: add --price. "
    if fleet.job_cost is not None:
        pages = fleet.cost_per_million_requests or 0.0
        return f"The job costs ${fleet.job_cost:,.0f}, or ${pages:,.0f} per million pages. "
    made, read = fleet.cost_per_million_output or 0.0, fleet.cost_per_million_input or 0.0
    return (
        f"It costs ${fleet.cost_per_hour:,.2f} per hour: ${three_digits(read)} per million input tokens, "
        f"${three_digits(made)} per million output tokens. "
    )


def _others(best: SizedFleet, others: Sequence[SizedFleet], broken: Sequence[SizedFleet]) -> str:
    """The runner-up, what a data sheet alone would prefer, and what was ruled out."""
    parts = []
    by_sheet = [fleet for fleet in others if best.is_measured and not fleet.is_measured]
    if comparable := [fleet for fleet in others if fleet not in by_sheet]:
        second = comparable[0]
        more = _more(best, second)
        name = f"{second.gpus} x {second.device} ({second.plan}, {ENGINE_NAMES[second.engine]})"
        what = "The runner-up"
        if best.prefill is not None and second.prefill is None:
            what = "With prefill and decode on the same GPUs the best"
        parts.append(f"{what} is {name}" if more is None else f"{what}, {name}, costs {more}")
    if by_sheet:
        cheapest = by_sheet[0]
        more = _more(best, cheapest)
        cost = "" if more is None else f" and cost {more}"
        parts.append(f"By its data sheet alone {cheapest.gpus} x {cheapest.device} would do{cost}: not measured")
    if broken:
        names = dict.fromkeys(map(_with_reason, broken))
        parts.append(f"Ruled out: {listed(list(names), 4)}")
    return f"{'. '.join(parts) or 'There is no runner-up: name more GPUs in --gpus'}."


def _more(best: SizedFleet, other: SizedFleet) -> str | None:
    """`12 % more` or `30 % less`, with what that is for a token where it is the other way; None: no price is known."""
    costs = [fleet.job_cost or fleet.cost_per_hour for fleet in (best, other)]
    if (share := _percent_more(*costs)) is None:
        return None
    of_tokens = None if best.job_cost else _percent_more(best.cost_per_million_output, other.cost_per_million_output)
    words = f"{abs(share)} % {'more' if share > 0 else 'less'}" if share else "the same"
    if of_tokens is None or share * of_tokens >= 0:
        return words
    return f"{words} per hour, {abs(of_tokens)} % {'more' if of_tokens > 0 else 'less'} per output token"


def _percent_more(ours: float | None, theirs: float | None) -> int | None:
    return None if not ours or theirs is None else round(100 * (theirs / ours - 1))


def _without(fleets: Sequence[SizedFleet], demand: Demand, why_none: str | None) -> Iterator[str]:
    if not fleets:
        yield why_none or "No plan fits."
        return
    nearest = fleets[0]
    yield f"No plan meets the demand: {listed(list(map(_with_reason, fleets)), 4)}."
    times = _times_text(nearest, demand)
    yield f"The nearest is {nearest.gpus} x {nearest.device} ({nearest.plan}): {times}."
    yield "Try faster GPUs, a looser --slo, or a smaller format in --weights."


def _reason(fleet: SizedFleet) -> str:
    """Which limit the fleet breaks, in a few words: `TPOT`, `throughput too low`."""
    named = {"queue": "throughput too low", "decode": "throughput too low", "cache": "KV cache too small for all users"}
    broken = fleet.broken or ""
    return named.get(broken, broken if broken in TIMES.values() else f"more than {broken}")


def _with_reason(fleet: SizedFleet) -> str:
    """`l4 (TPOT above the SLO)`."""
    name = fleet.device if fleet.prefill is None else f"{fleet.device} disaggregated"
    return f"{name} ({_reason(fleet)}{' above the SLO' if fleet.broken in TIMES.values() else ''})"


def limit_text(fleet: SizedFleet) -> str:
    """The bottleneck: what the next requests would meet first."""
    return _LIMITS.get(fleet.limit, fleet.limit)


def _bottleneck(fleet: SizedFleet) -> str:
    return "It has no bottleneck yet" if fleet.limit == NO_LIMIT else f"The bottleneck is the {limit_text(fleet)}"


def choices_table(fleets: Sequence[SizedFleet], demand: Demand) -> Table:
    """One row for each GPU and engine, the best first. A fleet that misses the demand has no cost."""
    share = f"p{demand.share * 100:g}"
    engines = len({fleet.engine for fleet in fleets}) > 1
    cells: dict[Column, Callable[[SizedFleet], Cell]] = {
        Column("GPU"): lambda fleet: fleet.device,
        **({Column("engine"): lambda fleet: ENGINE_NAMES[fleet.engine]} if engines else {}),
        Column("GPUs", Kind.COUNT): lambda fleet: fleet.gpus,
        Column("replicas", Kind.COUNT): lambda fleet: fleet.replicas,
        Column("plan"): lambda fleet: fleet.plan,
        Column("meets demand"): lambda fleet: "yes" if fleet.broken is None else f"no: {_reason(fleet)}",
        Column("TTFT", Kind.SECONDS): lambda fleet: fleet.ttft.expected_s,
        Column(f"TTFT {share}", Kind.SECONDS): lambda fleet: fleet.ttft.at_share_s,
        **(
            {
                Column("TPOT", Kind.SECONDS): lambda fleet: fleet.tpot.expected_s,
                Column(f"TPOT {share}", Kind.SECONDS): lambda fleet: fleet.tpot.at_share_s,
            }
            if demand.mean.output_tokens > 1
            else {}
        ),
        Column("requests/s", Kind.COUNT): lambda fleet: rounded_or_none(fleet.requests_per_s),
        Column("output tokens/s per GPU", Kind.COUNT): lambda fleet: rounded_or_none(
            fleet.output_tokens_per_s / fleet.gpus
        ),
        Column("$/hour", Kind.COUNT): lambda fleet: (
            rounded_or_none(fleet.cost_per_hour) if fleet.broken is None else None
        ),
    }
    if demand.deadline is not None:
        cells |= {
            Column("hours", Kind.COUNT): lambda fleet: rounded_or_none(fleet.hours),
            Column("$ in total", Kind.COUNT): lambda fleet: (
                rounded_or_none(fleet.job_cost) if fleet.broken is None else None
            ),
            Column("$/1M pages", Kind.COUNT): lambda fleet: rounded_or_none(fleet.cost_per_million_requests),
        }
    else:
        cells |= {
            Column("$/1M in", Kind.COUNT): lambda fleet: rounded_or_none(fleet.cost_per_million_input),
            Column("$/1M out", Kind.COUNT): lambda fleet: rounded_or_none(fleet.cost_per_million_output),
        }
    cells[Column("bottleneck")] = limit_text
    return table_of(CHOICES, fleets, cells, witnesses=choice_witnesses(demand.share))


def plans_table(fleets: Sequence[SizedFleet]) -> Table:
    """Every plan with its cache, its limits, and its times and throughput at the demand."""
    has_tpot = any(fleet.demand.mean.output_tokens > 1 for fleet in fleets)
    return table_of(
        PLANS,
        fleets,
        {
            Column("GPU"): lambda fleet: fleet.device,
            Column("engine"): lambda fleet: ENGINE_NAMES[fleet.engine],
            Column("plan"): lambda fleet: fleet.plan,
            Column("replicas", Kind.COUNT): lambda fleet: fleet.replicas,
            Column("GPUs", Kind.COUNT): lambda fleet: fleet.gpus,
            Column("meets demand"): lambda fleet: "yes" if fleet.broken is None else f"no: {_reason(fleet)}",
            Column("cache, tokens", Kind.COUNT): lambda fleet: fleet.candidate.replica.considered.cache_tokens,
            Column("longest context", Kind.COUNT): lambda fleet: fleet.candidate.replica.fit.largest_context,
            Column("max_num_seqs", Kind.COUNT): lambda fleet: fleet.candidate.replica.considered.max_sequences,
            Column("max_num_batched_tokens", Kind.COUNT): lambda fleet: (
                fleet.candidate.replica.considered.max_batched_tokens
            ),
            Column("concurrent sequences", Kind.COUNT): lambda fleet: fleet.state.sequences,
            Column("TTFT", Kind.SECONDS): lambda fleet: fleet.ttft.expected_s,
            **({Column("TPOT", Kind.SECONDS): lambda fleet: fleet.tpot.expected_s} if has_tpot else {}),
            Column("output tokens/s per GPU", Kind.COUNT): lambda fleet: rounded_or_none(
                fleet.output_tokens_per_s / fleet.gpus
            ),
        },
        witnesses=PLAN_WITNESSES,
    )


def replayed_table(fleets: Sequence[tuple[SizedFleet, ReplayOutcome]], demand: Demand) -> Table:
    """The steady state next to vLLM's own scheduler on the same step times; TTFT as the engine sees it."""
    rows: list[tuple[Cell, ...]] = []
    for fleet, outcome in fleets:
        name, state, queue = f"{fleet.gpus} x {fleet.device}", fleet.state, fleet.state.queue
        assert isinstance(queue, PromptQueue), "a replay has no prefill workers"
        waits = queue.waits()
        pairs = [("requests/s", fleet.replicas * state.requests_per_s, outcome.requests_per_s)]
        shares = (0.5, demand.share)
        pairs += [(f"TTFT p{share * 100:g}, s", waits.at(share), outcome.ttft.at(share)) for share in shares]
        if outcome.tpot is not None:
            tpot = outcome.tpot
            pairs += [(f"TPOT p{share * 100:g}, s", state.per_token_at(share), tpot.at(share)) for share in shares]
        rows += [
            (name, what, rounded_or_none(steady), rounded_or_none(replayed), change_text_of(steady, replayed))
            for what, steady, replayed in pairs
        ]
    columns = (Column("fleet"), Column("figure"))
    numbers = (Column("steady state", Kind.COUNT), Column("replay", Kind.COUNT), Column("difference"))
    return Table(title=REPLAYED, columns=(*columns, *numbers), rows=tuple(rows))


def change_text_of(before: float, after: float) -> str:
    """`+4 %`: the replay over the steady state."""
    return f"{100 * (after / before - 1):+.0f} %" if before else "?"


def bands_table(fleet: SizedFleet, demand: Demand) -> Table:
    """The times of the best fleet with their low and high estimates, and the steps that they are made of."""
    rows: list[tuple[Cell, ...]] = []
    traced: list[tuple[Witness, ...]] = []
    medians = {"TTFT": ttft, "TPOT": tpot}
    tail = f"p{demand.share * 100:g}"
    for name, time in _times(fleet, demand).items():
        factor = time.at_share_s / time.expected_s
        median, late = medians[name](fleet), at_share(name, time.at_share_s, demand.share)
        for what, of, scale in (("median", median, 1.0), (tail, late, factor)):
            expected_s, low, high = of.value, time.band.low * scale, time.band.high * scale
            rows.append((name, what, expected_s, low, high))
            traced.append(banded_witnesses(of, low, high, name))
    state, origin = fleet.state, fleet.candidate.replica.table.origin
    for name, what, seconds in (
        ("decode step", counted(state.sequences, "sequence"), state.plain_s),
        ("prefill of one prompt", "alone", state.alone_s),
    ):
        rows.append((name, what, seconds, None, None))
        traced.append((Witness(name, seconds, "s", f"step table: {origin}"),))
    columns = (Column("time"), Column("of requests"))
    figures = tuple(Column(name, Kind.SECONDS) for name in ("expected", "low", "high"))
    return Table(
        title="Times of requests",
        columns=(*columns, *figures),
        rows=tuple(rows),
        witnesses=lambda row, place: traced[row][place - 2],
    )


def times_chart(fleet: SizedFleet, demand: Demand) -> BarChart | None:
    """The same times as bars; no chart where none is asked for."""
    rows = [row for row in bands_table(fleet, demand).rows if row[3] is not None]
    names = tuple(f"{time}, {of}" for time, of, *_ in rows)
    series = (
        Series(name, tuple(cast("float", row[place]) for row in rows))
        for place, name in ((3, "low"), (2, "expected"), (4, "high"))
    )
    if not rows:
        return None
    return BarChart(
        title=f"TTFT and TPOT on {fleet.gpus} x {fleet.device}",
        categories=names,
        series=tuple(series),
        kind=Kind.SECONDS,
        interval=("low", "expected", "high"),
    )


def frontier_chart(fleets: Sequence[SizedFleet], best: SizedFleet | None) -> Chart | None:
    """Throughput per GPU against the speed that a user sees, at the best plan for each speed; no chart without TPOT."""
    by_gpu = _by_gpu([fleet for fleet in fleets if fleet.demand.mean.output_tokens > 1])
    if all(len(points) < 2 for points in by_gpu.values()):
        return None
    marks = () if best is None else (_mark(best),)
    return LineChart(
        title="Throughput per GPU against tokens/s per user",
        x=Axis("tokens/s per user", Kind.COUNT),
        y=Axis("output tokens/s per GPU", Kind.COUNT),
        lines=tuple(Line(name, tuple(_frontier(points))) for name, points in by_gpu.items()),
        marks=marks,
        caption="Each line takes the best plan at every speed, from one request at a time to as many as fit.",
    )


def _by_gpu(fleets: Sequence[SizedFleet]) -> dict[str, list[tuple[float, float]]]:
    points_of: dict[str, list[tuple[float, float]]] = {}
    for fleet in (fleet for fleet in fleets if fleet.prefill is None):
        considered = fleet.candidate.replica.considered
        name = f"{fleet.device}, {ENGINE_NAMES[fleet.engine]}"
        points_of.setdefault(name, []).extend(
            (1 / state.step_s, state.requests_per_s * state.output_tokens / considered.plan.replica_ranks)
            for state in considered.states
        )
    return points_of


def _frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other point exceeds in both."""
    frontier: list[tuple[float, float]] = []
    for speed, throughput in sorted(points, reverse=True):
        if not frontier or throughput > frontier[-1][1]:
            frontier.append((speed, throughput))
    return frontier[::-1]


def _mark(fleet: SizedFleet) -> Mark:
    return Mark(1 / fleet.tpot.expected_s, fleet.output_tokens_per_s / fleet.gpus, f"{fleet.gpus} x {fleet.device}")

"""The answer of a sized fleet: three lines, one row for each GPU, every plan as a point, and where the time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from llm_perf_opt.core.report import (
    Axis,
    Cell,
    Chart,
    Column,
    Kind,
    Line,
    LineChart,
    Mark,
    Table,
    counted,
    listed,
    table_of,
    three_digits,
)
from llm_perf_opt.core.units import format_number_of, format_seconds
from llm_perf_opt.serving.capacity.outcome import ReplayOutcome
from llm_perf_opt.serving.capacity.replay_report import rounded_or_none
from llm_perf_opt.serving.capacity.sizing import Demand, ServedTime, SizedFleet

CHOICES, PLANS = "GPUs side by side", "Every plan that fits"
REPLAYED = "Steady state and replay through vLLM's scheduler"
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
_LIMITS = {
    "TPOT": "the time per output token",
    "TTFT": "the time to first token",
    "E2E": "the time of a whole answer",
    "cache": "the memory for the KV cache",
    "steps": "the time of the steps",
    "queue": "requests come faster than they are answered",
    "time": "the time of the steps",
}


def answer_lines(fleets: Sequence[SizedFleet], demand: Demand, why_none: str | None) -> tuple[str, ...]:
    """The fleet to take with its times, what it answers and costs, and the next best; or why there is none."""
    kept = [fleet for fleet in fleets if fleet.broken is None]
    if not kept:
        return tuple(_without(fleets, demand, why_none))
    best = kept[0]
    return (
        f"{_take(best, demand)}: {_times_text(best, demand)}.",
        f"{_rates(best)}. {_bill(best)}Limit: {limit_text(best)}.",
        _others(best, kept[1:], [fleet for fleet in fleets if fleet.broken is not None]),
    )


def _take(fleet: SizedFleet, demand: Demand) -> str:
    replicas = f"{fleet.replicas} replicas of {fleet.plan}" if fleet.replicas > 1 else fleet.plan
    what = {
        "users": None if demand.users is None else f"serves {counted(demand.users, 'user')}",
        "rate": None if demand.requests_per_s is None else f"answers {three_digits(demand.requests_per_s)} requests/s",
        "pages": None
        if demand.deadline is None or fleet.hours is None
        else f"reads {demand.deadline.pages:,} pages in {fleet.hours:,.1f} h",
    }
    done = next((text for text in what.values() if text is not None), _held(fleet))
    origin = "" if fleet.is_measured else ", times by its data sheet"
    return f"{fleet.gpus} x {fleet.device} ({replicas}, {_ENGINES[fleet.engine]}{origin}) {done}"


def _held(fleet: SizedFleet) -> str:
    """How many requests have room, and the longest that one could be where that is known."""
    longest = fleet.candidate.replica.fit.largest_context
    context = "" if longest is None else f" (longest context {longest:,} tokens)"
    return f"holds {format_number_of(fleet.state.sequences, 'request')}{context}"


def _times_text(fleet: SizedFleet, demand: Demand) -> str:
    """TTFT and TPOT; an answer of one token has no time between tokens."""
    times = {"TTFT": fleet.ttft} | ({"TPOT": fleet.tpot} if demand.mean.output_tokens > 1 else {})
    return ", ".join(time_text(name, time, demand) for name, time in times.items())


def time_text(name: str, time: ServedTime, demand: Demand) -> str:
    """`TTFT 310 ms (p99 620 ms)`, with the limit where there is one."""
    limits = {} if demand.promise is None else demand.promise.limits_s
    asked = f" of {format_seconds(limits[name])}" if name in limits else ""
    return (
        f"{name} {format_seconds(time.expected_s)} (p{demand.share * 100:g} {format_seconds(time.at_share_s)}{asked})"
    )


def _rates(fleet: SizedFleet) -> str:
    tokens = fleet.output_tokens_per_s
    return (
        f"{three_digits(fleet.requests_per_s)} requests/s, {tokens:,.0f} output tokens/s "
        f"({tokens / fleet.gpus:,.0f} for each GPU)"
    )


def _bill(fleet: SizedFleet) -> str:
    if fleet.cost_per_hour is None:
        return "No price is known: add --price. "
    if fleet.job_cost is not None:
        pages = fleet.cost_per_million_requests or 0.0
        return f"${fleet.job_cost:,.0f} in all, ${pages:,.0f} for a million pages. "
    made, read = fleet.cost_per_million_output or 0.0, fleet.cost_per_million_input or 0.0
    return (
        f"${fleet.cost_per_hour:,.2f} an hour: ${three_digits(read)} for a million input tokens, "
        f"${three_digits(made)} for a million output tokens. "
    )


def _others(best: SizedFleet, others: Sequence[SizedFleet], broken: Sequence[SizedFleet]) -> str:
    parts = []
    if others:
        second = others[0]
        text = f"Next: {second.gpus} x {second.device} ({second.plan}, {_ENGINES[second.engine]})"
        ours, theirs = (fleet.job_cost or fleet.cost_per_hour for fleet in (best, second))
        parts.append(text if ours is None or theirs is None else f"{text} costs {100 * (theirs / ours - 1):.0f} % more")
    if broken:
        names = dict.fromkeys(f"{fleet.device} ({_reason(fleet)})" for fleet in broken)
        parts.append(f"Not: {listed(list(names), 4)}")
    return f"{'. '.join(parts) or 'No other GPU was named: add some to --gpus'}."


def _without(fleets: Sequence[SizedFleet], demand: Demand, why_none: str | None) -> Iterator[str]:
    if not fleets:
        yield why_none or "No plan fits."
        return
    nearest = fleets[0]
    yield f"No plan does it: {listed([f'{fleet.device} ({_reason(fleet)})' for fleet in fleets], 4)}."
    times = _times_text(nearest, demand)
    yield f"Nearest: {nearest.gpus} x {nearest.device} ({nearest.plan}): {times}."
    yield "Give faster GPUs, more time in --slo, or a smaller format: --weights fp8."


def _reason(fleet: SizedFleet) -> str:
    """Which limit is broken, in a word or two."""
    named = {"queue": "too many requests", "cache": "no memory for all users"}
    return named.get(fleet.broken or "", f"{fleet.broken}")


def limit_text(fleet: SizedFleet) -> str:
    """What the next requests would meet first."""
    return _LIMITS.get(fleet.limit, fleet.limit)


def choices_table(fleets: Sequence[SizedFleet], demand: Demand) -> Table:
    """One row for each GPU and engine, the best first; a GPU that breaks a limit has no cost."""
    share = f"p{demand.share * 100:g}"
    engines = len({fleet.engine for fleet in fleets}) > 1
    cells: dict[Column, Callable[[SizedFleet], Cell]] = {
        Column("GPU"): lambda fleet: fleet.device,
        **({Column("engine"): lambda fleet: _ENGINES[fleet.engine]} if engines else {}),
        Column("GPUs", Kind.COUNT): lambda fleet: fleet.gpus,
        Column("replicas", Kind.COUNT): lambda fleet: fleet.replicas,
        Column("plan"): lambda fleet: fleet.plan,
        Column("does it"): lambda fleet: "yes" if fleet.broken is None else f"no: {_reason(fleet)}",
        Column("TTFT", Kind.SECONDS): lambda fleet: fleet.ttft.expected_s,
        Column(f"TTFT {share}", Kind.SECONDS): lambda fleet: fleet.ttft.at_share_s,
        Column("TPOT", Kind.SECONDS): lambda fleet: fleet.tpot.expected_s,
        Column(f"TPOT {share}", Kind.SECONDS): lambda fleet: fleet.tpot.at_share_s,
        Column("requests/s", Kind.COUNT): lambda fleet: rounded_or_none(fleet.requests_per_s),
        Column("tokens/s/GPU", Kind.COUNT): lambda fleet: rounded_or_none(fleet.output_tokens_per_s / fleet.gpus),
        Column("$/hour", Kind.COUNT): lambda fleet: (
            rounded_or_none(fleet.cost_per_hour) if fleet.broken is None else None
        ),
    }
    if demand.deadline is not None:
        cells |= {
            Column("hours", Kind.COUNT): lambda fleet: rounded_or_none(fleet.hours),
            Column("$ in all", Kind.COUNT): lambda fleet: (
                rounded_or_none(fleet.job_cost) if fleet.broken is None else None
            ),
            Column("$/1M pages", Kind.COUNT): lambda fleet: rounded_or_none(fleet.cost_per_million_requests),
        }
    else:
        cells |= {
            Column("$/1M in", Kind.COUNT): lambda fleet: rounded_or_none(fleet.cost_per_million_input),
            Column("$/1M out", Kind.COUNT): lambda fleet: rounded_or_none(fleet.cost_per_million_output),
        }
    cells[Column("limit")] = limit_text
    return table_of(CHOICES, fleets, cells)


def plans_table(fleets: Sequence[SizedFleet]) -> Table:
    """Every plan, what it holds and what one GPU of it does at the demand."""
    return table_of(
        PLANS,
        fleets,
        {
            Column("GPU"): lambda fleet: fleet.device,
            Column("engine"): lambda fleet: _ENGINES[fleet.engine],
            Column("plan"): lambda fleet: fleet.plan,
            Column("replicas", Kind.COUNT): lambda fleet: fleet.replicas,
            Column("GPUs", Kind.COUNT): lambda fleet: fleet.gpus,
            Column("does it"): lambda fleet: "yes" if fleet.broken is None else f"no: {_reason(fleet)}",
            Column("cache, tokens", Kind.COUNT): lambda fleet: fleet.candidate.replica.considered.cache_tokens,
            Column("longest context", Kind.COUNT): lambda fleet: fleet.candidate.replica.fit.largest_context,
            Column("max_num_seqs", Kind.COUNT): lambda fleet: fleet.candidate.replica.considered.max_sequences,
            Column("max_num_batched_tokens", Kind.COUNT): lambda fleet: (
                fleet.candidate.replica.considered.max_batched_tokens
            ),
            Column("sequences at once", Kind.COUNT): lambda fleet: fleet.state.sequences,
            Column("TTFT", Kind.SECONDS): lambda fleet: fleet.ttft.expected_s,
            Column("TPOT", Kind.SECONDS): lambda fleet: fleet.tpot.expected_s,
            Column("tokens/s/GPU", Kind.COUNT): lambda fleet: rounded_or_none(fleet.output_tokens_per_s / fleet.gpus),
        },
    )


def replayed_table(fleets: Sequence[tuple[SizedFleet, ReplayOutcome]], demand: Demand) -> Table:
    """The steady state beside vLLM's own scheduler on the same step times; TTFT as the engine sees it."""
    rows: list[tuple[Cell, ...]] = []
    for fleet, outcome in fleets:
        name, state, waits = f"{fleet.gpus} x {fleet.device}", fleet.state, fleet.state.queue.waits()
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
    """`+4 %`, of a replay over a steady state."""
    return f"{100 * (after / before - 1):+.0f} %" if before else "?"


def bands_table(fleet: SizedFleet, demand: Demand) -> Table:
    """The times of the best fleet with their bands."""
    rows: list[tuple[Cell, ...]] = []
    for name, time in (("TTFT", fleet.ttft), ("TPOT", fleet.tpot)):
        factor = time.at_share_s / time.expected_s
        rows.append((name, "median", time.expected_s, time.band.low, time.band.high))
        edges = (time.band.low * factor, time.band.high * factor)
        rows.append((name, f"p{demand.share * 100:g}", time.at_share_s, *edges))
    columns = (Column("time"), Column("of requests"))
    figures = tuple(Column(name, Kind.SECONDS) for name in ("expected", "low", "high"))
    return Table(title="Times of requests", columns=(*columns, *figures), rows=tuple(rows))


def frontier_chart(fleets: Sequence[SizedFleet], best: SizedFleet | None) -> Chart | None:
    """Throughput of a GPU against the speed that a user sees: for each GPU the best of all plans and loads."""
    by_gpu = _by_gpu(fleets)
    if all(len(points) < 2 for points in by_gpu.values()):
        return None
    marks = () if best is None else (_mark(best),)
    return LineChart(
        title="Throughput of a GPU against the speed of an answer",
        x=Axis("tokens/s of each user", Kind.COUNT),
        y=Axis("output tokens/s of each GPU", Kind.COUNT),
        lines=tuple(Line(name, tuple(_frontier(points))) for name, points in by_gpu.items()),
        marks=marks,
        caption="For each GPU the best plan at every speed, from one request at a time to as many as fit.",
    )


def _by_gpu(fleets: Sequence[SizedFleet]) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for fleet in fleets:
        considered = fleet.candidate.replica.considered
        name = f"{fleet.device}, {_ENGINES[fleet.engine]}"
        found.setdefault(name, []).extend(
            (1 / state.step_s, state.requests_per_s * state.output_tokens / considered.plan.replica_ranks)
            for state in considered.states
        )
    return found


def _frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other beats in both."""
    kept: list[tuple[float, float]] = []
    for speed, throughput in sorted(points, reverse=True):
        if not kept or throughput > kept[-1][1]:
            kept.append((speed, throughput))
    return kept[::-1]


def _mark(fleet: SizedFleet) -> Mark:
    return Mark(1 / fleet.tpot.expected_s, fleet.output_tokens_per_s / fleet.gpus, f"{fleet.gpus} x {fleet.device}")

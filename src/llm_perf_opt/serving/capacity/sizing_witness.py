"""How each figure of a fleet comes about, for the tables of `serve`: formulas down to step times, fits and prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llm_perf_opt.core.hardware.prices import shipped_prices
from llm_perf_opt.core.witness import Witness, worked_out
from llm_perf_opt.core.workload import steps_after_prompt
from llm_perf_opt.serving.capacity.queueing import RelayedQueue, poisson_chances
from llm_perf_opt.serving.capacity.sizing import SizedFleet
from llm_perf_opt.serving.capacity.steady_state import SteadyState
from llm_perf_opt.timing.step.request_time import first_token_parts, request_fit

_STEADY = "the steady state of a replica (docs/how/replay.md)"
_CLIENT = "fitted to the requests of measured servers (docs/evidence/serving-times.md)"


def _steps_of(fleet: SizedFleet) -> str:
    return f"step table: {fleet.candidate.replica.table.origin}"


def replicas(fleet: SizedFleet) -> Witness:
    """The number that the demand needs."""
    return Witness("replicas", fleet.replicas, "", "the fewest with which the demand is met, or all that fit")


def gpus(fleet: SizedFleet) -> Witness:
    """Of all replicas."""
    ranks = Witness("GPUs of a replica", fleet.candidate.replica.considered.plan.replica_ranks, "", fleet.plan)
    return worked_out("times", "GPUs", [replicas(fleet), ranks])


def mean_step(state: SteadyState, origin: str) -> Witness:
    """The step averaged over the chances that it reads no prompt, one, two and so on."""
    given = Witness("mean step", state.step_s, "s", f"{_STEADY}; {origin}")
    if isinstance(state.queue, RelayedQueue):  # its prompts are read on other GPUs
        return given
    reading, per_step = state.queue.reading_s, state.queue.per_step
    most = len(reading) - 1
    if state.crowd is not None or not most:
        return given
    chances = poisson_chances(per_step, most)
    by_chance = f"a Poisson process of {per_step:.3g} prompts in a step"
    full = max(0.0, 1 - sum(chances))
    read = sum(number * chance for number, chance in enumerate(chances)) + full * most
    terms = [
        _times(f"steps with {number} prompts", chance, by_chance, step_s, origin)
        for number, (chance, step_s) in enumerate(zip(chances, reading, strict=True))
    ]
    terms.append(_times("full steps, others wait", full, by_chance, reading[-1], origin))
    longer = (reading[-1] - reading[0]) / most
    terms.append(_times("prompts beyond those", max(0.0, per_step - read), by_chance, longer, origin))
    tree = worked_out("sum", "mean step", terms, "s", _STEADY)
    return tree if tree.gives(state.step_s) else given


def _times(name: str, share: float, by_chance: str, step_s: float, origin: str) -> Witness:
    parts = [Witness("chance", share, "", by_chance), Witness("step", step_s, "s", origin)]
    return worked_out("times", name, parts, "s")


def tpot(fleet: SizedFleet) -> Witness:
    """The median time of a token."""
    state, origin = fleet.state, _steps_of(fleet)
    alone = state.queue.users == 1
    step = Witness("step without prompts", state.plain_s, "s", origin) if alone else mean_step(state, origin)
    kept = Witness("tokens that a step adds", state.tokens_per_step, "", "1, or what speculation keeps")
    return worked_out("quotient", "TPOT", [step, kept], "s", _STEADY)


def ttft(fleet: SizedFleet) -> Witness:
    """The median time to the first token."""
    state = fleet.state
    if state.client is None:
        return Witness("TTFT", state.first_token_s, "s", f"median wait in the queue of prompts; {_steps_of(fleet)}")
    parts = first_token_parts(state.step_s, state.alone_s, state.sequences, state.client)
    terms = [Witness(name, value, "s", _CLIENT) for name, value in parts.items()]
    return worked_out("sum", "TTFT", terms, "s", f"{_CLIENT}; {_steps_of(fleet)}")


def at_share(name: str, value: float, share: float) -> Witness:
    """The time that this share of the requests takes at most."""
    return Witness(f"{name} p{share * 100:g}", value, "s", f"the distribution over requests in {_STEADY}")


def requests(fleet: SizedFleet) -> Witness:
    """Requests that end in a second."""
    state, users = fleet.state, fleet.demand.users
    if users is not None:
        left = Witness("tokens after the first", steps_after_prompt(fleet.demand.mean.output_tokens))
        rest = worked_out("times", "the other tokens", [tpot(fleet), left], "s")
        latency = worked_out("sum", "time of an answer", [ttft(fleet), rest], "s")
        return worked_out("quotient", "requests/s", [Witness("users", users), latency], "/s", "Little's law")
    each = Witness(
        "requests/s of a replica", state.requests_per_s, "/s", f"the arrival rate that {_STEADY} keeps up with"
    )
    if state.crowd is None:
        of_answer = [Witness("decode steps of an answer", state.steps), mean_step(state, _steps_of(fleet))]
        answer = worked_out("times", "time that an answer decodes", of_answer, "s")
        held = Witness("concurrent sequences", state.sequences, "", "as many as cache, scheduler and SLO allow")
        each = worked_out("quotient", "requests/s of a replica", [held, answer], "/s", "Little's law")
    return worked_out("times", "requests/s", [replicas(fleet), each], "/s")


def tokens(fleet: SizedFleet) -> Witness:
    """Output tokens of the fleet in a second."""
    length = Witness("output tokens of a request", fleet.demand.mean.output_tokens, "", "the mean of what was asked")
    return worked_out("times", "output tokens/s", [requests(fleet), length], "/s")


def tokens_per_gpu(fleet: SizedFleet) -> Witness:
    """Output tokens of one GPU in a second."""
    return worked_out("quotient", "output tokens/s per GPU", [tokens(fleet), gpus(fleet)], "/s")


def cost_per_hour(fleet: SizedFleet) -> Witness | None:
    """Of all GPUs; None without a price, and for a fleet that does not meet the demand."""
    if (price := fleet.price_per_hour) is None or fleet.broken is not None:
        return None
    listed = shipped_prices().get(fleet.device)
    is_listed = listed is not None and listed.per_hour == price
    origin = (
        f"{listed.provider}, {listed.instance}, {listed.as_of}: {listed.source}" if listed and is_listed else "given"
    )
    hourly = Witness("price of a GPU hour", price, "USD", origin)
    return worked_out("times", "cost of an hour", [hourly, gpus(fleet)], "USD")


def _per_million(name: str, fleet: SizedFleet, share: Witness | None, rate: Witness) -> Witness | None:
    if (hour := cost_per_hour(fleet)) is None or not rate.value:
        return None
    parts = [hour, *(() if share is None else (share,)), Witness("a million", 1e6)]
    in_hour = worked_out("times", "in an hour", [rate, Witness("seconds", 3600)])
    return worked_out("quotient", name, [worked_out("times", "cost of a million hours", parts), in_hour], "USD")


def _share(name: str, fleet: SizedFleet, value: float) -> Witness:
    return Witness(name, value, "", f"mean step over the step without prompts; {_steps_of(fleet)}")


def _input_cost(fleet: SizedFleet) -> Witness | None:
    length = Witness("input tokens of a request", fleet.demand.mean.prompt_tokens, "", "the mean of what was asked")
    rate = worked_out("times", "input tokens/s", [requests(fleet), length], "/s")
    return _per_million(
        "$/1M in", fleet, _share("share of time spent on prompts", fleet, fleet.state.prompt_share), rate
    )


def _output_cost(fleet: SizedFleet) -> Witness | None:
    share = _share("share of time spent on decoding", fleet, 1 - fleet.state.prompt_share)
    return _per_million("$/1M out", fleet, share, tokens(fleet))


def _page_cost(fleet: SizedFleet) -> Witness | None:
    return _per_million("$/1M pages", fleet, None, requests(fleet))


def _hours(fleet: SizedFleet) -> Witness | None:
    if fleet.demand.deadline is None:
        return None
    in_hour = worked_out("times", "pages in an hour", [requests(fleet), Witness("seconds", 3600)])
    return worked_out("quotient", "hours", [Witness("pages", fleet.demand.deadline.pages), in_hour])


def _job(fleet: SizedFleet) -> Witness | None:
    hours, hour = _hours(fleet), cost_per_hour(fleet)
    return None if hours is None or hour is None else worked_out("times", "cost of the job", [hours, hour], "USD")


def _rounded(of: Callable[[SizedFleet], Witness | None]) -> Callable[[SizedFleet], Witness | None]:
    """A cell of three digits."""

    def rounded(fleet: SizedFleet) -> Witness | None:
        exact = of(fleet)
        return None if exact is None else worked_out("rounded", exact.name, [exact], exact.unit)

    return rounded


def choice_witnesses(share: float) -> Mapping[str, Callable[[SizedFleet], Witness | None]]:
    """Name of a column of the table of GPUs -> how its cell comes about."""
    tail = f"p{share * 100:g}"
    return {
        "GPUs": gpus,
        "replicas": replicas,
        "TTFT": ttft,
        f"TTFT {tail}": lambda fleet: at_share("TTFT", fleet.ttft.at_share_s, share),
        "TPOT": tpot,
        f"TPOT {tail}": lambda fleet: at_share("TPOT", fleet.tpot.at_share_s, share),
        "requests/s": _rounded(requests),
        "output tokens/s per GPU": _rounded(tokens_per_gpu),
        "$/hour": _rounded(cost_per_hour),
        "hours": _rounded(_hours),
        "$ in total": _rounded(_job),
        "$/1M pages": _rounded(_page_cost),
        "$/1M in": _rounded(_input_cost),
        "$/1M out": _rounded(_output_cost),
    }


def _fit(fleet: SizedFleet) -> str:
    fit = fleet.candidate.replica.fit
    parts = {
        "weights": fit.weights_bytes,
        "working memory": fit.working_bytes,
        "outside PyTorch": fit.outside_torch_bytes,
    }
    taken = ", ".join(f"{name} {size:,} B" for name, size in parts.items() if size is not None)
    return f"{fit.budget_bytes:,} B of each GPU ({fit.utilisation:g} of its memory) less {taken}"


def _held(name: str, value: int | None, origin: str) -> Witness | None:
    return None if value is None else Witness(name, value, "", origin)


PLAN_WITNESSES: Mapping[str, Callable[[SizedFleet], Witness | None]] = {
    "replicas": replicas,
    "GPUs": gpus,
    "cache, tokens": lambda fleet: _held(
        "cache, tokens", fleet.candidate.replica.considered.cache_tokens, f"whole blocks in {_fit(fleet)}"
    ),
    "longest context": lambda fleet: _held(
        "longest context",
        fleet.candidate.replica.fit.largest_context,
        f"of one sequence in {_fit(fleet)}; ended by: {fleet.candidate.replica.fit.context_limit}",
    ),
    "max_num_seqs": lambda fleet: _held(
        "max_num_seqs", fleet.candidate.replica.considered.max_sequences, "the engine's default, or as given"
    ),
    "max_num_batched_tokens": lambda fleet: _held(
        "max_num_batched_tokens",
        fleet.candidate.replica.considered.max_batched_tokens,
        "the engine's default, or as given",
    ),
    "concurrent sequences": lambda fleet: _held("concurrent sequences", fleet.state.sequences, _STEADY),
    "TTFT": ttft,
    "TPOT": tpot,
    "output tokens/s per GPU": _rounded(tokens_per_gpu),
}


def banded_witnesses(expected: Witness, low: float, high: float, name: str) -> tuple[Witness, Witness, Witness]:
    """A time, and the ends between which eight of ten measured servers were."""
    records = f"the ends of eight of ten measured servers over their prediction, of {request_fit().records:,} records"
    ends = (
        worked_out("times", f"{name}, {end}", [expected, Witness("factor", value / expected.value, "", records)], "s")
        for end, value in (("low", low), ("high", high))
    )
    return expected, *ends  # type: ignore[return-value]

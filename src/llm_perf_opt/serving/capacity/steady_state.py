"""What one replica can do at most, from its step table alone: no replay, a fraction of a millisecond for each load.

In a steady state as many requests come as end. With `n` sequences decoding, answers of `O` tokens and prompts of `P`,
`n / O` requests end with every step, so as many prompts are read in it, `n * P / O` tokens. The mean step is
`T(n) = step without prompts + prompts of a step * what a prompt adds`, and by Little's law `n / (O * T(n))` requests
end in a second. It is coarse: lengths are their means, and nobody waits by chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llm_perf_opt.serving.requests import Traffic
from llm_perf_opt.timing.step.step_table import StepTable

_DENSITY = 2**0.25  # from one number of sequences to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanRequest:
    """The mean of all requests. `image_tokens` are those of the prompt that an encoder makes."""

    prompt_tokens: float
    output_tokens: float
    image_tokens: float = 0.0

    @property
    def mean_context(self) -> float:
        """Tokens in the cache halfway through the answer."""
        return self.prompt_tokens + self.output_tokens / 2


def mean_request(traffic: Traffic) -> MeanRequest:
    """Of all requests; what is shared in a prefix counts as cached and is left out, but for its first reader."""
    requests = traffic.requests
    saved = 0
    seen: set[str] = set()
    for one in requests:
        if one.prefix is not None and one.prefix in seen:
            saved += one.prefix_tokens
        elif one.prefix is not None:
            seen.add(one.prefix)
    return MeanRequest(
        prompt_tokens=max(1.0, (sum(one.prompt_tokens for one in requests) - saved) / len(requests)),
        output_tokens=sum(request.output_tokens for request in requests) / len(requests),
        image_tokens=sum(image.tokens for one in requests for image in one.images) / len(requests),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLimits:
    """How much one scheduler holds and takes in a step."""

    sequences: int
    batched_tokens: int
    cache_tokens: int

    def of_groups(self, count: int) -> ReplicaLimits:
        """Of a replica with so many schedulers, each with these limits."""
        return ReplicaLimits(
            sequences=count * self.sequences,
            batched_tokens=count * self.batched_tokens,
            cache_tokens=count * self.cache_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """One replica with `sequences` decoding."""

    sequences: int
    step_s: float  # the mean: time per output token
    first_token_s: float  # of a request that need not wait for another
    requests_per_s: float


def steady_states(table: StepTable, mean: MeanRequest, limits: ReplicaLimits) -> Iterator[SteadyState]:
    """From one sequence on, up to what cache, sequences and tokens of a step allow."""
    by_cache = limits.cache_tokens / (mean.prompt_tokens + mean.output_tokens)
    by_tokens = limits.batched_tokens / (1 + mean.prompt_tokens / mean.output_tokens)
    most = max(1, int(min(limits.sequences, by_cache, by_tokens)))
    sequences = 1
    while sequences < most:
        yield _steady(table, mean, limits, sequences)
        sequences = max(sequences + 1, round(sequences * _DENSITY))
    yield _steady(table, mean, limits, most)


def _steady(table: StepTable, mean: MeanRequest, limits: ReplicaLimits, sequences: int) -> SteadyState:
    cached = round(sequences * mean.mean_context)
    chunk = max(1, min(round(mean.prompt_tokens), limits.batched_tokens - sequences))
    prompts = sequences / mean.output_tokens  # in each step
    together = max(1, round(prompts))
    share = min(1.0, chunk / mean.prompt_tokens)
    plain = table.seconds(sequences, cached)
    image = round(mean.image_tokens * share) * together
    mixed = table.seconds(sequences, cached, [(chunk, 0)] * together, image)
    added = (mixed - plain) / together / share  # by one whole prompt
    step = plain + prompts * added + table.host_s
    return SteadyState(
        sequences=sequences,
        step_s=step,
        first_token_s=step / 2 + plain / share + added + table.host_s,
        requests_per_s=prompts / step,
    )


def most_requests(
    states: list[SteadyState], tpot_s: float | None = None, ttft_s: float | None = None
) -> SteadyState | None:
    """The state with the most requests a second that keeps these limits; None: not even one sequence does."""
    kept = [
        state
        for state in states
        if (tpot_s is None or state.step_s <= tpot_s) and (ttft_s is None or state.first_token_s <= ttft_s)
    ]
    return max(kept, key=lambda state: state.requests_per_s, default=None)

"""What one replica does in a steady state, from its step table alone: no replay, under a millisecond for each load.

In a steady state as many requests come as end. With `n` sequences decoding, answers of `O` tokens and prompts of `P`,
`n / O` requests end with every step, so as many prompts are read in it on average: now none, now one, now two, as
chance has it. The mean step `T(n)` is that of the table over those chances, and by Little's law `n / (O * T(n))`
requests end in a second. Lengths are their means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, sqrt
from statistics import NormalDist

from llm_perf_opt.serving.capacity.outcome import Promise
from llm_perf_opt.serving.capacity.queueing import PromptQueue, most_read, poisson_chances
from llm_perf_opt.serving.requests import Traffic
from llm_perf_opt.timing.step.request_time import FirstToken, time_to_first
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
    for request in requests:
        if request.prefix is not None and request.prefix in seen:
            saved += request.prefix_tokens
        elif request.prefix is not None:
            seen.add(request.prefix)
    return MeanRequest(
        prompt_tokens=max(1.0, (sum(request.prompt_tokens for request in requests) - saved) / len(requests)),
        output_tokens=sum(request.output_tokens for request in requests) / len(requests),
        image_tokens=sum(image.tokens for request in requests for image in request.images) / len(requests),
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
    """One replica with `sequences` decoding.

    `plain_s` is a step without prompts, `alone_s` a prompt with nothing beside it. With `client` the first token is as
    a client sees it, without as the engine does.
    """

    sequences: int
    step_s: float  # the mean: time per output token
    requests_per_s: float
    output_tokens: float
    plain_s: float
    alone_s: float
    queue: PromptQueue
    client: FirstToken | None = None

    @property
    def first_token_s(self) -> float:
        """TTFT in the median."""
        return self.first_token_at(0.5)

    @property
    def prompt_share(self) -> float:
        """Of the time of steps, spent on prompts."""
        return 1 - self.plain_s / self.step_s

    def first_token_at(self, share: float) -> float:
        """What a share of the requests waits at most. What clients see beyond the engine was measured in the median."""
        if self.client is None:
            return self.queue.waits().at(share)
        seen = time_to_first(self.step_s, self.alone_s, self.sequences, self.client)
        if share == 0.5:
            return seen
        waits = self.queue.waits()
        return seen + (waits.at(share) - waits.at(0.5))

    def per_token_at(self, share: float) -> float:
        """TPOT of a share of the requests: by chance more or fewer prompts come while an answer is made."""
        prompt_s = (self.step_s - self.plain_s) * self.output_tokens / self.sequences
        by_chance = NormalDist().inv_cdf(share) * sqrt(self.sequences) * prompt_s / self.output_tokens
        return max(self.plain_s, self.step_s + by_chance)

    def broken(self, promise: Promise) -> str | None:
        """The first limit that the promised share of the requests does not keep; the cheap one is asked first."""
        share = promise.share
        tpot = self.per_token_at(share)
        if promise.tpot_s is not None and tpot > promise.tpot_s:
            return "TPOT"
        if promise.ttft_s is None and promise.e2e_s is None:
            return None
        ttft = self.first_token_at(share)
        if promise.ttft_s is not None and ttft > promise.ttft_s:
            return "TTFT"
        is_late = promise.e2e_s is not None and ttft + tpot * self.output_tokens > promise.e2e_s
        return "E2E" if is_late else None

    def keeps(self, promise: Promise | None) -> bool:
        """Whether every limit holds and no queue grows."""
        return not self.queue.is_full and (promise is None or self.broken(promise) is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyReplica:
    """A replica that can be asked for any load."""

    table: StepTable
    mean: MeanRequest
    limits: ReplicaLimits
    is_closed: bool = False  # users ask again when they have their answer; else requests come at random
    client: FirstToken | None = None

    @property
    def most(self) -> int:
        """Sequences that its cache, its scheduler and the tokens of a step hold; at least one."""
        by_cache = self.limits.cache_tokens / (self.mean.prompt_tokens + self.mean.output_tokens)
        by_tokens = self.limits.batched_tokens / (1 + self.mean.prompt_tokens / self.mean.output_tokens)
        return max(1, int(min(self.limits.sequences, by_cache, by_tokens)))

    def states(self) -> Iterator[SteadyState]:
        """From one sequence on, up to the most."""
        sequences = 1
        while sequences < self.most:
            yield self.at(sequences)
            sequences = max(sequences + 1, round(sequences * _DENSITY))
        yield self.at(self.most)

    def at(self, sequences: int) -> SteadyState:
        """With this number of sequences decoding."""
        mean, table = self.mean, self.table
        per_step = sequences / mean.output_tokens  # prompts that come in a step, and as many answers end
        reading = self._reading(sequences, most_read(per_step))
        step, chances = 0.0, poisson_chances(per_step, len(reading) - 1)
        for seconds, chance in zip(reading, chances, strict=True):
            step += seconds * chance
        # Beyond what one step reads, prompts wait for the next ones: those take as long as full ones.
        whole = max(1, round(mean.prompt_tokens))
        alone = table.seconds(0, 0, [(whole, 0)], round(mean.image_tokens)) + table.host_s
        waiting = per_step - sum(number * chance for number, chance in enumerate(chances))
        step += max(0.0, waiting) * (reading[-1] - reading[0]) / (len(reading) - 1)
        return SteadyState(
            sequences=sequences,
            step_s=step,
            requests_per_s=per_step / step,
            output_tokens=mean.output_tokens,
            plain_s=reading[0],
            alone_s=alone,
            queue=PromptQueue(
                requests_per_s=per_step / step,
                reading_s=reading,
                users=sequences if self.is_closed else None,
                per_step=per_step,
                idle=float(sequences == 1) if self.is_closed else exp(-sequences),
                alone_s=alone,
            ),
            client=self.client,
        )

    def _reading(self, sequences: int, most: int) -> tuple[float, ...]:
        """Steps that read no prompt, one, two and so on beside the sequences that decode."""
        mean, table = self.mean, self.table
        cached, prompt = round(sequences * mean.mean_context), max(1, round(mean.prompt_tokens))
        image, budget = round(mean.image_tokens), max(1, self.limits.batched_tokens - sequences)
        plain = table.seconds(sequences, cached) + table.host_s
        if prompt > budget:
            chunks = [(min(budget, prompt - before), before) for before in range(0, prompt, budget)]
            steps = [table.seconds(sequences, cached, [chunk], image // len(chunks)) for chunk in chunks]
            return plain, sum(steps) + len(steps) * table.host_s
        together = min(most, budget // prompt)
        return plain, *(
            table.seconds(sequences, cached, [(prompt, 0)] * count, image * count) + table.host_s
            for count in range(1, together + 1)
        )

    def at_rate(self, requests_per_s: float) -> SteadyState | None:
        """With the fewest sequences that answer this rate; None: no number does."""
        low, high = 0, self.most
        if self.at(high).requests_per_s < requests_per_s:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.at(middle).requests_per_s < requests_per_s else (low, middle)
        found = self.at(high)
        at_once = requests_per_s * self.mean.output_tokens * found.step_s  # by Little's law
        queue = replace(found.queue, requests_per_s=requests_per_s, idle=exp(-at_once))
        return replace(found, requests_per_s=requests_per_s, queue=queue)


def most_requests(states: Sequence[SteadyState], promise: Promise | None = None) -> SteadyState | None:
    """The state with the most requests a second that keeps a promise; None: not even one sequence does.

    More sequences are slower, so the last that keeps it is found by halves.
    """
    if not states or not states[0].keeps(promise):
        return None
    low, high = 0, len(states)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if states[middle].keeps(promise) else (low, middle)
    return max(states[: low + 1], key=lambda state: state.requests_per_s)

"""What one replica does in a steady state, from its step table alone: no replay, under a millisecond for each load.

In a steady state as many requests come as end. With `n` sequences decoding, answers of `O` tokens and prompts of `P`,
`n / O` requests end with every step, so as many prompts are read in it on average: now none, now one, now two, as
chance has it. The mean step `T(n)` is the step of the table averaged over those chances, and by Little's law
`n / (O * T(n))` requests end in a second. Lengths are their means.

With speculative decoding a step adds several tokens to each answer, so an answer of `O` tokens takes fewer than `O`
steps: `O` above is the number of steps, and a token takes the step over the tokens that it adds.

Where requests come at random, how many decode is chance too: now a crowd, now few. A request meets the crowds more
often than a clock does, and in a crowd steps are longer, so TPOT follows from the mean number met, not from the mean
load.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count, islice
from math import ceil, exp, sqrt
from operator import itemgetter, mul
from statistics import NormalDist

import numpy as np

from llm_perf_opt.core.recent import Recent
from llm_perf_opt.core.workload import steps_after_prompt
from llm_perf_opt.serving.capacity.outcome import Slo
from llm_perf_opt.serving.capacity.queueing import Crowd, PromptQueue, RelayedQueue, most_read, poisson_chances
from llm_perf_opt.serving.capacity.sessions import CacheLoad, HostCache, Reuse, SessionMean, found_tokens
from llm_perf_opt.serving.held_memory import BLOCK_TOKENS
from llm_perf_opt.serving.requests import Traffic
from llm_perf_opt.serving.speculation import Speculation
from llm_perf_opt.timing.step.request_time import FirstToken, time_to_first
from llm_perf_opt.timing.step.step_table import StepTable

_DENSITY, _SPARSE = 2**0.25, 2**0.5  # from one number of sequences to the next
_MOST_STATES = 64  # that a replica keeps, and as many steps and rates
_ROUNDS, _CLOSE = 40, 1e-5  # until a step and the prompts that come in it agree
_SETTLED, _USER_ROUNDS = 1e-3, 12  # for what turns find, and for the rate of users who think
_RARE = 1e-6  # a share of requests that does not matter
_ENDLESS = 50.0  # times the step without prompts: more prompts come than are read


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanRequest:
    """The mean of all requests. `image_tokens` are the tokens of the prompt that an encoder makes.

    `shared_tokens` of the prompt are in the cache when a request comes, once for all requests: no step reads them. Nor
    are `resumed_tokens` read, which a turn of a `session` finds of the turns before it.
    """

    prompt_tokens: float
    output_tokens: float
    image_tokens: float = 0.0
    shared_tokens: float = 0.0
    resumed_tokens: float = 0.0
    session: SessionMean | None = None

    @property
    def found_tokens(self) -> float:
        """Tokens of the prompt that are in the cache when a request comes."""
        return self.shared_tokens + self.resumed_tokens

    @property
    def new_tokens(self) -> int:
        """Tokens of the prompt that a step has to read: at least the last one."""
        return max(1, round(self.prompt_tokens - self.found_tokens))

    @property
    def mean_context(self) -> float:
        """Tokens in the cache halfway through the answer."""
        return self.prompt_tokens + self.output_tokens / 2


def mean_request(traffic: Traffic) -> MeanRequest:
    """The mean of all requests. A shared prefix is in the cache after its first reader, a session with its turns."""
    requests = traffic.requests
    saved = 0
    seen: set[str] = set()
    for request in requests:
        if request.prefix is not None and request.prefix in seen:
            saved += request.prefix_tokens
        elif request.prefix is not None:
            seen.add(request.prefix)
    session = _session_mean(traffic)
    return MeanRequest(
        prompt_tokens=sum(request.prompt_tokens for request in requests) / len(requests),
        output_tokens=sum(request.output_tokens for request in requests) / len(requests),
        image_tokens=sum(image.tokens for request in requests for image in request.images) / len(requests),
        shared_tokens=saved / len(requests),
        resumed_tokens=0.0 if session is None else session.earlier_tokens,
        session=session,
    )


def _session_mean(traffic: Traffic) -> SessionMean | None:
    """What turns have in common with those before them: whole blocks, without the last token, which no step reads."""
    by_id = {request.id: request for request in traffic.requests}
    turns = [request for request in traffic.requests if request.after is not None]
    if not turns:
        return None
    firsts = [request for request in traffic.requests if request.after is None]
    before = [by_id[turn.after] for turn in turns if turn.after is not None]
    ends = [turn.prompt_tokens + turn.output_tokens - 1 for turn in before]
    blocks = [end // BLOCK_TOKENS * BLOCK_TOKENS - turn.prefix_tokens for end, turn in zip(ends, before, strict=True)]
    return SessionMean(
        earlier_tokens=max(0, sum(blocks)) / len(by_id),
        continued=len(turns) / len(by_id),
        think_s=sum(turn.think_s for turn in turns) / len(turns),
        first_tokens=sum(first.prompt_tokens for first in firsts) / len(firsts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLimits:
    """How much one scheduler holds and takes in a step."""

    sequences: int
    batched_tokens: int
    cache_tokens: int

    def of_groups(self, count: int) -> ReplicaLimits:
        """The limits of a replica with this many schedulers, each with these limits."""
        return ReplicaLimits(
            sequences=count * self.sequences,
            batched_tokens=count * self.batched_tokens,
            cache_tokens=count * self.cache_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """One replica with `sequences` decoding.

    `plain_s` is a step without prompts, `alone_s` a prompt with no other sequence in the step. With
    `client` the first token is as a client sees it, otherwise as the engine does. `crowd` is how many decode by chance,
    where requests come at random, and `next_s` is what one sequence more adds to a step.
    """

    sequences: int
    step_s: float  # the mean
    requests_per_s: float
    output_tokens: float
    plain_s: float
    alone_s: float
    queue: PromptQueue | RelayedQueue
    client: FirstToken | None = None
    crowd: Crowd | None = None
    next_s: float = 0.0
    tokens_per_step: float = 1.0  # that an answer gets of one step
    reuse: Reuse | None = None  # what turns of sessions find in caches

    @property
    def away_s(self) -> float:
        """What a user thinks for each request."""
        return 0.0 if self.reuse is None else self.reuse.away_s

    @property
    def latency_s(self) -> float:
        """The median time of a whole answer; of sessions, the mean turn's."""
        first_s = self.first_token_s if self.reuse is None else self._mean_request_at(0.5) + self.reuse.load_s
        return first_s + self.token_s * steps_after_prompt(self.output_tokens)

    @property
    def users(self) -> float:
        """Sequences, and users that think or wait for a load from host memory."""
        load_s = 0.0 if self.reuse is None else self.reuse.load_s
        return self.sequences + self.requests_per_s * (self.away_s + load_s)

    @property
    def steps(self) -> float:
        """Decode steps of an answer."""
        return self.output_tokens / self.tokens_per_step

    @property
    def first_token_s(self) -> float:
        """The median TTFT."""
        return self.first_token_at(0.5)

    @property
    def token_s(self) -> float:
        """Time per output token. The prompts in a mean step belong to other users, and a single user meets none."""
        return (self.plain_s if self.queue.users == 1 else self.step_s) / self.tokens_per_step

    @property
    def prompt_share(self) -> float:
        """The share of the time that is spent on prompts. A single user's prompt is alone in its step."""
        if self.queue.users == 1:
            return self.first_token_s / (self.first_token_s + self.token_s * steps_after_prompt(self.output_tokens))
        return 1 - self.plain_s / self.step_s

    def first_token_at(self, share: float) -> float:
        """What a share of the requests waits at most. What clients see beyond the engine was measured in the median."""
        if (reuse := self.reuse) is None:
            return self._mean_request_at(share)
        ends = list(accumulate(part for part, _ in reuse.kinds))
        kind = min(bisect_right(ends, share), len(ends) - 1)
        part, later_s = reuse.kinds[kind]
        return self._mean_request_at(min(1.0, 1 - (ends[kind] - share) / part)) + later_s

    def _mean_request_at(self, share: float) -> float:
        """The same for a prompt with the mean number of new tokens, from when it can be scheduled."""
        if isinstance(self.queue, RelayedQueue):
            return self.queue.first_token_at(share)
        if self.client is None:
            return self.queue.waits().at(share)
        seen = time_to_first(self.step_s, self.alone_s, self.sequences, self.client)
        if share == 0.5:
            return seen
        waits = self.queue.waits()
        return seen + (waits.at(share) - waits.at(0.5))

    def per_token_at(self, share: float) -> float:
        """TPOT of a share of the requests: by chance more or fewer others come while an answer is made.

        Each of them adds its prompt once, and a sequence to the steps that are left. One that came before adds the
        sequence alone. Summed over all moments at which they may come, evenly within a life, that is the variance.
        """
        return self._step_at(share) / self.tokens_per_step

    def _step_at(self, share: float) -> float:
        if self.crowd is None:
            prompt_s = (self.step_s - self.plain_s) * self.steps / self.sequences
            by_chance = NormalDist().inv_cdf(share) * sqrt(self.sequences) * prompt_s / self.steps
            return max(self.plain_s, self.step_s + by_chance)
        met = self.requests_per_s * self.steps * self.step_s
        prompt_s, sequence_s = (self.step_s - self.plain_s) / met, self.next_s
        crowd = self.crowd.variance
        variance = met * prompt_s**2 + sqrt(met * crowd) * prompt_s * sequence_s + 2 / 3 * crowd * sequence_s**2
        return max(self.plain_s, self.step_s + self.crowd.standard(share) * sqrt(variance))

    def broken(self, slo: Slo) -> str | None:
        """The first limit that the SLO's share of the requests does not keep; the cheap one is asked first."""
        share = slo.share
        tpot = self.per_token_at(share)
        if slo.tpot_s is not None and tpot > slo.tpot_s:
            return "TPOT"
        if slo.ttft_s is None and slo.e2e_s is None:
            return None
        ttft = self.first_token_at(share)
        if slo.ttft_s is not None and ttft > slo.ttft_s:
            return "TTFT"
        is_late = slo.e2e_s is not None and ttft + tpot * steps_after_prompt(self.output_tokens) > slo.e2e_s
        return "E2E" if is_late else None

    def keeps(self, slo: Slo | None) -> bool:
        """Whether every limit holds and no queue grows."""
        return not self.queue.is_full and (slo is None or self.broken(slo) is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyReplica:
    """A replica that can be asked for any load."""

    table: StepTable
    mean: MeanRequest
    limits: ReplicaLimits
    is_closed: bool = False  # users ask again when they have their answer; else requests come at random
    client: FirstToken | None = None
    speculation: Speculation | None = None
    layers: int = 1  # of the model, of which a drafter is one more
    reads_prompts: bool = True  # False: other GPUs do, and send what the cache has to hold
    host: HostCache | None = None
    reuse: Reuse | None = None  # of the load that is asked for; None: it follows from the state
    _known: Recent[int, SteadyState] = field(
        default_factory=lambda: Recent(_MOST_STATES), init=False, repr=False, compare=False
    )
    _readings: Recent[tuple[int, int], tuple[float, ...]] = field(
        default_factory=lambda: Recent(_MOST_STATES), init=False, repr=False, compare=False
    )
    _at_rates: Recent[float, SteadyState | None] = field(
        default_factory=lambda: Recent(_MOST_STATES), init=False, repr=False, compare=False
    )

    @property
    def _kept(self) -> float:
        return 1.0 if self.speculation is None else self.speculation.tokens_per_step

    @property
    def _steps(self) -> float:
        """Decode steps of the mean answer."""
        return self.mean.output_tokens / self._kept

    @property
    def _rows(self) -> int:
        """Rows of a sequence in a step: its last token and the drafts behind it."""
        return 1 if self.speculation is None else 1 + self.speculation.tokens

    @property
    def most(self) -> int:
        """Sequences that its cache, its scheduler and the tokens of a step hold; at least one."""
        own = self.mean.prompt_tokens + self.mean.output_tokens - self.mean.shared_tokens
        by_cache = (self.limits.cache_tokens - self.mean.shared_tokens) / own
        by_tokens = self.limits.batched_tokens / (self._rows + self._new_tokens / self._steps)
        return max(1, int(min(self.limits.sequences, by_cache, by_tokens)))

    def states(self) -> Iterator[SteadyState]:
        """The states from one sequence up to the most."""
        yield from map(self.at, self._numbers())

    def at(self, sequences: int) -> SteadyState:
        """The steady state with this number of sequences decoding."""
        return self._known.of(sequences, lambda: self._settled(sequences) if self._settles else self._state(sequences))

    @property
    def _settles(self) -> bool:
        """Whether the load decides what turns find, which decides how long steps are."""
        return self.mean.session is not None and self.reuse is None

    def _finding(self, requests_per_s: float, in_flight: float) -> SteadyReplica:
        """The replica where turns find what they do at this load."""
        mean = self.mean
        assert mean.session is not None, "only sessions have turns"
        load = CacheLoad(
            requests_per_s=requests_per_s,
            end_tokens=mean.prompt_tokens + mean.output_tokens - mean.shared_tokens,
            working_tokens=in_flight * (mean.mean_context - mean.shared_tokens),
        )
        session = mean.session
        reuse = found_tokens(session, load, self.limits.cache_tokens - mean.shared_tokens, self.worthy_host)
        finding = replace(mean, resumed_tokens=reuse.tokens)
        return replace(self, mean=finding, reuse=replace(reuse, kinds=self._kinds(finding, session, reuse)))

    def _kinds(self, mean: MeanRequest, session: SessionMean, reuse: Reuse) -> tuple[tuple[float, float], ...]:
        """Kinds of requests by the time of their own prompt; together they take what the mean request takes."""
        firsts, resumed = 1 - session.continued, session.continued * reuse.tokens / (session.earlier_tokens or 1)
        later_tokens = (mean.prompt_tokens - firsts * session.first_tokens) / session.continued
        kinds = []
        for prompt, share in ((session.first_tokens, firsts), (later_tokens, session.continued - resumed)):
            whole_s = self._chunk_s(replace(mean, prompt_tokens=prompt, resumed_tokens=0.0))
            kinds.append((share, whole_s - self._chunk_s(mean)))
        if resumed > _RARE:
            kinds.append((resumed, (reuse.load_s - sum(share * later_s for share, later_s in kinds)) / resumed))
        return tuple(sorted((kind for kind in kinds if kind[0] > _RARE), key=itemgetter(1)))

    @property
    def worthy_host(self) -> HostCache | None:
        """Host memory, where its link is faster than computing what it has."""
        mean, host = self.mean, self.host
        if host is None or mean.session is None:
            return None
        plain = replace(mean, resumed_tokens=0.0)
        saved_s = self._chunk_s(plain) - self._chunk_s(replace(mean, resumed_tokens=mean.session.earlier_tokens))
        return host if host.tokens_per_s * saved_s > mean.session.earlier_tokens else None

    def _chunk_s(self, mean: MeanRequest) -> float:
        return self.table.seconds(0, 0, [(mean.new_tokens, round(mean.found_tokens))])

    def _settled(self, sequences: int) -> SteadyState:
        """Where more requests leave less in the cache, and as many come as the steps then answer."""
        state = self._finding(0.0, sequences)._state(sequences)
        low, high = 0.0, state.requests_per_s
        asked = high
        while high - low > _SETTLED * high:
            state = self._finding(asked, sequences)._state(sequences)
            if state.requests_per_s >= asked:
                low = asked
            else:
                high = asked
            asked = (low + high) / 2
        assert state.reuse is not None
        return replace(state, requests_per_s=min(state.requests_per_s, state.reuse.most_per_s))

    def at_users(self, users: float) -> SteadyState:
        """The steady state of users who think between turns: by Little's law, at the rate at which all are somewhere.

        Without thinking all of them wait for an answer.
        """
        away_s = 0.0 if self.mean.session is None else self.mean.session.away_s
        if not away_s:
            return self.at(min(self.most, max(1, ceil(users))))
        low, high = 0.0, min(self.at(self.most).requests_per_s, users / away_s)
        best = self.at(1)
        for _ in range(_USER_ROUNDS):
            middle = (low + high) / 2
            replica = self._finding(middle, users - middle * away_s)
            state = replace(replica, is_closed=False).at_rate(middle)
            if state is None or middle * (away_s + state.latency_s) > users:
                high = middle
            else:
                low, best = middle, state
        return best

    def _state(self, sequences: int) -> SteadyState:
        mean = self.mean
        per_step = sequences / self._steps  # prompts that come in a step, and as many answers end
        reading = self._reading(sequences, most_read(per_step))
        step = _mean_step(reading, per_step, self._steps_of_prompt(sequences))
        alone = self._alone_s
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
            tokens_per_step=self._kept,
            reuse=self.reuse,
        )

    @property
    def break_even(self) -> int:
        """The most sequences up to which speculation gives a token sooner than a step without it; 0: none."""
        plain, best = replace(self, speculation=None), 0
        for sequences in self._numbers():
            if self._plain_s(sequences) / self._kept >= plain._plain_s(sequences):
                break
            best = sequences
        return best

    @property
    def _new_tokens(self) -> int:
        """Tokens of a prompt that the steps of this replica read."""
        return self.mean.new_tokens if self.reads_prompts else 0

    @property
    def _alone_s(self) -> float:
        """A prompt with no other sequence in the step; where prompts are read elsewhere, a step of one sequence."""
        if not self.reads_prompts:
            return self._plain_s(1)
        chunk, table = (self.mean.new_tokens, round(self.mean.found_tokens)), self.table
        seconds = self._readings.of((0, 1), lambda: (table.seconds(0, 0, [chunk], round(self.mean.image_tokens)),))
        return seconds[0] + table.host_s

    def _budget(self, sequences: int) -> int:
        """Tokens of prompts that a step takes besides the sequences that decode."""
        return max(1, self.limits.batched_tokens - sequences * self._rows)

    def _steps_of_prompt(self, sequences: int) -> int:
        """How many steps read one prompt: several where it is longer than the tokens of a step."""
        return max(1, ceil(self._new_tokens / self._budget(sequences)))

    def _reading(self, sequences: int, most: int) -> tuple[float, ...]:
        """Steps that read no prompt, one, two and so on while these sequences decode."""
        if not self.reads_prompts:  # any number of requests joins a step, and none makes it longer
            return self._readings.of((sequences, 0), lambda: self._steps_reading(sequences, 0)) * (most + 2)
        held = min(most, self._budget(sequences) // self.mean.new_tokens)
        size = (1 << held.bit_length()) - 1  # worked out once for every smaller number
        return self._readings.of((sequences, size), lambda: self._steps_reading(sequences, size))[: max(held, 1) + 1]

    def _steps_reading(self, sequences: int, most: int) -> tuple[float, ...]:
        mean, table = self.mean, self.table
        cached, prompt, shared = round(sequences * mean.mean_context), mean.new_tokens, round(mean.found_tokens)
        image, budget = round(mean.image_tokens), self._budget(sequences)
        drafted, draft_s = sequences * (self._rows - 1), self._draft_s(sequences) + table.host_s
        plain = table.seconds(sequences, cached, drafted_tokens=drafted) + draft_s
        if not self.reads_prompts:
            return (plain,)
        if prompt > budget:
            chunks = [(min(budget, prompt - before), shared + before) for before in range(0, prompt, budget)]
            steps = [table.seconds(sequences, cached, [chunk], image // len(chunks), drafted) for chunk in chunks]
            return plain, sum(steps) + len(steps) * draft_s
        together = table.seconds_of_readings(sequences, cached, (prompt, shared), image, drafted)
        return plain, *(seconds + draft_s for seconds in islice(together, min(most, budget // prompt)))

    def _plain_s(self, sequences: int) -> float:
        return self._reading(sequences, 0)[0]

    def _draft_s(self, sequences: int) -> float:
        if self.speculation is None:
            return 0.0
        cached = round(sequences * self.mean.mean_context)
        return self.speculation.draft_s(self.table, sequences, cached, self.layers)

    def at_rate(self, requests_per_s: float) -> SteadyState | None:
        """The steady state with random arrivals at this rate; None: the replica cannot answer as many."""
        how = self._settled_at_rate if self._settles else self._at_rate
        return self._at_rates.of(requests_per_s, lambda: how(requests_per_s))

    def _settled_at_rate(self, requests_per_s: float) -> SteadyState | None:
        """Where as many are in flight as their answers take, which leaves less of the cache to turns that come."""
        in_flight = 0.0
        for _ in range(_ROUNDS):
            state = self._finding(requests_per_s, in_flight)._at_rate(requests_per_s)
            if state is None:
                return None
            last, in_flight = in_flight, requests_per_s * state.latency_s
            if abs(in_flight - last) < _SETTLED * in_flight:
                break
        return state

    def _at_rate(self, requests_per_s: float) -> SteadyState | None:
        most = self.at(self.most)
        if most.requests_per_s < requests_per_s or (self.reuse and self.reuse.most_per_s < requests_per_s):
            return None
        at, steps, plain = np.array([(n, *self._open_step(n, requests_per_s)) for n in self._numbers(_SPARSE)]).T
        numbers = np.arange(1, self.most + 1)
        steps, plain = np.interp(numbers, at, steps), np.interp(numbers, at, plain)
        prompts = (1 - plain / steps) / requests_per_s  # seconds that each adds
        crowd = Crowd.of(requests_per_s, numbers / (self._steps * plain), prompts)
        decoding = crowd.chances[1:] * numbers
        step = float(decoding.sum()) / (requests_per_s * self._steps)  # by Little's law
        state = self.at(max(1, round(crowd.mean)))
        assert isinstance(state.queue, PromptQueue), "no state of one replica has another"
        low, high = max(0, state.sequences - 2), min(self.most, state.sequences + 1) - 1
        return replace(
            state,
            step_s=step,
            requests_per_s=requests_per_s,
            plain_s=float((decoding / steps * plain).sum() / (decoding / steps).sum()),  # by token
            queue=replace(state.queue, requests_per_s=requests_per_s, idle=float(crowd.chances[0])),
            crowd=crowd,
            next_s=float(plain[high] - plain[low]) / max(1, high - low),
        )

    def _numbers(self, density: float = _DENSITY) -> Iterator[int]:
        """Numbers of sequences from one to the most, dense enough for straight lines between them."""
        sequences, most = 1, self.most
        while sequences < most:
            yield sequences
            sequences = max(sequences + 1, round(sequences * density))
        yield most

    def _open_step(self, sequences: int, requests_per_s: float) -> tuple[float, float]:
        """The mean step with this number of sequences, and one without prompts: as many come as the step has time."""
        reading = self._reading(sequences, 0)
        step, most, plain, steps_of_prompt = reading[0], 0, reading[0], self._steps_of_prompt(sequences)
        for _ in range(_ROUNDS):
            per_step = requests_per_s * step
            if most_read(per_step) > most:
                most = 2 * most_read(per_step)
                reading = self._reading(sequences, most)
            last, step = step, _mean_step(reading, per_step, steps_of_prompt)
            if abs(step - last) < _CLOSE * last or step > _ENDLESS * plain:
                break
        return step, plain


def _mean_step(reading: Sequence[float], per_step: float, steps_of_prompt: int) -> float:
    """Over the chances of no prompt, one, two in a step.

    Beyond what one step reads, prompts wait for the next ones, which take as long as full ones. One that is read in
    several steps makes each of them longer by its share.
    """
    if steps_of_prompt > 1:
        longer = reading[1] / steps_of_prompt - reading[0]
        return reading[0] + min(1.0, per_step * steps_of_prompt) * longer
    most = len(reading) - 1
    chances = poisson_chances(per_step, most)
    full = max(0.0, 1 - sum(chances))  # of steps that read as many as one takes, and leave others waiting
    step: float = sum(map(mul, reading, chances)) + full * reading[-1]
    read: float = sum(map(mul, count(), chances)) + full * most
    return step + max(0.0, per_step - read) * (reading[-1] - reading[0]) / most


def most_requests(states: Sequence[SteadyState], slo: Slo | None = None) -> SteadyState | None:
    """The state with the most requests a second that meets an SLO; None: not even one sequence does.

    More sequences are slower, so the last that keeps it is found by halves.
    """
    if not states or not states[0].keeps(slo):
        return None
    low, high = 0, len(states)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if states[middle].keeps(slo) else (low, middle)
    return max(states[: low + 1], key=lambda state: state.requests_per_s)

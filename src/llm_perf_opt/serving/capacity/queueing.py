"""How long a request waits for its first token, from the steps that a replica makes anyway; no replay.

Prompts come at random. Those that came during a step are read in the next one, as many as the tokens of a step allow,
the first first. So the queue at the start of each step is a Markov chain: with `q` prompts a step takes as long as one
that reads `min(q, most)` of them, and as many come as a Poisson process brings in that time. Users who ask again when
their answer is there bring one prompt for each answer that ends, however long the step takes. A request that comes in a
step waits for its end and for the next one, which an engine has scheduled by then; for full steps as long as the queue
before it is longer than one takes; and for the step that reads it, with whatever else is read there. One that finds the
engine idle is read at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, lgamma, log, sqrt

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.core.recent import Recent

_QUEUED = 24  # prompts that an idle replica may find at once; more where it is loaded
_RARE, _LIKELY = 1e-6, 1e-2
_PARTS = 8  # of a step in which a request may come
_LARGE = 1e100
_MOST_KEPT = 32  # distributions, in memory
FULL = 0.95  # of the time: beyond, the queue is as long as the traffic lasts

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Crowd:
    """How many sequences decode at once where requests come at random, from none on, and how likely each number is.

    All that decode share the steps, so the number is a chain: answers lower it by one, `n / (O * plain(n))` of them a
    second while no prompt is read. A request raises it by one and by the answers that do not end while its prompt is
    read. The chances above the last number are in it: they wait.
    """

    chances: Floats

    @classmethod
    def of(cls, requests_per_s: float, answers_per_s: Floats, prompt_s: Floats) -> Crowd:
        """The crowd for the rates at which answers end with one sequence, two and so on, and what a prompt adds."""
        size = len(answers_per_s)
        raised = [1.0, *(1 + prompt_s * answers_per_s).tolist()]
        beyond = [0.0] * (size + int(max(raised)) + 2)  # how often a request lifts the number over each
        rising = [1.0]
        for number, (lift, answers) in enumerate(zip(raised, [*answers_per_s.tolist(), None], strict=True)):
            chance, whole_steps = rising[-1], int(lift)
            for above in range(number, number + whole_steps):
                beyond[above] += chance
            beyond[number + whole_steps] += chance * (lift - whole_steps)
            if answers is not None:  # as often up as down
                rising.append(requests_per_s * beyond[number] / answers)
            if rising[-1] > _LARGE:
                beyond = [often / _LARGE for often in beyond]
                rising = [chance / _LARGE for chance in rising]
        chances = np.array(rising)
        # Beyond the most that decode as many answers end: each number is as much rarer as the last.
        chances[-1] /= max(1e-3, 1 - requests_per_s * (1 / answers_per_s[-1] + prompt_s[-1]))
        return cls(chances / chances.sum())

    @property
    def mean(self) -> float:
        """Sequences that decode, at a time that nobody chose: what a request finds when it comes."""
        return float(self.chances @ np.arange(len(self.chances)))

    @property
    def variance(self) -> float:
        """The variance of that number."""
        return float(self.chances @ (np.arange(len(self.chances)) - self.mean) ** 2)

    def standard(self, share: float) -> float:
        """A quantile of the number that a sequence meets on its way, in standard deviations from its mean.

        More sequences meet a crowd than meet none, so each number counts as often as there are of it.
        """
        numbers = np.arange(1, len(self.chances))
        met = self.chances[1:] * numbers
        met /= met.sum()
        mean = float(met @ numbers)
        spread = sqrt(max(float(met @ (numbers - mean) ** 2), 1e-12))
        middle = np.cumsum(met) - met / 2
        return (float(np.interp(share, middle, numbers)) - mean) / spread


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptQueue:
    """`reading_s` are the steps that read no prompt, one, two and so on: the last is of as many as a step takes.

    A prompt that takes several steps is read alone, and one step here stands for all of them. With `users` each asks
    again when an answer ends, and `per_step` of those answers end in a step; where the answers are made on other GPUs,
    each user is away for `away_s` instead, however many steps are made here. An `idle` share of the requests finds
    nothing running and takes `alone_s`.
    """

    requests_per_s: float
    reading_s: tuple[float, ...]
    users: int | None = None
    per_step: float = 0.0
    away_s: float | None = None
    idle: float = 0.0
    alone_s: float = 0.0

    @property
    def most(self) -> int:
        """Prompts in one step."""
        return len(self.reading_s) - 1

    @property
    def load(self) -> float:
        """Prompts that come over prompts that its steps can read: from 1 on the queue grows, unless users wait."""
        return self.requests_per_s * self.reading_s[-1] / self.most

    @property
    def is_full(self) -> bool:
        """Whether requests come faster than prompts are read, or nearly so."""
        return self.users is None and self.load >= FULL

    def waits(self) -> Waits:
        """The distribution of the time from a request's arrival to its first token."""
        return _WAITS.of(self, self._waits)

    def _waits(self) -> Waits:
        queued = np.arange(self._most_queued + 1)
        read = np.minimum(queued, self.most)
        reading = np.array(self.reading_s)
        lasts = reading[read]
        come = self._come(queued, lasts)
        chance = _stationary(_poisson(come, queued[-1]), queued - read)
        meets = chance * lasts / (chance * lasts).sum()  # a long step is met more often
        by_read = np.bincount(read, chance)  # of the step that was scheduled when the request came
        scheduled = np.flatnonzero(by_read > _LIKELY)
        next_s, next_chance = reading[scheduled], by_read[scheduled] / by_read[scheduled].sum()
        seen = meets > _RARE
        left, lasts, come, meets = (queued - read)[seen], lasts[seen], come[seen], meets[seen]
        seconds, weights = [], []
        for part in (np.arange(_PARTS) + 0.5) / _PARTS:
            shares = _poisson(come * part, queued[-1])
            ahead = left[:, None] + queued
            if self.users is not None:
                ahead = np.minimum(ahead, self.users - 1)
            full_steps, others = np.divmod(ahead, self.most)
            later = (come * (1 - part))[:, None]
            reads = 1 + np.minimum(self.most - 1, others + later)
            waits = full_steps * reading[-1] + np.interp(reads, np.arange(self.most + 1), reading)
            met = (((1 - part) * lasts)[:, None] + waits).ravel()
            share = (meets[:, None] * shares * (1 - self.idle) / _PARTS).ravel()
            is_likely = share > _RARE / _PARTS
            seconds.append(np.add.outer(next_s, met[is_likely]).ravel())
            weights.append(np.multiply.outer(next_chance, share[is_likely]).ravel())
        return Waits.of(np.append(np.concatenate(seconds), self.alone_s), np.append(np.concatenate(weights), self.idle))

    @property
    def _most_queued(self) -> int:
        """Beyond it a queue is too rare to matter."""
        mean = self.per_step or self.requests_per_s * self.reading_s[0]
        likely = round(mean + 8 * mean**0.5 + _QUEUED / (1 - min(self.load, FULL)))
        return int(likely if self.users is None else min(likely, self.users))

    def _come(self, queued: NDArray[np.int64], lasts: Floats) -> Floats:
        """How many come on average in a step, by the queue it begins with."""
        if self.users is None:
            return lasts * self.requests_per_s
        if self.away_s is not None:
            return lasts * (self.users - queued) / self.away_s
        come: Floats = self.per_step * (self.users - queued) / self.users
        return come


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedQueue:
    """A queue before workers that read prompts, and what comes between its end and the first token elsewhere.

    `wait_s` is the mean time in the queue and in the step that reads the prompt.
    """

    first: PromptQueue
    wait_s: float
    added_s: float

    @property
    def users(self) -> int | None:
        """Of the queue."""
        return self.first.users

    @property
    def is_full(self) -> bool:
        """Whether requests come faster than prompts are read, or nearly so."""
        return self.first.is_full

    def first_token_at(self, share: float) -> float:
        """What a share of the requests waits at most; where users wait for busy workers all wait as long."""
        expected_s = self.wait_s + self.added_s
        if share == 0.5 or self.first.load >= FULL:
            return expected_s
        waits = self.first.waits()
        return expected_s + waits.at(share) - waits.at(0.5)


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Seconds, rising, and the share of requests that take no longer."""

    seconds: Floats
    shares: Floats

    @classmethod
    def of(cls, seconds: Floats, weights: Floats) -> Waits:
        """The distribution from times and how often each occurs."""
        order = np.argsort(seconds)
        shares = np.cumsum(weights[order])
        return cls(seconds[order], shares / shares[-1])

    def at(self, share: float) -> float:
        """What a share of the requests does not exceed."""
        return float(self.seconds[min(int(np.searchsorted(self.shares, share)), len(self.seconds) - 1)])

    @property
    def mean_s(self) -> float:
        """The mean of all requests."""
        return float(np.dot(self.seconds, np.diff(self.shares, prepend=0.0)))


_WAITS = Recent[PromptQueue, Waits](_MOST_KEPT)


def most_read(per_step: float) -> int:
    """Prompts that one step may have to read; more at once are too rare to matter."""
    return ceil(per_step + 4 * sqrt(per_step)) + 2


def poisson_chances(mean: float, most: int) -> list[float]:
    """The chances of no event, one, two and so on up to `most`."""
    log_mean = log(mean)
    return [exp(count * log_mean - mean - factorial) for count, factorial in enumerate(_log_factorials(most))]


@lru_cache(maxsize=_MOST_KEPT)
def _log_factorials(most: int) -> tuple[float, ...]:
    return tuple(lgamma(count + 1) for count in range(most + 1))


def _poisson(means: Floats, most: int) -> Floats:
    """For each mean the chance of every count up to `most`; the last one stands for all beyond."""
    counts = np.arange(most + 1)
    factorials = np.concatenate(([0.0], np.cumsum(np.log(counts[1:]))))
    chances: Floats = np.exp(np.outer(np.log(np.maximum(means, 1e-12)), counts) - means[:, None] - factorials)
    chances[:, -1] += np.maximum(0.0, 1 - chances.sum(axis=1))
    return chances


def _stationary(arrivals: Floats, left: NDArray[np.int64]) -> Floats:
    """The chance of each queue at the start of a step: those left over, and those that came in the step before."""
    size = len(left)
    moves = np.zeros((size, size))
    for queue in range(size):
        room = size - left[queue]
        moves[queue, left[queue] :] = arrivals[queue, :room]
        moves[queue, -1] += arrivals[queue, room:].sum()
    # Chances that a step leaves as they are, and that sum to 1: the last of the equations is replaced by the sum.
    equations = moves.T - np.eye(size)
    equations[-1] = 1.0
    chances: Floats = np.maximum(0.0, np.linalg.solve(equations, np.eye(size)[-1]))
    scaled: Floats = chances / chances.sum()
    return scaled

"""How long a step of an engine takes on one rank, as a table that answers in microseconds and needs nothing but Python.

A step computes new tokens of many sequences at once: one for each that decodes, a chunk for each that is still in its
prompt. Matmuls, experts, vector kernels, collectives and gaps depend on the number of tokens alone; the head runs for
sequences that get a token; attention is the sum of one call for all that decode and one for each chunk.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import NamedTuple

from llm_perf_opt.core.errors import PerfOptError

_FEW_TOKENS, _MANY_TOKENS = 256, 1024  # between them a step is partly one that decodes, partly one of prompts


class UntimedKernels(PerfOptError):
    """Neither a table nor the data sheet has a time for some kernels of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Seconds over a positive number; straight between points where both axes are logarithms, proportional beyond."""

    at: tuple[float, ...]
    seconds: tuple[float, ...]

    def __call__(self, number: float) -> float:
        """The time at a number; zero for none."""
        if number <= 0:
            return 0.0
        return _between(self.at, number, self.seconds)

    def slower(self, factor: float) -> Curve:
        """`factor` times as long everywhere."""
        return replace(self, seconds=tuple(seconds * factor for seconds in self.seconds))

    def at_least(self, other: Curve) -> Curve:
        """The longer of two at each of their points, which are the same."""
        return replace(self, seconds=tuple(map(max, self.seconds, other.seconds)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """Seconds over two positive numbers: one curve over `along` for each number of `across`."""

    across: tuple[float, ...]
    along: tuple[float, ...]
    seconds: tuple[tuple[float, ...], ...]

    def __call__(self, across: float, along: float) -> float:
        """The time at a pair of numbers; zero for none."""
        if across <= 0 or along <= 0:
            return 0.0
        upper = min(max(bisect_left(self.across, across), 1), len(self.across) - 1)
        ends = [_between(self.along, along, self.seconds[at]) for at in (upper - 1, upper)]
        return _between((self.across[upper - 1], self.across[upper]), across, ends)

    def slower(self, factor: float) -> Surface:
        """`factor` times as long everywhere."""
        return replace(self, seconds=tuple(tuple(seconds * factor for seconds in row) for row in self.seconds))

    def at_least(self, other: Surface) -> Surface:
        """The longer of two at each of their points, which are the same."""
        rows = zip(self.seconds, other.seconds, strict=True)
        return replace(self, seconds=tuple(tuple(map(max, row, others)) for row, others in rows))


class RankStep(NamedTuple):
    """What a step computes for the sequences of one scheduler: sequences that decode, and chunks of prompts.

    `drafted_tokens` of the sequences that decode are verified: rows of matmuls and of the head, on one read of the
    cache.
    """

    decoding: int
    cached_tokens: int  # of all that decode
    chunks: Sequence[tuple[int, int]] = ()  # new tokens, tokens before
    image_tokens: int = 0
    drafted_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """The step of one rank. `padded_to` are the captured batch sizes: smaller batches are padded up to one.

    With `groups` of ranks that have attention of their own, tokens and sequences are counted over all groups.
    `low` and `high` are the factors of the band. `host_s` is what the host adds to each step before the device starts.
    `images` is the encoder's time for this many image tokens.
    """

    tokens: Curve
    head: Curve
    decoding: Surface  # sequences, tokens in the cache of each
    prompts: Surface  # new tokens, keys they attend to
    states: Surface | None = None  # prompts in a step, new tokens of each; of layers that carry a state
    images: Curve | None = None
    padded_to: tuple[int, ...] = ()
    groups: int = 1
    host_s: float = 0.0
    low: float = 1.0
    high: float = 1.0
    origin: str = ""

    def seconds(
        self,
        decoding: int,
        cached_tokens: int,
        chunks: Sequence[tuple[int, int]] = (),
        image_tokens: int = 0,
        drafted_tokens: int = 0,
    ) -> float:
        """A step of `decoding` sequences with `cached_tokens` in all, and the rest of a `RankStep`."""
        rows = decoding + drafted_tokens
        tokens = rows + sum(new for new, _ in chunks)
        seconds = self._by_tokens(tokens, rows + len(chunks)) + self._by_sequences(decoding, cached_tokens, chunks)
        if image_tokens and self.images is not None:
            seconds += self.images(image_tokens)
        return seconds

    def seconds_of_readings(
        self, decoding: int, cached_tokens: int, chunk: tuple[int, int], image_tokens: int, drafted_tokens: int
    ) -> Iterator[float]:
        """Steps that read this chunk once, twice and so on, without end: each is what `seconds` says of it."""
        rows, (new, before) = decoding + drafted_tokens, chunk
        by_chunks = self.decoding(decoding, cached_tokens / decoding)
        chunk_s = self.prompts(new, new + before)
        for count in itertools.count(1):
            by_chunks += chunk_s
            states_s = 0.0 if self.states is None else self.states(count, new)
            seconds = self._by_tokens(rows + count * new, rows + count) + (by_chunks + states_s)
            if image_tokens and self.images is not None:
                seconds += self.images(image_tokens * count)
            yield seconds

    def draft_s(self, sequences: int, cached_tokens: int, layers: int) -> float:
        """One token for each sequence by one of the model's `layers` and its head, in a graph of their own."""
        layer_s = self.tokens(sequences) + self._by_sequences(sequences, cached_tokens, ())
        return layer_s / layers + self.head(sequences)

    def seconds_together(self, steps: Sequence[RankStep]) -> float:
        """A step in which every group computes what its own scheduler chose; some may have nothing to do.

        Groups send each other rows for their experts in every layer: all wait for the slowest, and vLLM fills the
        shorter batches up to the longest.
        """
        rows = [step.decoding + step.drafted_tokens for step in steps]
        tokens = max(own + sum(new for new, _ in step.chunks) for own, step in zip(rows, steps, strict=True))
        heads = max(own + len(step.chunks) for own, step in zip(rows, steps, strict=True))
        seconds = self._by_tokens(tokens, heads, self.groups)
        seconds += max(self._by_sequences(s.decoding, s.cached_tokens, s.chunks, self.groups) for s in steps)
        if self.images is not None:
            seconds += self.images(max(step.image_tokens for step in steps))
        return seconds

    def _by_tokens(self, tokens: int, rows: int, groups: int = 1) -> float:
        if self.padded_to and tokens <= self.padded_to[-1]:
            tokens = self.padded_to[bisect_left(self.padded_to, tokens)]
        return self.tokens(groups * tokens) + self.head(groups * rows)

    def _by_sequences(
        self, decoding: int, cached_tokens: int, chunks: Sequence[tuple[int, int]], groups: int = 1
    ) -> float:
        seconds = self.decoding(groups * decoding, cached_tokens / decoding) if decoding else 0.0
        last, chunk_s = None, 0.0
        for chunk in chunks:
            if chunk != last:  # steady states ask for hundreds of equal prompts in a step
                last, chunk_s = chunk, self.prompts(chunk[0], sum(chunk))
            seconds += chunk_s
        if self.states is not None and chunks:
            seconds += self.states(len(chunks), sum(new for new, _ in chunks) / len(chunks))
        return seconds

    def at_least(self, other: StepTable) -> StepTable:
        """No part of a step faster than in another table of the same decoder."""
        return replace(
            self,
            tokens=self.tokens.at_least(other.tokens),
            head=self.head.at_least(other.head),
            decoding=self.decoding.at_least(other.decoding),
            prompts=self.prompts.at_least(other.prompts),
            states=self.states.at_least(other.states) if self.states and other.states else self.states,
        )

    def corrected(self, *, decoding: float, prompts: float) -> StepTable:
        """Steps that only decode take `decoding` times as long, large chunks of prompts `prompts` times."""
        low, high = log(_FEW_TOKENS), log(_MANY_TOKENS)
        shares = [min(1.0, max(0.0, (log(tokens) - low) / (high - low))) for tokens in self.tokens.at]
        factors = [decoding * (prompts / decoding) ** share for share in shares]
        tokens = replace(
            self.tokens,
            seconds=tuple(seconds * factor for seconds, factor in zip(self.tokens.seconds, factors, strict=True)),
        )
        return replace(
            self,
            tokens=tokens,
            head=self.head.slower(decoding),
            decoding=self.decoding.slower(decoding),
            prompts=self.prompts.slower(prompts),
            states=None if self.states is None else self.states.slower(prompts),
            images=None if self.images is None else self.images.slower(prompts),
        )


def _between(at: Sequence[float], number: float, seconds: Sequence[float]) -> float:
    if number >= at[-1]:
        return seconds[-1] * number / at[-1]
    if number <= at[0]:
        return seconds[0]
    upper = bisect_left(at, number)
    if at[upper] == number:
        return seconds[upper]
    low, high = seconds[upper - 1], seconds[upper]
    share = log(number / at[upper - 1]) / log(at[upper] / at[upper - 1])
    return low if low == high else exp(log(low) + share * log(high / low)) if low > 0 and high > 0 else low

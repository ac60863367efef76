"""What traffic is made of: gaps between requests, lengths, shared prefixes, sizes of pages; each drawn from a seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from llm_perf_opt.core.page_sizes import PageSize


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Requests that come by themselves. `cv` is the coefficient of variation of the gaps between them.

    1 is a Poisson process, 0 is one request every `1 / per_s` seconds, more than 1 comes in bursts. In between and
    above, the gaps follow a gamma distribution of shape `1 / cv**2`.
    """

    per_s: float
    cv: float = 1.0

    def times(self, random: Random) -> Iterator[float]:
        """Seconds, without end; the first request comes after one gap."""
        now = 0.0
        while True:
            now += self._gap(random)
            yield now

    def _gap(self, random: Random) -> float:
        if self.cv == 0:
            return 1 / self.per_s
        if self.cv == 1:
            return random.expovariate(self.per_s)
        shape = 1 / self.cv**2
        return random.gammavariate(shape, 1 / (shape * self.per_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Always as many tokens."""

    tokens: int

    def draw(self, _: Random) -> int:
        """A length."""
        return self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """Every length from `least` to `most`, each as often."""

    least: int
    most: int

    def draw(self, random: Random) -> int:
        """A length."""
        return random.randint(self.least, self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """Lengths whose logarithm is normal around that of `median`. What lies outside the limits is set to the limit."""

    median: float
    sigma: float
    least: int = 1
    most: int = 2**20

    def draw(self, random: Random) -> int:
        """A length."""
        found = self.median * math.exp(self.sigma * random.gauss(0.0, 1.0))
        return min(max(round(found), self.least), self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Lengths from a file, one drawn for each request."""

    tokens: tuple[int, ...]

    def draw(self, random: Random) -> int:
        """A length."""
        return random.choice(self.tokens)


Lengths = Fixed | Uniform | LogNormal | Listed


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """`count` texts of `tokens` tokens, such as system prompts; a `share` of the requests begins with one of them."""

    count: int
    tokens: int
    share: float = 1.0

    def draw(self, random: Random) -> str | None:
        """The name of a prefix, or None for a request that has none."""
        chosen, number = random.random(), random.randrange(self.count)
        return f"prefix {number}" if chosen < self.share else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMix:
    """Sizes of pages with how often each occurs; counts and shares do alike."""

    sizes: tuple[PageSize, ...]
    weights: tuple[float, ...]

    def draw(self, random: Random) -> PageSize:
        """The size of a page."""
        return random.choices(self.sizes, self.weights)[0]

    @property
    def shares(self) -> tuple[float, ...]:
        """The weights with a sum of 1."""
        whole = sum(self.weights)
        return tuple(weight / whole for weight in self.weights)

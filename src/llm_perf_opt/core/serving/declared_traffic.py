"""Traffic that is declared: who asks how often and for what lengths; drawn from a seed, so always the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, repeat, takewhile
from random import Random

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.page_sizes import PageSize
from llm_perf_opt.core.serving.requests import ImageSpan, Request, Traffic

MOST_REQUESTS = 1_000_000
DEFAULT_REQUESTS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTokens:
    """What a page is to a model: tokens of its image, and of the text that the model puts around it."""

    image: int
    text: int


PageRule = Callable[[PageSize], PageTokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTraffic:
    """A distribution of requests. Exactly one of `arrivals` and `concurrency` is given.

    `prompt` is the text of a request, without a shared prefix and without the tokens of its page; None with `pages`:
    the text that the model's own prompt has. The traffic ends after `requests` or `duration_s`, whichever is first.
    """

    output: Lengths
    prompt: Lengths | None = None
    arrivals: Arrivals | None = None
    concurrency: int | None = None
    requests: int | None = None
    duration_s: float | None = None
    prefixes: SharedPrefixes | None = None
    pages: PageMix | None = None
    seed: int = 0
    text: str = ""  # as it was written

    def __post_init__(self) -> None:
        if (self.arrivals is None) == (self.concurrency is None):
            raise UsageError(
                "Traffic needs a rate or a number of clients, and not both.",
                why="requests come by themselves, or each when another has ended",
                fix="begin with a rate such as 20/s, or with clients such as 64 at once",
            )
        if self.prompt is None and self.pages is None:
            raise UsageError(
                "This traffic has no prompt.",
                why="a request without a length takes no time that could be told",
                fix="add prompt=1024, prompt=lognormal(800,0.8), or pages=A4@150dpi for a model that reads images",
            )
        if self.concurrency is not None and self.requests is None:
            raise UsageError(
                "Clients that always ask never end.",
                why="how many requests they make in a time is what the replay finds out",
                fix=f"add requests={10 * self.concurrency}",
            )

    def traffic(self, page_rule: PageRule | None = None) -> Traffic:
        """The requests. `page_rule` says how many tokens a page has; pages without one are refused."""
        found = tuple(self._requests(_required(self.pages, page_rule)))
        if not found:
            raise UsageError(
                "No request comes in this time.",
                why=f"the first of them comes after {self.duration_s:g} s",
                fix="give a longer time or a higher rate",
            )
        return Traffic(requests=found, concurrency=self.concurrency, origin=f"{self.text}, seed {self.seed}")

    def _times(self) -> Iterator[float]:
        """When each comes; clients that wait for an answer ask at once."""
        if self.arrivals is None:
            return repeat(0.0)
        times = self.arrivals.times(self._random("arrivals"))
        end = self.duration_s
        return times if end is None else takewhile(lambda time: time < end, times)

    def _random(self, what: str) -> Random:
        """A stream of its own for each quantity, so that another length leaves the arrivals as they are."""
        return Random(f"{self.seed} {what}")

    def _requests(self, page_rule: PageRule) -> Iterator[Request]:
        prompts, outputs, prefixes, pages = map(self._random, ("prompt", "output", "prefixes", "pages"))
        most = self.requests if self.requests is not None else None if self.duration_s is not None else DEFAULT_REQUESTS
        for number, arrival_s in zip(count() if most is None else range(most), self._times(), strict=False):
            if number >= MOST_REQUESTS:
                raise UsageError(
                    f"This traffic has more than {MOST_REQUESTS:,} requests.",
                    why="a replay of them would take hours",
                    fix="give a shorter time, or requests=100000",
                )
            name = f"r{number}"
            page = None if self.pages is None else page_rule(self.pages.draw(pages))
            prefix = None if self.prefixes is None else self.prefixes.draw(prefixes)
            prefix_tokens = self.prefixes.tokens if self.prefixes is not None and prefix is not None else 0
            text = 0 if page is None else page.text
            if self.prompt is not None:
                text = self.prompt.draw(prompts)
            image = () if page is None else (ImageSpan(offset=prefix_tokens, tokens=page.image, name=name),)
            yield Request(
                id=name,
                arrival_s=arrival_s,
                prompt_tokens=max(1, prefix_tokens + text + (0 if page is None else page.image)),
                output_tokens=self.output.draw(outputs),
                prefix=prefix,
                prefix_tokens=prefix_tokens,
                images=image,
            )


def _required(pages: PageMix | None, rule: PageRule | None) -> PageRule:
    if rule is not None:
        return rule
    if pages is not None:
        raise UsageError(
            "This traffic has pages, and nothing says how many tokens a page has.",
            why="each model cuts pages by a rule of its own",
            fix="name a model that reads images, or give prompt= in tokens in place of pages=",
        )
    return _no_page


def _no_page(size: PageSize) -> PageTokens:
    raise AssertionError(f"no rule was asked for the page {size.name}")


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

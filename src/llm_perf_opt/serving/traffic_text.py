"""Traffic as people write it, `20/s prompt=lognormal(800,0.8) output=200 for 600s`; the same words in a TOML file."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain, count, islice, repeat, takewhile
from pathlib import Path
from random import Random

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plain_text import visible
from llm_perf_opt.core.reading import FileKind, parse_toml, read_bytes
from llm_perf_opt.core.workload import PageSize, read_page_size
from llm_perf_opt.serving.requests import ImageSpan, Request, Traffic

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

    With `sessions` a prompt is a first turn's, clients are users with one session each, and the rate is of all turns
    together.
    """

    output: Lengths
    prompt: Lengths | None = None
    arrivals: Arrivals | None = None
    concurrency: int | None = None
    requests: int | None = None
    duration_s: float | None = None
    prefixes: SharedPrefixes | None = None
    pages: PageMix | None = None
    sessions: Sessions | None = None
    seed: int = 0
    text: str = ""  # as it was written

    def __post_init__(self) -> None:
        if (self.arrivals is None) == (self.concurrency is None):
            raise UsageError(
                "Traffic needs a rate or a number of clients, and not both.",
                why="requests arrive at a rate, or each client asks again when its answer has ended",
                fix="begin with a rate such as 20/s, or with clients such as 64 at once",
            )
        if self.prompt is None and self.pages is None:
            raise UsageError(
                "This traffic has no prompt.",
                why="the time of a request follows from the length of its prompt",
                fix="add prompt=1024, prompt=lognormal(800,0.8), or pages=A4@150dpi for a model that reads images",
            )
        if self.sessions is not None and self.pages is not None:
            raise UsageError(
                "Sessions and pages exclude each other.",
                why="whether a page is sent again with every turn depends on the client",
                fix="leave pages= out, and give its tokens as prompt=",
            )
        if self.concurrency is not None and self.requests is None:
            raise UsageError(
                "This traffic never ends.",
                why="clients ask again after every answer, and nothing says how many requests they make",
                fix=f"add requests={10 * self.concurrency}",
            )

    def traffic(self, page_rule: PageRule | None = None) -> Traffic:
        """The requests. `page_rule` says how many tokens a page has; pages without one are refused."""
        drawn = self._requests(_required(self.pages, page_rule))
        if self.sessions is not None:
            output, grow, think = self.output, *map(self._random, ("grow", "think"))
            outputs = self._random("outputs of later turns")
            turns = (self.sessions.turns_of(first, lambda: output.draw(outputs), grow, think) for first in drawn)
            drawn = islice(chain.from_iterable(turns), self._most_requests)
        requests = tuple(drawn)
        if not requests:
            raise UsageError(
                "No request comes in this time.",
                why=f"the first would come after {self.duration_s:g} s",
                fix="give a longer time or a higher rate",
            )
        return Traffic(requests=requests, concurrency=self.concurrency, origin=f"{self.text}, seed {self.seed}")

    def _times(self) -> Iterator[float]:
        """When each comes; clients that wait for an answer ask at once."""
        if self.arrivals is None:
            return repeat(0.0)
        turns = 1 if self.sessions is None else self.sessions.turns
        times = replace(self.arrivals, per_s=self.arrivals.per_s / turns).times(self._random("arrivals"))
        end = self.duration_s
        return times if end is None else takewhile(lambda time: time < end, times)

    def _random(self, what: str) -> Random:
        """A stream of its own for each quantity, so that another length leaves the arrivals as they are."""
        return Random(f"{self.seed} {what}")

    @property
    def _most_requests(self) -> int | None:
        return DEFAULT_REQUESTS if self.requests is None and self.duration_s is None else self.requests

    def _requests(self, page_rule: PageRule) -> Iterator[Request]:
        prompts, outputs, prefixes, pages = map(self._random, ("prompt", "output", "prefixes", "pages"))
        most = self._most_requests
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
            "Nothing says how many tokens a page of this traffic has.",
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
    """Always the same number of tokens."""

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
    """Lognormal lengths with this median. A length outside the limits is set to the limit."""

    median: float
    sigma: float
    least: int = 1
    most: int = 2**20

    def draw(self, random: Random) -> int:
        """A length."""
        length = self.median * math.exp(self.sigma * random.gauss(0.0, 1.0))
        return min(max(round(length), self.least), self.most)


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
class Sessions:
    """Each user's `turns`: a prompt is everything before it, and `grow` new tokens.

    Between an answer and the next turn a user thinks, `think_s` on average, with exponential times.
    """

    turns: int
    grow: Lengths
    think_s: float = 0.0

    def turns_of(self, first: Request, output: Callable[[], int], grow: Random, think: Random) -> Iterator[Request]:
        """The requests of the session that begins with this one."""
        turn = replace(first, session=first.id)
        yield turn
        for number in range(1, self.turns):
            turn = replace(
                turn,
                id=f"{first.id}.{number}",
                prompt_tokens=turn.prompt_tokens + turn.output_tokens + self.grow.draw(grow),
                output_tokens=output(),
                after=turn.id,
                think_s=think.expovariate(1 / self.think_s) if self.think_s else 0.0,
            )
            yield turn


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
        total = sum(self.weights)
        return tuple(weight / total for weight in self.weights)


EXAMPLES = (
    '"20/s prompt=lognormal(800,0.8) output=200 for 600s"',
    '"64 at once prompt=1024 output=1024 requests=640"',
    '"5/s pages=A4@150dpi output=800 for 10min"',
)
_HOW = f"write {', '.join(EXAMPLES)}, or name a file with a recorded run"
LENGTHS_FILE = FileKind(
    name="list of lengths", fix="give a text file with one whole number in each line", error=UsageError
)
SIZES_FILE = FileKind(
    name="list of page sizes", fix="give lines such as A4@150dpi,70: a size, and how often it occurs", error=UsageError
)
_UNITS_S = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "day": 86400.0}
_NUMBER = r"(\d{1,12}(?:\.\d{1,9})?)"
_RATE = re.compile(rf"{_NUMBER}/({'|'.join(_UNITS_S)})")
_TIME = re.compile(rf"{_NUMBER}({'|'.join(_UNITS_S)})s?")
_CALL = re.compile(r"(lognormal|uniform)\(([^()]{1,80})\)")
_PREFIXES = re.compile(rf"(\d{{1,6}})x(\d{{1,9}})(?:@{_NUMBER}(%?))?")
_CLIENTS = re.compile(r"(?<!\S)(\d{1,7}) at once(?!\S)")
_WORD = re.compile(r"\s*((?:\([^()]*\)|\S)+)")
_SESSIONS = re.compile(r"(turns|grow|think)=((?:\([^()]*\)|[^,()])+)(?:,|$)")
_KEYS = ("rate", "at_once", "cv", "prompt", "output", "prefixes", "pages", "sessions", "requests", "for", "seed")
_MOST_TOKENS = 2**24
_MOST_TURNS = 10_000
_MOST_LINES = 1_000_000
_MOST_IMAGES = 200_000


def read_declared(text: str) -> DeclaredTraffic:
    """The distribution that a text declares."""
    words = _words(text)
    if unknown := next((name for name in words if name not in _KEYS), None):
        raise _unclear(text, f"{visible(unknown)[:40]!r} is none of: {', '.join(_KEYS)}")
    if "output" not in words:
        raise _unclear(text, "it does not say how many tokens an answer has: output=200")
    if "cv" in words and "rate" not in words:
        raise _unclear(text, "cv is about the gaps between requests that come at a rate")
    rate = _RATE.fullmatch(words["rate"]) if "rate" in words else None
    if "rate" in words and (rate is None or not float(rate[1])):
        raise _unclear(
            text, f"{visible(words['rate'])[:40]!r} is not a rate above zero, such as 20/s, 90/min or 5000/h"
        )
    return DeclaredTraffic(
        output=read_lengths(words["output"]),
        prompt=read_lengths(words["prompt"]) if "prompt" in words else None,
        arrivals=None
        if rate is None
        else Arrivals(per_s=float(rate[1]) / _UNITS_S[rate[2]], cv=_number(words.get("cv", "1"), "cv", text)),
        concurrency=_count(words["at_once"], "at_once", text) if "at_once" in words else None,
        requests=_count(words["requests"], "requests", text) if "requests" in words else None,
        duration_s=read_time(words["for"]) if "for" in words else None,
        prefixes=_prefixes(words["prefixes"], text) if "prefixes" in words else None,
        pages=read_page_mix(words["pages"]) if "pages" in words else None,
        sessions=read_sessions(words["sessions"]) if "sessions" in words else None,
        seed=int(_number(words.get("seed", "0"), "seed", text)),
        text=visible(" ".join(text.split())),
    )


def declared_in_toml(raw: bytes, kind: FileKind) -> DeclaredTraffic:
    """The same words as keys: `rate = "20/s"`, `at_once = 64`, `prompt = "lognormal(800,0.8)"`, `for = "600s"`."""
    document: Mapping[str, object] = parse_toml(raw, kind)
    for name, value in document.items():
        if not isinstance(value, str | int | Decimal) or isinstance(value, bool):
            raise kind.malformed(visible(name), "a text or a number", value)
    return read_declared(" ".join(f"{name}={str(value).replace(' ', '')}" for name, value in document.items()))


def read_time(text: str) -> float:
    """Seconds: `600s`, `10min`, `24h`, `500ms`."""
    match = _TIME.fullmatch(text.strip().lower().replace(" ", ""))
    if match is None or not float(match[1]):
        raise UsageError(
            f"{visible(text)[:40]!r} is not a time.",
            why=f"a time is a number above zero and a unit: {', '.join(_UNITS_S)}",
            fix="write 600s, 10min or 24h",
        )
    return float(match[1]) * _UNITS_S[match[2]]


def read_lengths(text: str) -> Lengths:
    """`1024`, `uniform(100,900)`, `lognormal(800,0.8)`, `lognormal(800,0.8,16,8192)`, or a file of numbers."""
    if text.isdigit() and len(text) < 9:
        return Fixed(tokens=_tokens(int(text), text))
    call = _CALL.fullmatch(text)
    try:
        if call is not None and call[1] == "uniform":
            low, high = (int(number) for number in call[2].split(","))
            if low <= high:
                return Uniform(least=_tokens(low, text), most=_tokens(high, text))
        elif call is not None:
            median, sigma, *limits = (float(number) for number in call[2].split(","))
            least, most = (int(limit) for limit in (limits or (1, 2**20)))
            if 1 <= median <= _MOST_TOKENS and 0 <= sigma <= 5 and least <= most:
                return LogNormal(median=median, sigma=sigma, least=_tokens(least, text), most=_tokens(most, text))
        elif names_file(text):
            return Listed(tokens=_lengths_in(Path(text)))
    except (ValueError, OverflowError):  # no number, or a limit that is infinite
        pass
    raise UsageError(
        f"{visible(text)[:60]!r} is not a length in tokens.",
        why="a length is a number of tokens, lognormal(MEDIAN,SIGMA) or lognormal(MEDIAN,SIGMA,LEAST,MOST), "
        "uniform(LEAST,MOST), or a file with one number in each line",
        fix="write 1024, uniform(100,900) or lognormal(800,0.8)",
    )


def read_sessions(text: str) -> Sessions:
    """`turns=8,grow=500,think=10s`: `think` may be left out."""
    words: dict[str, str] = {match[1]: match[2] for match in _SESSIONS.finditer(text)}
    is_whole = sum(len(match[0]) for match in _SESSIONS.finditer(text)) == len(text) and text.count("=") == len(words)
    turns = words.get("turns", "")
    if not is_whole or "grow" not in words or not turns.isdigit() or not 1 <= int(turns[:6]) <= _MOST_TURNS:
        raise UsageError(
            f"The sessions {visible(text)[:80]!r} are not clear.",
            why=f"they take turns from 1 to {_MOST_TURNS:,}, grow (new tokens of each turn after the first) and think "
            "(the mean time between an answer and the next turn), each once",
            fix="write turns=8,grow=500,think=10s",
        )
    think = words.get("think", "0")
    think_s = 0.0 if think in ("0", "0s") else read_time(think)
    return Sessions(turns=int(turns), grow=read_lengths(words["grow"]), think_s=think_s)


def read_page_mix(text: str) -> PageMix:
    """`A4@150dpi`, `A4@150dpi:70,1240x1754:30`, a file with a size and a count in each line, or a folder of images."""
    if Path(text).is_dir():
        return _folder_mix(Path(text))
    entries = text.split(",")
    if not text.startswith("A") and names_file(text):
        raw = read_bytes(Path(text), SIZES_FILE).decode("utf-8", "replace")
        lines = [line.partition("#")[0].strip() for line in raw.splitlines()]
        entries = [re.sub(r"\s*[,;\t]\s*", ":", line) for line in lines if line]
    sizes, weights = [], []
    for entry in entries[:_MOST_LINES]:
        size, _, weight = entry.strip().partition(":")
        sizes.append(read_page_size(size))
        weights.append(_number(weight, "the weight of a page", entry) if weight else 1.0)
    if not sum(weights):
        raise UsageError("No page has a weight above zero.", why="none would be drawn", fix="write A4@150dpi:70")
    return PageMix(sizes=tuple(sizes), weights=tuple(weights))


def _folder_mix(folder: Path) -> PageMix:
    """Every size among the images of a folder and its subfolders, from their headers, with how often it occurs."""
    from PIL import Image, UnidentifiedImageError

    counts: Counter[tuple[int, int]] = Counter()
    for number, file in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        if number >= _MOST_IMAGES:
            break
        try:
            with Image.open(file) as image:
                counts[image.size] += 1
        except (UnidentifiedImageError, OSError):  # no image: another file in the folder
            continue
    if not counts:
        raise UsageError(
            f"There is no image in {folder}.",
            why="no file there has a header that Pillow knows",
            fix="name a folder with PNG, JPEG or TIFF files, or give sizes: pages=A4@150dpi:70,640x640:30",
        )
    sizes = tuple(PageSize(name=f"{width}x{height}", width=width, height=height) for width, height in counts)
    return PageMix(sizes=sizes, weights=tuple(float(count) for count in counts.values()))


def _words(text: str) -> dict[str, str]:
    """Every part of the text by its name."""
    clients = _CLIENTS.findall(text)
    parts_by_name: dict[str, str] = {"at_once": clients[0]} if clients else {}
    parts = _WORD.findall(_CLIENTS.sub(" ", text))
    while parts:
        part = parts.pop(0)
        name, has_value, value = part.partition(":" if part.startswith("sessions:") else "=")
        if part in ("constant", "poisson"):
            name, value = "cv", "0" if part == "constant" else "1"
        elif part == "for" and parts:
            name, value = "for", parts.pop(0)
        elif _RATE.fullmatch(part):
            name, value = "rate", part
        elif not has_value:
            raise _unclear(text, f"{visible(part)[:40]!r} is neither a rate, nor a time, nor name=value")
        if name in parts_by_name:
            raise _unclear(text, f"it says {visible(name)[:40]!r} twice")
        parts_by_name[name] = value
    return parts_by_name


def names_file(text: str | Path) -> bool:
    """Whether there is a file of this name; False for what no file can be called."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


def _unclear(text: str, why: str) -> UsageError:
    return UsageError(f"The traffic {visible(text)[:120]!r} is not clear.", why=why, fix=_HOW)


def _tokens(count: int, text: str) -> int:
    if not 1 <= count <= _MOST_TOKENS:
        raise UsageError(
            f"{visible(text)[:60]!r} has a length of {count:,} tokens.",
            why=f"a length is between 1 and {_MOST_TOKENS:,}",
            fix="check the number",
        )
    return count


def _count(value: str, name: str, text: str) -> int:
    if not value.isdigit() or not 1 <= int(value[:12]) <= 10**9:
        raise _unclear(text, f"{name} is a whole number from 1 on")
    return int(value)


def _number(value: str, name: str, text: str) -> float:
    if not re.fullmatch(_NUMBER, value):
        raise _unclear(text, f"{name} is a number from 0 on, found {visible(value)[:40]!r}")
    return float(value)


def _prefixes(value: str, text: str) -> SharedPrefixes:
    match = _PREFIXES.fullmatch(value)
    share = 1.0 if match is None or match[3] is None else float(match[3]) / (100 if match[4] else 1)
    if match is None or not int(match[1]) or share > 1:
        raise _unclear(text, "prefixes are COUNTxTOKENS or COUNTxTOKENS@SHARE, such as 8x512@0.7")
    return SharedPrefixes(count=int(match[1]), tokens=_tokens(int(match[2]), value), share=share)


def _lengths_in(path: Path) -> tuple[int, ...]:
    lines = read_bytes(path, LENGTHS_FILE).decode("utf-8", "replace").split()
    if not lines or len(lines) > _MOST_LINES or not all(line.isdigit() and len(line) < 9 for line in lines):
        raise LENGTHS_FILE.refusal(f"{path} is not one", "every line is a whole number of tokens, at most a million")
    return tuple(_tokens(int(line), line) for line in lines)

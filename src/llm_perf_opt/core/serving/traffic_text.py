"""Traffic as people write it, `20/s prompt=lognormal(800,0.8) output=200 for 600s`; the same words in a TOML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.page_sizes import read_page_size
from llm_perf_opt.core.plain_text import visible
from llm_perf_opt.core.reading import FileKind, parse_toml, read_bytes
from llm_perf_opt.core.serving.declared_traffic import (
    Arrivals,
    DeclaredTraffic,
    Fixed,
    Lengths,
    Listed,
    LogNormal,
    PageMix,
    SharedPrefixes,
    Uniform,
)

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
_KEYS = ("rate", "at_once", "cv", "prompt", "output", "prefixes", "pages", "requests", "for", "seed")
_MOST_TOKENS = 2**24
_MOST_LINES = 1_000_000

PagesReader = Callable[[str], PageMix]


def read_declared(text: str, pages: PagesReader | None = None) -> DeclaredTraffic:
    """The distribution that a text declares. `pages` reads what stands after `pages=`, a folder of images perhaps."""
    words = _words(text)
    if unknown := next((name for name in words if name not in _KEYS), None):
        raise _unclear(text, f"{visible(unknown)[:40]!r} is none of: {', '.join(_KEYS)}")
    if "output" not in words:
        raise _unclear(text, "it does not say how many tokens an answer has: output=200")
    if "cv" in words and "rate" not in words:
        raise _unclear(text, "cv is about the gaps between requests that come at a rate")
    rate = _RATE.fullmatch(words["rate"]) if "rate" in words else None
    if "rate" in words and (rate is None or not float(rate[1])):
        raise _unclear(text, f"{visible(words['rate'])[:40]!r} is no rate above zero, such as 20/s, 90/min or 5000/h")
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
        pages=(pages or read_page_mix)(words["pages"]) if "pages" in words else None,
        seed=int(_number(words.get("seed", "0"), "seed", text)),
        text=visible(" ".join(text.split())),
    )


def declared_in_toml(raw: bytes, kind: FileKind, pages: PagesReader | None = None) -> DeclaredTraffic:
    """The same words as keys: `rate = "20/s"`, `at_once = 64`, `prompt = "lognormal(800,0.8)"`, `for = "600s"`."""
    document: Mapping[str, Any] = parse_toml(raw, kind)
    for name, value in document.items():
        if not isinstance(value, str | int | Decimal) or isinstance(value, bool):
            raise kind.malformed(visible(name), "a text or a number", value)
    return read_declared(" ".join(f"{name}={str(value).replace(' ', '')}" for name, value in document.items()), pages)


def read_time(text: str) -> float:
    """Seconds: `600s`, `10min`, `24h`, `500ms`."""
    found = _TIME.fullmatch(text.strip().lower().replace(" ", ""))
    if found is None or not float(found[1]):
        raise UsageError(
            f"{visible(text)[:40]!r} is no length of time.",
            why=f"it is a number above zero and a unit: {', '.join(_UNITS_S)}",
            fix="write 600s, 10min or 24h",
        )
    return float(found[1]) * _UNITS_S[found[2]]


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
        f"{visible(text)[:60]!r} is no length of a text.",
        why="it is a number of tokens, lognormal(MEDIAN,SIGMA) or lognormal(MEDIAN,SIGMA,LEAST,MOST), "
        "uniform(LEAST,MOST), or a file with one number in each line",
        fix="write prompt=1024 or prompt=lognormal(800,0.8)",
    )


def read_page_mix(text: str) -> PageMix:
    """`A4@150dpi`, `A4@150dpi:70,1240x1754:30`, or a file with a size and a count in each line."""
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


def _words(text: str) -> dict[str, str]:
    """Every part of the text by its name."""
    clients = _CLIENTS.findall(text)
    found: dict[str, str] = {"at_once": clients[0]} if clients else {}
    parts = _WORD.findall(_CLIENTS.sub(" ", text))
    while parts:
        part = parts.pop(0)
        name, has_value, value = part.partition("=")
        if part in ("constant", "poisson"):
            name, value = "cv", "0" if part == "constant" else "1"
        elif part == "for" and parts:
            name, value = "for", parts.pop(0)
        elif _RATE.fullmatch(part):
            name, value = "rate", part
        elif not has_value:
            raise _unclear(text, f"{visible(part)[:40]!r} is no rate, no time and no name=value")
        if name in found:
            raise _unclear(text, f"it says {visible(name)[:40]!r} twice")
        found[name] = value
    return found


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
            why=f"a length lies between 1 and {_MOST_TOKENS:,}",
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
    found = _PREFIXES.fullmatch(value)
    share = 1.0 if found is None or found[3] is None else float(found[3]) / (100 if found[4] else 1)
    if found is None or not int(found[1]) or share > 1:
        raise _unclear(text, "prefixes are COUNTxTOKENS or COUNTxTOKENS@SHARE, such as 8x512@0.7")
    return SharedPrefixes(count=int(found[1]), tokens=_tokens(int(found[2]), value), share=share)


def _lengths_in(path: Path) -> tuple[int, ...]:
    lines = read_bytes(path, LENGTHS_FILE).decode("utf-8", "replace").split()
    if not lines or len(lines) > _MOST_LINES or not all(line.isdigit() and len(line) < 9 for line in lines):
        raise LENGTHS_FILE.refusal(f"{path} is not one", "every line is a whole number of tokens, at most a million")
    return tuple(_tokens(int(line), line) for line in lines)

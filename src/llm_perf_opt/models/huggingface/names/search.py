"""Names by what a person writes: short forms, other capitals, near misses, and everything that holds some words."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from llm_perf_opt.core.plugins import MODEL_ALIASES, MODELS
from llm_perf_opt.models.huggingface.names.catalogue import catalogue
from llm_perf_opt.models.huggingface.names.hub_cache import cached_names

_NEAR = 0.6


def known_names() -> tuple[str, ...]:
    """Every name that resolves without a network: registered, in the cache, in the catalogue."""
    return tuple(dict.fromkeys((*MODELS.names(), *MODEL_ALIASES, *cached_names(), *catalogue())))


def short_form(text: str) -> tuple[str, ...]:
    """The names that `text` stands for in other capitals or without the owner; one: it is unambiguous."""
    wanted = _plain(text)
    whole = [name for name in known_names() if _plain(name) == wanted]
    if whole or "/" in text:
        return tuple(whole)
    return tuple(name for name in known_names() if _plain(name).rpartition("/")[2] == wanted)


def near_names(text: str, most: int = 3) -> tuple[str, ...]:
    """Known names that come nearest to a wrong one, the nearest first."""
    by_plain = {_plain(name): name for name in known_names()}
    by_short = {plain.rpartition("/")[2]: name for plain, name in by_plain.items()}
    wanted = _plain(text)
    found = [by_plain[plain] for plain in _close(wanted, by_plain, most)]
    found += [by_short[plain] for plain in _close(wanted.rpartition("/")[2], by_short, most)]
    return tuple(dict.fromkeys(found))[:most]


def matching(names: Iterable[str], text: str) -> tuple[str, ...]:
    """The names that hold every word of the text."""
    words = _plain(text).split()
    return tuple(name for name in names if all(word in _plain(name) for word in words))


def _close(wanted: str, names: Collection[str], most: int) -> list[str]:
    return difflib.get_close_matches(wanted, names, n=most, cutoff=_NEAR)


def _plain(text: str) -> str:
    return text.lower().replace("_", "-")

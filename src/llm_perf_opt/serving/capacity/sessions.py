"""How much of a turn's prompt is still in a cache when its turn comes: on the GPU, in host memory, or nowhere.

A turn leaves its prompt and its answer in the cache. A cache that drops what was used longest ago keeps everything for
about the same time `T` (Che's approximation): as much enters within `T` as there is room for. What a turn leaves takes
its room until the next turn comes, and after the last turn for all of `T`. Times to think are exponential, so a user is
back within `T` with a chance of `1 - exp(-T / think)`.

Host memory gets all that the GPU computes, as the engine copies blocks when they are full, and has a `T` of its own.
What only the host has is loaded over its link, one load after another, before the prompt is scheduled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import exp, inf

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.device import Device
from llm_perf_opt.core.hardware.links import host_link
from llm_perf_opt.core.plain_text import visible

_ROUNDS = 60  # of halving the time that a cache keeps
_SIZE = re.compile(r"(\d{1,7}(?:\.\d{1,3})?)\s*(GiB|TiB)", re.IGNORECASE)
_GIBI, _TEBI = 2**30, 2**40
_FULL = 0.99  # of a link: beyond, loads wait without end


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMean:
    """Sessions by their mean request. `earlier_tokens` of a prompt were computed by the turns before, in whole blocks.

    `continued` is the share of requests with a turn before them: their users thought for `think_s` on average. The
    prompts of first turns have `first_tokens`.
    """

    earlier_tokens: float
    continued: float
    think_s: float
    first_tokens: float

    @property
    def away_s(self) -> float:
        """Between an answer and the next request of the same place: nobody thinks after the last turn."""
        return self.continued * self.think_s


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCache:
    """Blocks of the cache in host memory. `tokens_per_s` is what the links of all ranks of one group bring back."""

    tokens: float
    tokens_per_s: float
    link: str  # of each rank
    groups: int = 1  # of ranks, each with a scheduler and links of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """What the mean request finds in caches, and how long it is loaded. `most_per_s`: requests that the link takes.

    `kinds` of requests are turns that find what is before them, turns that do not, and first turns: the share of each,
    and by how much its first token comes later than the mean request's, the earliest kind first.
    """

    gpu_tokens: float
    host_tokens: float = 0.0
    load_s: float = 0.0
    most_per_s: float = inf
    away_s: float = 0.0
    kinds: tuple[tuple[float, float], ...] = ((1.0, 0.0),)

    @property
    def tokens(self) -> float:
        """Of the prompt, that no step reads again."""
        return self.gpu_tokens + self.host_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLoad:
    """What comes to the caches of a replica: requests with this many tokens at their end, some of them at work."""

    requests_per_s: float
    end_tokens: float
    working_tokens: float  # that belong to requests in a step or waiting for one


def read_host_bytes(text: str | None) -> int | None:
    """`200GiB`: host memory of one replica."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise UsageError(
            f"{visible(text)[:40]!r} is not an amount of host memory.",
            why="it is a number above zero with its unit, GiB or TiB, for all GPUs of a replica together",
            fix="write --kv-offload 200GiB",
        )
    return round(float(match[1]) * (_TEBI if match[2].lower() == "tib" else _GIBI))


def host_cache(host_bytes: int, device: Device, rank_bytes_per_token: float, ranks: int, groups: int) -> HostCache:
    """Host memory of a replica; each rank of its groups keeps this much of each token."""
    link = host_link(device)
    if link is None:
        raise UsageError(
            f"The link of {device.name} to host memory is not known.",
            why="the table of devices states no PCIe for it that the table of links has",
            fix="leave --kv-offload out, or choose another GPU: llm-perf-opt devices list",
        )
    return HostCache(
        tokens=host_bytes / (rank_bytes_per_token * ranks),
        tokens_per_s=link.bytes_per_s / rank_bytes_per_token,
        link=link.name,
        groups=groups,
    )


def found_tokens(session: SessionMean, load: CacheLoad, gpu_tokens: float, host: HostCache | None) -> Reuse:
    """What a turn finds with this much room on the GPU and in host memory."""
    on_gpu = session.earlier_tokens * _kept_share(session, load, gpu_tokens)
    if host is None:
        return Reuse(gpu_tokens=on_gpu, away_s=session.away_s)
    on_host = max(0.0, session.earlier_tokens * _kept_share(session, load, host.tokens) - on_gpu)
    each_s = on_host / host.tokens_per_s
    busy = min(_FULL, load.requests_per_s / host.groups * each_s)
    return Reuse(
        gpu_tokens=on_gpu,
        host_tokens=on_host,
        load_s=each_s * (1 + busy / (2 * (1 - busy))),
        most_per_s=_FULL * host.groups / each_s if each_s else inf,
        away_s=session.away_s,
    )


def _kept_share(session: SessionMean, load: CacheLoad, tokens: float) -> float:
    """The share of turns that come before what they continue is dropped."""
    room, think_s = tokens - load.working_tokens, session.think_s
    if room <= 0:
        return 0.0
    if not think_s or not load.requests_per_s or room == inf:
        return 1.0
    left_per_s = load.requests_per_s * (load.end_tokens - session.earlier_tokens)  # by last turns, for nobody
    resumed = load.requests_per_s * session.earlier_tokens
    low, high = 0.0, room / left_per_s
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        entered = left_per_s * middle + resumed * think_s * (1 - exp(-middle / think_s))
        low, high = (middle, high) if entered < room else (low, middle)
    return 1 - exp(-low / think_s)

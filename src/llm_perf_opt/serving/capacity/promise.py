"""A promise to whoever asks: at most so long to the first token, per token or in all, for most of the requests."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plain_text import visible
from llm_perf_opt.core.units import format_seconds
from llm_perf_opt.serving.traffic_text import read_time

TIMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
_PART = re.compile(r"(ttft|tpot|e2e)(?:_ms)?=([0-9.]{1,12}[a-z]{0,4})")
_SHARE = re.compile(r"p([0-9]{2}(?:\.[0-9]{1,3})?)")
DEFAULT_SHARE = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Limits in seconds; None is no limit. `share` of the requests keep each of them."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    share: float = DEFAULT_SHARE

    @property
    def limits_s(self) -> dict[str, float]:
        """`TTFT`, `TPOT` and `E2E` -> seconds, as far as they are limited."""
        found = {"TTFT": self.ttft_s, "TPOT": self.tpot_s, "E2E": self.e2e_s}
        return {name: limit for name, limit in found.items() if limit is not None}

    @property
    def percentile(self) -> str:
        """`p99`."""
        return f"p{self.share * 100:g}"

    def __str__(self) -> str:
        parts = (f"{self.percentile} {name} at most {format_seconds(limit)}" for name, limit in self.limits_s.items())
        return ", ".join(parts)


def read_promise(text: str) -> Promise:
    """`ttft=500ms,tpot=40ms`, `p95,ttft=1s`, `e2e=30s`."""
    share, limits = DEFAULT_SHARE, dict[str, float]()
    for word in filter(None, re.split(r"[,\s]+", text.strip().lower())):
        part, percentile = _PART.fullmatch(word), _SHARE.fullmatch(word)
        if percentile is not None and 0 < float(percentile[1]) < 100:
            share = float(percentile[1]) / 100
        elif part is not None and f"{part[1]}_s" not in limits:
            limits[f"{part[1]}_s"] = read_time(part[2])
        else:
            raise _unclear(text, f"{visible(word)[:40]!r} is neither a limit nor a percentile")
    if not limits:
        raise _unclear(text, "it names no limit")
    return Promise(share=share, **limits)


def _unclear(text: str, why: str) -> UsageError:
    return UsageError(
        f"The promise {visible(text)[:80]!r} is not clear.",
        why=f"{why}; limits are ttft, tpot and e2e, each once and with a unit of time",
        fix="write --slo ttft=500ms,tpot=40ms, with p95 before it for 95 of 100 requests; p99 otherwise",
    )

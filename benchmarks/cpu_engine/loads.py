"""What is served: two small models, three kinds of traffic each, and what the engine is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from benchmarks.pages import table
from benchmarks.vllm_schedules.cases import Case
from llm_perf_opt.serving.engine_settings import EngineSettings
from llm_perf_opt.serving.read_traffic import as_traffic
from llm_perf_opt.serving.requests import Traffic

REPEATS = 3
DTYPE = "float32"
_LENGTHS = "prompt=lognormal(120,0.6) output=lognormal(24,0.5)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Case):
    """One model under one kind of traffic, in the type whose matmuls a processor has instructions for."""

    text: str

    def settings(self) -> EngineSettings:
        """As the case says, in another type."""
        return replace(super(Load, self).settings(), dtype=DTYPE)

    def traffic(self) -> Traffic:
        """The declared requests, drawn from one seed."""
        return as_traffic(self.text)


def loads(model: str) -> dict[str, Load]:
    """By name. The rates keep the engine busy about two thirds of the time."""
    rate, requests = {"tiny": ("20/s", 200), "llama-200m": ("0.3/s", 16)}[model]
    texts = {
        "8 at once": f"8 at once {_LENGTHS} requests={requests} seed=1",
        "Poisson": f"{rate} {_LENGTHS} requests={requests} seed=2",
        "all at the start": f"{requests} at once {_LENGTHS} requests={requests} seed=3",
    }
    return {
        name: Load(model=model, tokens=256, sequences=16, blocks=1000, more={"enable_prefix_caching": False}, text=text)
        for name, text in texts.items()
    }


MODELS = ("tiny", "llama-200m")


TIMES = ("TPOT, mean", "TTFT, median", "E2E, mean", "whole run")


def times_of(requests: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of the requests of a run, by the columns of `AnsweredRequests`."""
    arrival, first, last = (requests[name] for name in ("arrival_s", "first_token_s", "last_token_s"))
    several = [
        (end - start) / (tokens - 1)
        for start, end, tokens in zip(first, last, requests["output_tokens"], strict=True)
        if tokens > 1
    ]
    return {
        "TPOT, mean": fmean(several),
        "TTFT, median": median(start - came for start, came in zip(first, arrival, strict=True)),
        "E2E, mean": fmean(end - came for end, came in zip(last, arrival, strict=True)),
        "whole run": max(last) - min(arrival),
    }


def section(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line for each load and kind of step times; the spread is that of the same load served several times."""
    header = ("model", "traffic", "step times", *TIMES, "loop outside steps")
    lines = []
    for row in rows:
        tries, beside = row["tries"], f"{row['beside']:.0%}"
        middle = {name: median(attempt[name] for attempt in tries) for name in TIMES}
        spread = [
            max(attempt[name] for attempt in tries) / min(attempt[name] for attempt in tries) - 1 for name in TIMES
        ]
        measured = (
            f"{_seconds(middle[name])}, tries within {off:.0%}" for name, off in zip(TIMES, spread, strict=True)
        )
        lines.append((row["model"], row["load"], "measured", *measured, beside))
        for kind, times in row["replayed"].items():
            errors = (f"{times[name] / middle[name] - 1:+.0%}" for name in TIMES)
            lines.append((row["model"], row["load"], kind, *errors, ""))
    return table(header, lines)


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"

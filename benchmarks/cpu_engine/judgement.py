"""The times of a run in four figures, and the errors of a replay beside the spread of the real engine's own tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.serving_times.page import table

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
    header = ("model", "traffic", "step times", *TIMES, "loop beside steps")
    lines = []
    for row in rows:
        tries, beside = row["tries"], f"{row['beside']:.0%}"
        middle = {name: median(one[name] for one in tries) for name in TIMES}
        spread = [max(one[name] for one in tries) / min(one[name] for one in tries) - 1 for name in TIMES]
        measured = (
            f"{_seconds(middle[name])}, tries within {off:.0%}" for name, off in zip(TIMES, spread, strict=True)
        )
        lines.append((row["model"], row["load"], "measured", *measured, beside))
        for kind, found in row["replayed"].items():
            errors = (f"{found[name] / middle[name] - 1:+.0%}" for name in TIMES)
            lines.append((row["model"], row["load"], kind, *errors, ""))
    return table(header, lines)


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"

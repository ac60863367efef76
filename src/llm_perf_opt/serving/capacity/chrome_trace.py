"""A replay as a Chrome trace, which Perfetto and chrome://tracing open: steps, requests, counters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from llm_perf_opt.serving.requests import Replayed

_US = 1e6
_ENGINE_TRACK, _FIRST_REQUEST_TRACK = 0, 1


def chrome_trace(replicas: Sequence[Replayed], title: str) -> bytes:
    """Each replica is a process: a track of steps, one for each request that may run beside others, and counters."""
    events: list[dict[str, Any]] = []
    for number, one in enumerate(replicas):
        events += _named(number, title if len(replicas) == 1 else f"{title}, replica {number}")
        events += _steps(number, one)
        events += _requests(number, one)
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, allow_nan=False).encode()


def _named(process: int, title: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": title}}
    yield {"ph": "M", "name": "thread_name", "pid": process, "tid": _ENGINE_TRACK, "args": {"name": "steps"}}


def _steps(process: int, one: Replayed) -> Iterator[dict[str, Any]]:
    steps = one.steps
    for at, (start, lasts) in enumerate(zip(steps.start_s, steps.duration_s, strict=True)):
        prompt, decoding = steps.prompt_tokens[at], steps.decoding[at]
        yield {
            "ph": "X",
            "name": "mixed" if prompt and decoding else "prompts" if prompt else "decode",
            "pid": process,
            "tid": _ENGINE_TRACK,
            "ts": start * _US,
            "dur": lasts * _US,
            "args": {"step": at, "sequences decoding": decoding, "prompt tokens": prompt},
        }
        counts = {"running": steps.running[at], "waiting": steps.waiting[at]}
        yield {"ph": "C", "name": "requests", "pid": process, "ts": start * _US, "args": counts}
        share = {"share": steps.cache_use[at]}
        yield {"ph": "C", "name": "cache in use", "pid": process, "ts": start * _US, "args": share}


def _requests(process: int, one: Replayed) -> Iterator[dict[str, Any]]:
    """Waiting, prompt and answer of each request, on the first track that is free."""
    found = one.requests
    free_at: list[float] = []
    for at, name in enumerate(found.ids):
        arrival, end = found.arrival_s[at], found.last_token_s[at]
        track = next((place for place, free in enumerate(free_at) if free <= arrival), len(free_at))
        free_at[track:] = [end, *free_at[track + 1 :]]
        stages = (
            ("waits", arrival, found.scheduled_s[at]),
            ("prompt", found.scheduled_s[at], found.first_token_s[at]),
            ("answer", found.first_token_s[at], end),
        )
        for what, start, stop in stages:
            if stop > start:
                yield {
                    "ph": "X",
                    "name": f"{name} {what}",
                    "cat": what,
                    "pid": process,
                    "tid": _FIRST_REQUEST_TRACK + track,
                    "ts": start * _US,
                    "dur": (stop - start) * _US,
                    "args": {"prompt tokens": found.prompt_tokens[at], "output tokens": found.output_tokens[at]},
                }

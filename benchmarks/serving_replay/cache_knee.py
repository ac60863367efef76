"""Where the cache is full: measured over concurrency on two H100 with 8-bit weights, beside a replay of the same load.

The measured engine is TensorRT-LLM, whose cache is in 8 bits with such weights. Its share of the memory is 0.9 of what
the weights leave free; the scheduler is vLLM's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.records import read_nim, records_of
from benchmarks.serving_replay.field_records import ROUNDS, load_of, replay_once
from llm_perf_opt.engines.vllm.process import ReplayProcess

FACTS = Path(__file__).parents[2] / "tests" / "facts" / "serving" / "nim.json"
JUMP = 3.0  # TTFT against that at the concurrency before: from here on requests wait for room


@dataclass(frozen=True, slots=True, kw_only=True)
class KneeRow:
    """One concurrency."""

    in_flight: int
    measured_ttft_s: float
    ttft_s: float
    measured_itl_s: float
    tpot_s: float
    measured_tokens_per_s: float
    tokens_per_s: float
    running: int  # at most, in the replay


def rows(process: ReplayProcess) -> Iterator[KneeRow]:
    """As the record has them."""
    for record, run in zip(records_of(FACTS), read_nim(FACTS), strict=True):
        done = replay_once(process, run, load_of(run))
        found = done.requests
        later = range(len(found.ids) // ROUNDS, 2 * len(found.ids) // ROUNDS)
        yield KneeRow(
            in_flight=run.in_flight or 1,
            measured_ttft_s=run.ttft_s or math.nan,
            ttft_s=fmean(found.first_token_s[at] - found.arrival_s[at] for at in later),
            measured_itl_s=run.tpot_s or math.nan,
            tpot_s=fmean(
                (found.last_token_s[at] - found.first_token_s[at]) / (found.output_tokens[at] - 1) for at in later
            ),
            measured_tokens_per_s=record["output_tokens_per_s"],
            tokens_per_s=sum(found.output_tokens) / done.seconds,
            running=max(done.steps.running),
        )


def knee(in_flight: Sequence[int], ttft_s: Sequence[float]) -> int | None:
    """The concurrency at which the first token takes its largest jump; None: there is none."""
    jumps = [(now / before, number) for number, now, before in zip(in_flight[1:], ttft_s[1:], ttft_s, strict=False)]
    largest, number = max(jumps)
    return number if largest > JUMP else None

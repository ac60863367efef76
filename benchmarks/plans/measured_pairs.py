"""Pairs of measured runs that differ in nothing but their plan.

A pair has one model, system, engine, precision, lengths and concurrency. Left out, with the reason: runs whose plan
is not certain (disaggregated and whole systems), runs that drafted, repetitions of a measurement, runs that mostly
waited (over 40 % of a request before its first token), and pairs within 3 %, which repetitions do not tell apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from benchmarks.records import MeasuredRun, read_silicon

WAITED = 0.4  # of a request: such a server is full, and its times say how long the queue was
TIE = math.log(1.03)
AGAIN = "the same measurement again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two runs, the faster by time per output token first."""

    faster: MeasuredRun
    slower: MeasuredRun

    @property
    def runs(self) -> tuple[MeasuredRun, MeasuredRun]:
        """Both."""
        return self.faster, self.slower

    @property
    def kind(self) -> str:
        """In what the plans differ."""
        first, second = self.runs
        if any(run.decode_plan.tensor != run.decode_gpus for run in self.runs):
            return "attention data parallel"
        return "number of GPUs" if first.decode_gpus != second.decode_gpus else "experts whole or split"


def usable(runs: list[MeasuredRun], left_out: Counter[str]) -> Iterator[MeasuredRun]:
    """Runs of which plan and step time are certain; the others are counted by reason."""
    seen: set[object] = set()
    for run in runs:
        times = tuple(round(1e3 * (time or 0), 2) for time in (run.ttft_s, run.tpot_s))  # some repeat with fewer digits
        reason = AGAIN if (run.model, times) in seen else _unusable(run)
        seen.add((run.model, times))
        if reason is None:
            yield run
        else:
            left_out[reason] += 1


def _unusable(run: MeasuredRun) -> str | None:
    waited = (run.ttft_s or 0) / (run.e2e_s or 1)
    reasons = {
        "disaggregated: prompts and steps have plans of their own": run.is_disaggregated,
        "a whole system whose plan is not recorded": run.is_whole_system,
        AGAIN: run.is_repeat,
        "drafted tokens, by a rule": bool(run.drafts),
        "mostly waiting": waited > WAITED,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def pairs_of(runs: list[MeasuredRun], left_out: Counter[str]) -> Iterator[Pair]:
    """Every pair of plans of one configuration, each plan by its first measurement."""
    groups: dict[object, dict[str, MeasuredRun]] = {}
    for run in usable(runs, left_out):
        key = (run.model, run.device, run.engine, run.precision, run.prompt_tokens, run.output_tokens, run.in_flight)
        groups.setdefault(key, {}).setdefault(run.decode_plan.describe(run.decode_gpus), run)
    for plans in groups.values():
        for first, second in combinations(plans.values(), 2):
            faster, slower = sorted((first, second), key=lambda run: run.tpot_s or 0)
            if math.log((slower.tpot_s or 0) / (faster.tpot_s or 1)) > TIE:
                yield Pair(faster=faster, slower=slower)
            else:
                left_out["pairs within 3 %"] += 1


def measured_pairs() -> tuple[list[Pair], Counter[str]]:
    """All pairs of the records, and what was left out by reason."""
    left_out: Counter[str] = Counter()
    return list(pairs_of(read_silicon(), left_out)), left_out

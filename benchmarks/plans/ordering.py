"""Pairs of measured runs that differ in nothing but their plan.

A pair has one model, system, engine, precision, lengths and concurrency. Left out, with the reason: runs whose plan
is not certain (disaggregated and whole systems), runs that drafted, repetitions of a measurement, runs that mostly
waited (over 40 % of a request before its first token), and pairs within 3 %, which repetitions do not tell apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from benchmarks.records import MeasuredRun, read_silicon
from llm_perf_opt.timing.rates import Band

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


Estimate = Callable[[MeasuredRun], Band | None]
KINDS = ("number of GPUs", "experts whole or split", "attention data parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A pair and the two bands. The faster run is the one with the shorter time per output token."""

    pair: Pair
    faster: Band
    slower: Band

    @property
    def is_right(self) -> bool:
        """By the middles of the bands."""
        return self.faster.middle < self.slower.middle

    @property
    def is_right_per_gpu(self) -> bool:
        """Whether the plan with more tokens per second and GPU is put first."""
        first, second = self.pair.runs
        measured = (first.tpot_s or 0) * first.decode_gpus < (second.tpot_s or 0) * second.decode_gpus
        return measured == (self.faster.middle * first.decode_gpus < self.slower.middle * second.decode_gpus)

    @property
    def speed_up_error(self) -> float:
        """By which factor the estimated speed-up of one plan over the other is off, as a share: 0.1 is 10 %."""
        measured = (self.pair.slower.tpot_s or 0) / (self.pair.faster.tpot_s or 1)
        return math.exp(abs(math.log(self.slower.middle / self.faster.middle / measured))) - 1


def judge(pairs: Sequence[Pair], estimate: Estimate) -> list[Judged]:
    """Every pair that the estimate covers; each run is estimated once."""
    bands: dict[MeasuredRun, Band | None] = {run: estimate(run) for run in {run for pair in pairs for run in pair.runs}}
    judged = []
    for pair in pairs:
        faster, slower = (bands[run] for run in pair.runs)
        if faster is not None and slower is not None:
            judged.append(Judged(pair=pair, faster=faster, slower=slower))
    return judged


def summary(pairs: Sequence[Pair], judged: Sequence[Judged]) -> dict[str, Any]:
    """All that the page says of one estimate."""
    return {
        "kinds": [
            {"kind": kind, **_figures([p for p in pairs if p.kind == kind], [j for j in judged if j.pair.kind == kind])}
            for kind in KINDS
        ],
        "all": _figures(pairs, judged),
        "misses": _misses(judged),
        "models": [_model(model, judged) for model in sorted({one.pair.faster.model for one in judged})],
    }


def _figures(pairs: Sequence[Pair], judged: Sequence[Judged]) -> dict[str, Any]:
    differing = [one for one in judged if one.pair.faster.decode_gpus != one.pair.slower.decode_gpus]
    more = sum(one.pair.faster.decode_gpus > one.pair.slower.decode_gpus for one in differing)
    return {
        "pairs": len(pairs),
        "covered": len(judged),
        "right": sum(one.is_right for one in judged),
        "right_per_gpu": sum(one.is_right_per_gpu for one in judged),
        "differing": len(differing),
        "right_of_differing": sum(one.is_right for one in differing),
        "more_gpus_right": more,
        "speed_up_error": round(median(one.speed_up_error for one in judged), 3) if judged else None,
    }


def _misses(judged: Iterable[Judged], count: int = 15) -> list[dict[str, Any]]:
    wrong: Counter[tuple[str, ...]] = Counter()
    for one in judged:
        if not one.is_right:
            run = one.pair.faster
            plans = (each.decode_plan.describe(each.decode_gpus) for each in one.pair.runs)
            wrong[run.model, run.device, run.engine, *plans] += 1
    names = ("model", "device", "engine", "faster", "slower")
    return [{**dict(zip(names, key, strict=True)), "pairs": number} for key, number in wrong.most_common(count)]


def _model(model: str, judged: Sequence[Judged]) -> dict[str, Any]:
    """Measured time over the middle of its band, of every run that a pair holds."""
    mine = [one for one in judged if one.pair.faster.model == model]
    bands = {run: band for one in mine for run, band in zip(one.pair.runs, (one.faster, one.slower), strict=True)}
    ratios = sorted((run.tpot_s or 0) / band.middle for run, band in bands.items())
    return {
        "model": model,
        "pairs": len(mine),
        "right": sum(one.is_right for one in mine),
        "runs": len(bands),
        "tenth": round(ratios[len(ratios) // 10], 2),
        "median": round(median(ratios), 2),
        "ninetieth": round(ratios[len(ratios) * 9 // 10], 2),
        "in_band": sum(band.holds(run.tpot_s or 0) for run, band in bands.items()),
    }

"""What came of the estimates: errors by group and origin, coverage, order of plans and engines, after a measurement."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import combinations
from statistics import median
from typing import Any

from benchmarks.records import MeasuredRun
from benchmarks.serving_times.fitting import Judged

LOW = 64  # sequences in flight up to which a record counts as lightly loaded
TIE = math.log(1.03)  # repetitions do not tell such pairs apart
GROUPS: dict[str, Callable[[MeasuredRun], str]] = {
    "model": lambda run: run.model,
    "system": lambda run: run.device,
    "engine": lambda run: run.engine,
    "precision": lambda run: run.precision,
}


def figures(some: Sequence[Judged], answers: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """One row of a table; `answers` are aiconfigurator's TTFT and TPOT in seconds by name of the run."""
    if not some:
        return {"runs": 0}
    other = [(one, answers[one.one.run.name]) for one in some if one.one.run.name in answers]
    return {
        "runs": len(some),
        **tails_of("tpot", [one.tpot_error for one in some]),
        "tpot_bias": round(median(one.tpot_error for one in some), 4),
        **tails_of("ttft", [one.ttft_error for one in some]),
        "held": round(sum(one.holds() for one in some) / len(some), 4),
        "width": round(median(one.fit.tpot.high / one.fit.tpot.low for one in some), 3),
        "answered": len(other),
        **tails_of("other_tpot", [found[1] / (one.one.run.tpot_s or math.nan) - 1 for one, found in other]),
        **tails_of("other_ttft", [found[0] / (one.one.run.ttft_s or math.nan) - 1 for one, found in other]),
    }


def tails_of(name: str, errors: Sequence[float]) -> dict[str, float | None]:
    """How far off in the median, and at most in 90 and in 99 of 100 records; None: there are no records."""
    found = sorted(map(abs, errors))
    places = {name: None, f"{name}_p90": 0.9, f"{name}_p99": 0.99}
    if not found:
        return dict.fromkeys(places)
    return {
        key: round(median(found) if share is None else found[int(len(found) * share)], 4)
        for key, share in places.items()
    }


def sets(some: Sequence[Judged]) -> dict[str, list[Judged]]:
    """The sets that a page names; saturated runs are answered as such and are in none but the first."""
    steady = [one for one in some if not one.one.is_saturated]
    low = [one for one in steady if (one.one.run.in_flight or 0) <= LOW]
    return {
        "every aggregated record": list(some),
        "not saturated": steady,
        f"not saturated, up to {LOW} in flight": low,
        f"clean, up to {LOW} in flight": [one for one in low if one.one.is_clean],
    }


def by_group(some: Sequence[Judged], answers: dict[str, tuple[float, float]]) -> dict[str, dict[str, Any]]:
    """Errors of the lightly loaded runs by model, system, engine and precision."""
    low = sets(some)[f"not saturated, up to {LOW} in flight"]
    found: dict[str, dict[str, Any]] = {}
    for name, key in GROUPS.items():
        parts: dict[str, list[Judged]] = defaultdict(list)
        for one in low:
            parts[key(one.one.run)].append(one)
        found[name] = {part: figures(members, answers) for part, members in sorted(parts.items())}
    return found


def by_origin(some: Sequence[Judged]) -> dict[str, float]:
    """Share of the steps' time by where it came from."""
    seconds: Counter[str] = Counter()
    for one in some:
        for origin, time in one.one.step.by_origin.items():
            seconds[str(origin)] += time / one.one.step.seconds  # type: ignore[assignment]
        gaps = one.one.step.seconds - sum(one.one.step.by_origin.values())
        seconds["gaps, fitted"] += gaps / one.one.step.seconds  # type: ignore[assignment]
    return {origin: round(share / len(some), 4) for origin, share in seconds.most_common()}


def order(some: Sequence[Judged], *, of_engines: bool) -> dict[str, Any]:
    """How often the faster of two plans, or of two engines, is put first, all else being equal."""

    def plan(run: MeasuredRun) -> str:
        return run.decode_plan.describe(run.decode_gpus)

    groups: dict[Hashable, dict[str, Judged]] = defaultdict(dict)
    for one in (one for one in some if one.one.is_clean):
        run = one.one.run
        same = (run.model, run.device, run.precision, run.prompt_tokens, run.output_tokens, run.in_flight)
        alike = (*same, plan(run) if of_engines else run.engine)
        groups[alike].setdefault(run.engine if of_engines else plan(run), one)
    right = pairs = 0
    for members in groups.values():
        for first, second in combinations(members.values(), 2):
            measured = math.log((first.one.run.tpot_s or 1) / (second.one.run.tpot_s or 1))
            if abs(measured) > TIE:
                pairs += 1
                right += (measured < 0) == (first.tpot_s < second.tpot_s)
    return {"pairs": pairs, "right": right, "share": round(right / pairs, 4) if pairs else None}


def after_measurements(some: Sequence[Judged]) -> dict[str, dict[str, Any]]:
    """Errors on the rest of a plan's load curve, once one or both of its ends were measured.

    One point scales every estimate by its own factor; two make a line between the logarithms of estimate and
    measurement.
    """
    curves: dict[Hashable, list[Judged]] = defaultdict(list)
    for one in (one for one in some if one.one.is_clean):
        run = one.one.run
        plan = run.decode_plan.describe(run.decode_gpus)
        same = (run.model, run.device, run.engine, run.precision, run.prompt_tokens, run.output_tokens)
        curves[*same, plan].append(one)
    found: dict[str, list[float]] = defaultdict(list)
    for curve in curves.values():
        for name, error in _rest(sorted(curve, key=lambda one: one.one.run.in_flight or 0)):
            found[name].append(error)
    return {
        name: {"runs": len(errors), **tails_of("off", errors), **_ends(errors)}
        for name, errors in sorted(found.items())
    }


def _ends(errors: Sequence[float]) -> dict[str, float]:
    """Measured over estimated time at the tenth and the ninetieth percentile."""
    ratios = sorted(1 / (1 + error) for error in errors)
    return {"low": round(ratios[len(ratios) // 10], 3), "high": round(ratios[len(ratios) * 9 // 10], 3)}


def _rest(curve: Sequence[Judged]) -> Iterator[tuple[str, float]]:
    """Errors of the runs of one curve that were not measured, by what was."""
    middle = curve[len(curve) // 2]
    for one in curve:
        if len(curve) > 1 and one is not middle:
            yield "TPOT, one point", (1 + one.tpot_error) / (1 + middle.tpot_error) - 1
            yield "TTFT, one point", (1 + one.ttft_error) / (1 + middle.ttft_error) - 1
    first, last = curve[0], curve[-1]
    span = math.log(last.tpot_s / first.tpot_s)
    if len(curve) < 4 or span < math.log(1.05):
        return
    slope = math.log((last.one.run.tpot_s or 1) / (first.one.run.tpot_s or 1)) / span
    for one in curve[1:-1]:
        expected = (first.one.run.tpot_s or 1) * (one.tpot_s / first.tpot_s) ** slope
        yield "TPOT, both ends", expected / (one.one.run.tpot_s or math.nan) - 1

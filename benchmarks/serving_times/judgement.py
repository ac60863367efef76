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
TOLD = 0.1  # of the logarithm of two times: repetitions do not tell closer pairs apart
CHANGES = {
    "precision": "precision",
    "plan": "plan",
    "GPU": "device",
    "engine": "engine",
    "requests in flight": "in_flight",
    "prompt": "prompt_tokens",
}
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
    other = [(record, answers[record.estimate.run.name]) for record in some if record.estimate.run.name in answers]
    return {
        "runs": len(some),
        **tails_of("tpot", [record.tpot_error for record in some]),
        "tpot_bias": round(median(record.tpot_error for record in some), 4),
        **tails_of("ttft", [record.ttft_error for record in some]),
        "held": round(sum(record.holds() for record in some) / len(some), 4),
        "width": round(median(record.fit.tpot.high / record.fit.tpot.low for record in some), 3),
        "answered": len(other),
        **tails_of(
            "other_tpot", [answer[1] / (record.estimate.run.tpot_s or math.nan) - 1 for record, answer in other]
        ),
        **tails_of(
            "other_ttft", [answer[0] / (record.estimate.run.ttft_s or math.nan) - 1 for record, answer in other]
        ),
    }


def tails_of(name: str, errors: Sequence[float]) -> dict[str, float | None]:
    """How far off in the median, and at most in 90 and in 99 of 100 records; None: there are no records."""
    sizes = sorted(map(abs, errors))
    places = {name: None, f"{name}_p90": 0.9, f"{name}_p99": 0.99}
    if not sizes:
        return dict.fromkeys(places)
    return {
        key: round(median(sizes) if share is None else sizes[int(len(sizes) * share)], 4)
        for key, share in places.items()
    }


def sets(some: Sequence[Judged]) -> dict[str, list[Judged]]:
    """The sets that a page names; saturated runs are answered as such and are in none but the first two."""
    steady = [record for record in some if not record.estimate.is_saturated]
    low = [record for record in steady if (record.estimate.run.in_flight or 0) <= LOW]
    return {
        "every aggregated record": list(some),
        "neither drafted nor a whole system": [
            record for record in some if not (record.estimate.run.drafts or record.estimate.run.is_whole_system)
        ],
        "not saturated": steady,
        f"not saturated, up to {LOW} in flight": low,
        f"clean, up to {LOW} in flight": [record for record in low if record.estimate.is_clean],
    }


def by_group(some: Sequence[Judged], answers: dict[str, tuple[float, float]]) -> dict[str, dict[str, Any]]:
    """Errors of the lightly loaded runs by model, system, engine and precision."""
    low = sets(some)[f"not saturated, up to {LOW} in flight"]
    groups: dict[str, dict[str, Any]] = {}
    for name, key in GROUPS.items():
        parts: dict[str, list[Judged]] = defaultdict(list)
        for record in low:
            parts[key(record.estimate.run)].append(record)
        groups[name] = {part: figures(members, answers) for part, members in sorted(parts.items())}
    return groups


def by_origin(some: Sequence[Judged]) -> dict[str, float]:
    """Share of the steps' time by where it came from."""
    seconds: Counter[str] = Counter()
    for record in some:
        for origin, time in record.estimate.step.by_origin.items():
            seconds[str(origin)] += time / record.estimate.step.seconds  # type: ignore[assignment]
        gaps = record.estimate.step.seconds - sum(record.estimate.step.by_origin.values())
        seconds["gaps, fitted"] += gaps / record.estimate.step.seconds  # type: ignore[assignment]
    return {origin: round(share / len(some), 4) for origin, share in seconds.most_common()}


def one_change(some: Sequence[Judged], change: str) -> dict[str, Any]:
    """Pairs of runs that differ in one thing: how far off the ratio of their TPOT is, and how often its sign is right.

    Signs count where the measured times are told apart. `wrong` are the groups of pairs that are put in false order.
    """
    errors, told, wrong, causes = [], 0, defaultdict(list), Counter[str]()
    apart = _repetitions(some)
    for first, second in _pairs(some, change):
        measured = math.log((second.estimate.run.tpot_s or 1) / (first.estimate.run.tpot_s or 1))
        expected = math.log(second.tpot_s / first.tpot_s)
        errors.append(abs(expected - measured))
        if abs(measured) > TOLD:
            told += 1
            if (measured > 0) != (expected > 0):
                run = first.estimate.run
                alike = {name: value for name, value in _alike(run).items() if name in ("model", "device", "engine")}
                alike[change] = f"{_alike(run)[change]} to {_alike(second.estimate.run)[change]}"
                alike["cause"] = cause = _cause((first, second), measured, expected, apart)
                causes[cause] += 1
                wrong[tuple(alike.values())].append((math.exp(measured) - 1, math.exp(expected) - 1))
    errors.sort()
    right = told - sum(map(len, wrong.values()))
    groups = sorted(wrong.items(), key=lambda group: (-len(group[1]), group[0]))
    return {
        "pairs": len(errors),
        "off": round(math.expm1(median(errors)), 4) if errors else None,
        "off_p90": round(math.expm1(errors[int(0.9 * len(errors))]), 4) if errors else None,
        "told": told,
        "right": right,
        "share": round(right / told, 4) if told else None,
        "causes": dict(causes.most_common()),
        "wrong": [
            {"group": list(group), "pairs": len(both)}
            | {name: round(median(pair[at] for pair in both), 3) for at, name in enumerate(("measured", "expected"))}
            for group, both in groups
        ],
    }


def agreeing(some: Sequence[Judged]) -> list[Judged]:
    """The runs that no queue, draft or whole system explains, and whose repetitions are not told apart."""
    apart = _repetitions(some)
    return [
        record
        for record in some
        if apart[_configuration(record.estimate.run)] <= TOLD
        and not (record.estimate.is_saturated or record.estimate.run.drafts or record.estimate.run.is_whole_system)
    ]


def repeated(some: Sequence[Judged]) -> dict[str, Any]:
    """How far apart two measurements of one configuration are, copies of a record left out."""
    times: dict[Hashable, set[float]] = defaultdict(set)
    for record in some:
        times[_configuration(record.estimate.run)].add(round(record.estimate.run.tpot_s or 0, 7))
    ratios = [max(pair) / min(pair) - 1 for several in times.values() for pair in combinations(several, 2)]
    return {"pairs": len(ratios), **tails_of("off", ratios)}


SATURATED = "a run is saturated: its time says how long the queue was"
REPEATED = "repetitions of one of the two are as far apart"
ALIKE = "estimated alike, within 10 %"
EXPERTS = "experts spread by another rule"
ATTENTION = "replicas of the attention in place of shared heads"
MORE = "more GPUs measured slower, or fewer faster"
OTHER = "no cause found"


def _cause(pair: tuple[Judged, Judged], measured: float, expected: float, apart: dict[Hashable, float]) -> str:
    """Why a pair may be in false order: the first rule that holds, those that doubt the records before the others."""
    runs = [record.estimate.run for record in pair]
    if any(record.estimate.is_saturated for record in pair):
        return SATURATED
    if max(apart[_configuration(run)] for run in runs) >= abs(measured):
        return REPEATED
    if abs(expected) < TOLD:
        return ALIKE
    if runs[0].decode_gpus != runs[1].decode_gpus and (measured > 0) == (runs[1].decode_gpus > runs[0].decode_gpus):
        return MORE
    plans = [run.decode_plan.describe(run.decode_gpus) for run in runs]
    if ("dp" in plans[0]) != ("dp" in plans[1]):
        return ATTENTION
    return EXPERTS if ("ep" in plans[0]) != ("ep" in plans[1]) else OTHER


def _configuration(run: MeasuredRun) -> Hashable:
    return tuple(_alike(run).values())


def _repetitions(some: Sequence[Judged]) -> dict[Hashable, float]:
    """Configuration -> how far apart the logarithms of its measured times are; 0 where it was measured once."""
    times: dict[Hashable, list[float]] = defaultdict(list)
    for record in some:
        times[_configuration(record.estimate.run)].append(math.log(record.estimate.run.tpot_s or 1))
    return {configuration: max(logs) - min(logs) for configuration, logs in times.items()}


def _alike(run: MeasuredRun) -> dict[str, object]:
    names = ("model", "device", "engine", "precision", "prompt_tokens", "output_tokens", "in_flight")
    return {name: getattr(run, name) for name in names} | {"plan": run.decode_plan.describe(run.decode_gpus)}


def _pairs(some: Sequence[Judged], change: str) -> Iterator[tuple[Judged, Judged]]:
    groups: dict[Hashable, dict[object, Judged]] = defaultdict(dict)
    for record in some:
        alike = _alike(record.estimate.run)
        groups[tuple(value for name, value in alike.items() if name != change)].setdefault(alike[change], record)
    for members in groups.values():
        yield from combinations(members.values(), 2)


def after_measurements(some: Sequence[Judged]) -> dict[str, dict[str, Any]]:
    """Errors on the rest of a plan's load curve, once one or both of its ends were measured.

    One point scales every estimate by its own factor; two make a line between the logarithms of estimate and
    measurement.
    """
    curves: dict[Hashable, list[Judged]] = defaultdict(list)
    for record in (record for record in some if record.estimate.is_clean):
        run = record.estimate.run
        plan = run.decode_plan.describe(run.decode_gpus)
        same = (run.model, run.device, run.engine, run.precision, run.prompt_tokens, run.output_tokens)
        curves[*same, plan].append(record)
    errors_of: dict[str, list[float]] = defaultdict(list)
    for curve in curves.values():
        for name, error in _rest(sorted(curve, key=lambda record: record.estimate.run.in_flight or 0)):
            errors_of[name].append(error)
    return {
        name: {"runs": len(errors), **tails_of("off", errors), **_ends(errors)}
        for name, errors in sorted(errors_of.items())
    }


def _ends(errors: Sequence[float]) -> dict[str, float]:
    """Measured over estimated time at the tenth and the ninetieth percentile."""
    ratios = sorted(1 / (1 + error) for error in errors)
    return {"low": round(ratios[len(ratios) // 10], 3), "high": round(ratios[len(ratios) * 9 // 10], 3)}


def _rest(curve: Sequence[Judged]) -> Iterator[tuple[str, float]]:
    """Errors of the runs of one curve that were not measured, by what was."""
    middle = curve[len(curve) // 2]
    for record in curve:
        if len(curve) > 1 and record is not middle:
            yield "TPOT, one point", (1 + record.tpot_error) / (1 + middle.tpot_error) - 1
            yield "TTFT, one point", (1 + record.ttft_error) / (1 + middle.ttft_error) - 1
    first, last = curve[0], curve[-1]
    span = math.log(last.tpot_s / first.tpot_s)
    if len(curve) < 4 or span < math.log(1.05):
        return
    slope = math.log((last.estimate.run.tpot_s or 1) / (first.estimate.run.tpot_s or 1)) / span
    for record in curve[1:-1]:
        expected = (first.estimate.run.tpot_s or 1) * (record.tpot_s / first.tpot_s) ** slope
        yield "TPOT, both ends", expected / (record.estimate.run.tpot_s or math.nan) - 1

"""What is fitted to served requests: the gap between kernels, the shares of a first token, and two quantiles each.

Only clean runs that are not frozen take part; the edges of the band of TPOT are those of all that are not frozen, since
a reader does not know which of his runs will be clean. `leave_one_out` fits without each model in turn and estimates it
with what the others gave: that is how the figures of the development set are judged.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import quantiles
from typing import Any

import numpy as np

from benchmarks.serving_times.estimates import Estimated
from llm_perf_opt.timing.kernels.times import LAUNCH_GAP_S
from llm_perf_opt.timing.step import request_time
from llm_perf_opt.timing.step.request_time import (
    DISAGGREGATED,
    FirstToken,
    Quantiles,
    RequestFit,
    banded,
    request_fit,
    time_to_first,
)

GAPS_S = [step * 1e-7 for step in range(41)]
FEWEST = 15  # runs of one sender below which all of them are taken together
ALL = "all"
FILE = Path(request_time.__file__).parent / "serving_fit.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A run with times of a fit that it took no part in."""

    estimate: Estimated
    tpot_s: float
    ttft_s: float
    fit: RequestFit

    @property
    def tpot_error(self) -> float:
        """Estimate over measurement, less one."""
        return self.tpot_s / (self.estimate.run.tpot_s or math.nan) - 1

    @property
    def ttft_error(self) -> float:
        """Estimate over measurement, less one."""
        return self.ttft_s / (self.estimate.run.ttft_s or math.nan) - 1

    def holds(self) -> bool:
        """Whether the band of TPOT holds the measurement."""
        return banded(self.tpot_s, self.fit.tpot).holds(self.estimate.run.tpot_s or math.nan)


def at_gap(record: Estimated, gap_s: float) -> Estimated:
    """The same estimate with another gap."""
    return replace(record, gap_s=gap_s)


def fit_gap(records: Sequence[Estimated]) -> float:
    """The gap with the least mean of median errors, every model and engine counting alike."""
    groups: dict[object, list[tuple[float, float, float]]] = defaultdict(list)
    for record in records:
        row = (at_gap(record, 0.0).tpot_s, record.step.kernels, record.run.tpot_s or 1.0)
        groups[record.run.model, record.run.engine].append(row)
    columns = [np.array(rows).T for rows in groups.values()]

    def error(gap_s: float) -> float:
        medians = [np.median(np.abs(np.log((bare + gap_s * n) / measured))) for bare, n, measured in columns]
        return float(np.mean(medians))

    return min(GAPS_S, key=error)


def fitted(records: Sequence[Estimated], gap_s: float = LAUNCH_GAP_S) -> RequestFit:
    """The fit to these runs."""
    clean = [at_gap(record, gap_s) for record in records if record.is_clean]
    senders: dict[str, list[Estimated]] = defaultdict(list)
    for record in clean:
        senders[record.sender].append(record)
        senders[ALL].append(record)
    shares = {name: _shares(some) for name, some in senders.items() if len(some) >= FEWEST}
    others = {name: kept for name, kept in request_fit().first_token.items() if name.endswith(DISAGGREGATED)}
    fit = RequestFit(
        fitted_to="silicon_sample.csv, aggregated, without the frozen systems and models",
        records=len(clean),
        tpot=_quantiles([(record.run.tpot_s or 0) / at_gap(record, gap_s).tpot_s for record in records]),
        ttft=Quantiles(low=1.0, high=1.0),
        first_token=shares | others,
    )
    return replace(fit, ttft=_quantiles([(record.run.ttft_s or 0) / _ttft(record, fit) for record in clean]))


def leave_one_out(records: Sequence[Estimated]) -> Iterator[Judged]:
    """Every run by a fit to the other models."""
    for model in dict.fromkeys(record.run.model for record in records):
        others = [record for record in records if record.run.model != model]
        gap_s = fit_gap([other for other in others if other.is_clean])
        fit = fitted(others, gap_s)
        yield from judged([at_gap(record, gap_s) for record in records if record.run.model == model], fit)


def judged(records: Sequence[Estimated], fit: RequestFit) -> list[Judged]:
    """Every run by one fit."""
    return [Judged(estimate=record, tpot_s=record.tpot_s, ttft_s=_ttft(record, fit), fit=fit) for record in records]


def _ttft(record: Estimated, fit: RequestFit) -> float:
    shares = fit.first_token.get(record.sender, fit.first_token[ALL])
    return time_to_first(record.tpot_s, record.prompt_s, record.in_flight, shares)


def _quantiles(ratios: Sequence[float]) -> Quantiles:
    tenths = quantiles(ratios, n=10, method="inclusive")
    return Quantiles(low=round(tenths[0], 3), high=round(tenths[8], 3))


def _shares(some: Sequence[Estimated]) -> FirstToken:
    rows = [(1.0, record.prompt_s, record.in_flight * record.prompt_s, record.tpot_s) for record in some]
    measured = [record.run.ttft_s or 1.0 for record in some]
    fit = fit_first_token(rows, measured, begin=(0.02, 1.0, 0.1, 1.0), tries=400)
    constant, prompts, others, steps = (round(value, 5) for value in fit)
    return FirstToken(constant_s=constant, prompts=prompts, prompts_of_others=others, steps=steps)


def fit_first_token(
    rows: Sequence[Sequence[float]],
    measured: Sequence[float],
    *,
    begin: Sequence[float],
    known: Sequence[float] | float = 0.0,
    tries: int,
) -> list[float]:
    """Shares of times whose sum with what is `known` has the least mean error of its logarithm; none is negative."""
    from scipy.optimize import minimize  # comes with the tables

    times, wanted, least = np.array(rows), np.array(measured), np.array(known)

    def error(shares: Sequence[float]) -> float:
        return float(np.mean(np.abs(np.log(np.maximum(least + times @ np.abs(shares), 1e-6) / wanted))))

    solve: Callable[..., Any] = minimize
    best = solve(error, list(begin), method="Nelder-Mead", options={"maxiter": tries})
    return [abs(float(value)) for value in best.x]


def write(fit: RequestFit, file: Path = FILE) -> None:
    """The fit as the package reads it."""
    lines = [
        "# Fitted to served requests by benchmarks/serving_times; figures are measured over estimated time, and shares",
        "# of a first token by engine and by how requests were sent (lengths from a range, or fixed).",
        f'fitted_to = "{fit.fitted_to}"',
        f"records = {fit.records}",
        *(
            f"\n[{name}]\nlow = {band.low}\nhigh = {band.high}"
            for name, band in (("tpot", fit.tpot), ("ttft", fit.ttft))
        ),
    ]
    for name, shares in sorted(fit.first_token.items()):
        lines.append(f'\n[first_token."{name}"]')
        lines.append(f"constant_s = {shares.constant_s}\nprompts = {shares.prompts}")
        lines.append(f"prompts_of_others = {shares.prompts_of_others}\nsteps = {shares.steps}")
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")

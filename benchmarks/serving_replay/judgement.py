"""Replayed records beside measured ones. What a replay cannot know of a first token is fitted: the way to the engine.

A request passes a front end before the scheduler sees it: it is sent, read, turned into tokens, handed over; the answer
goes back the same way, and some servers hold back the first tokens until they have a few. The load generator measures
that too. So TTFT is a sum: the replayed wait for a place in a step, a constant, a share of the prompt's own step, and
some steps; the last three by engine and load generator, fitted to records of other models. The command line prints the
replay alone: its TTFT is judged as printed, and the fitted sum beside it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.records import MeasuredRun
from benchmarks.serving_replay.field_records import Replay
from benchmarks.serving_times.estimates import FROZEN_MODELS, is_frozen, sender
from benchmarks.serving_times.fitting import ALL, FEWEST, fit_first_token
from benchmarks.serving_times.judgement import GROUPS, LOW, tails_of

Shares = tuple[float, float, float]  # seconds, prompts, steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A record, its replay, and its first token with the way to the engine."""

    run: MeasuredRun
    replay: Replay
    ttft_s: float

    @property
    def tpot_error(self) -> float:
        return self.replay.tpot_s / (self.run.tpot_s or math.nan) - 1

    @property
    def ttft_error(self) -> float:
        """As printed: from the arrival at the scheduler to the end of the step that gives the token."""
        return self.replay.ttft_s / (self.run.ttft_s or math.nan) - 1

    @property
    def fitted_ttft_error(self) -> float:
        """With the way to the engine."""
        return self.ttft_s / (self.run.ttft_s or math.nan) - 1

    @property
    def e2e_error(self) -> float:
        """Of printed times, by the sum that a record's own is: records have no E2E of their own."""
        mine = self.replay.ttft_s + self.run.output_tokens * self.replay.tpot_s
        return mine / (self.run.e2e_s or math.nan) - 1


def answered(pairs: Sequence[tuple[MeasuredRun, Replay]]) -> list[Replayed]:
    """Each by a fit to the development records of other models."""
    development = [pair for pair in pairs if not is_frozen(pair[0])]
    whole = fitted(development)
    found: list[Replayed] = []
    for model in dict.fromkeys(run.model for run, _ in pairs):
        others = fitted([pair for pair in development if pair[0].model != model])
        for run, replay in pairs:
            if run.model == model:
                fit = whole if is_frozen(run) and model in FROZEN_MODELS else others
                found.append(Replayed(run=run, replay=replay, ttft_s=_first(fit, run, replay)))
    return found


def fitted(pairs: Sequence[tuple[MeasuredRun, Replay]]) -> Mapping[str, Shares]:
    """The shares of each sender; drafted runs and repetitions take no part."""
    senders: dict[str, list[tuple[MeasuredRun, Replay]]] = defaultdict(list)
    for run, replay in pairs:
        if not (run.drafts or run.is_repeat or run.is_whole_system):
            senders[sender(run)].append((run, replay))
            senders[ALL].append((run, replay))
    return {name: _shares(some) for name, some in senders.items() if len(some) >= FEWEST}


def _row(replay: Replay) -> Shares:
    return (1.0, replay.prompt_s, replay.tpot_s)


def _first(fit: Mapping[str, Shares], run: MeasuredRun, replay: Replay) -> float:
    shares = fit.get(sender(run), fit[ALL])
    return replay.queued_s + sum(share * time for share, time in zip(shares, _row(replay), strict=True))


def _shares(some: Sequence[tuple[MeasuredRun, Replay]]) -> Shares:
    constant, prompts, steps = fit_first_token(
        [_row(replay) for _, replay in some],
        [run.ttft_s or 1.0 for run, _ in some],
        known=[replay.queued_s for _, replay in some],
        begin=(0.02, 1.0, 1.0),
        tries=600,
    )
    return constant, prompts, steps


def sets(found: Sequence[Replayed]) -> dict[str, list[Replayed]]:
    """The sets that a page names."""
    low = [one for one in found if (one.run.in_flight or 1) <= LOW]
    vllm = [one for one in found if one.run.engine == "vllm"]
    return {
        "every aggregated record": list(found),
        "vLLM": vllm,
        f"up to {LOW} in flight": low,
        f"vLLM, up to {LOW} in flight": [one for one in vllm if (one.run.in_flight or 1) <= LOW],
        "development": [one for one in found if not is_frozen(one.run)],
        "frozen systems and models": [one for one in found if is_frozen(one.run)],
    }


def figures(some: Sequence[Replayed], answers: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """One row of a table; `answers` are aiconfigurator's TTFT and TPOT in seconds by name of the run."""
    other = [(one.run, answers[one.run.name]) for one in some if one.run.name in answers]
    row: dict[str, Any] = {"records": len(some), "answered": len(other)}
    for name in ("tpot", "ttft", "fitted_ttft", "e2e"):
        errors = [getattr(one, f"{name}_error") for one in some]
        known = [error for error in errors if not math.isnan(error)]
        row |= tails_of(name, known)
        row[f"{name}_bias"] = round(median(known), 4) if known else None
    row |= tails_of("other_tpot", [found[1] / (run.tpot_s or math.nan) - 1 for run, found in other])
    row |= tails_of("other_ttft", [found[0] / (run.ttft_s or math.nan) - 1 for run, found in other])
    return row


def by_group(found: Sequence[Replayed]) -> Iterator[tuple[str, str, list[Replayed]]]:
    """Kind of group, its name, its records."""
    for kind, key in GROUPS.items():
        parts: dict[str, list[Replayed]] = defaultdict(list)
        for one in found:
            parts[key(one.run)].append(one)
        for name, some in sorted(parts.items()):
            yield kind, name, some

"""The figures of the replays as sections of a page, and the overlay of recorded and replayed queues."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.pages import signed, table, tails
from benchmarks.records import MeasuredRun
from benchmarks.serving_replay.field_records import Replay
from benchmarks.serving_replay.recorded_runs import RecordedRun
from benchmarks.serving_times.estimates import FROZEN_MODELS, is_frozen, sender
from benchmarks.serving_times.fitting import ALL, FEWEST, fit_first_token
from benchmarks.serving_times.judgement import GROUPS, LOW, tails_of
from llm_perf_opt.core.report import Axis, Kind, Line, LineChart
from llm_perf_opt.serving.requests import EngineSteps

# Replayed records next to measured ones. What a replay cannot know of a first token is fitted: the way to the engine.

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
    replayed: list[Replayed] = []
    for model in dict.fromkeys(run.model for run, _ in pairs):
        others = fitted([pair for pair in development if pair[0].model != model])
        for run, replay in pairs:
            if run.model == model:
                fit = whole if is_frozen(run) and model in FROZEN_MODELS else others
                replayed.append(Replayed(run=run, replay=replay, ttft_s=_first(fit, run, replay)))
    return replayed


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


def sets(replayed: Sequence[Replayed]) -> dict[str, list[Replayed]]:
    """The sets that a page names."""
    low = [record for record in replayed if (record.run.in_flight or 1) <= LOW]
    vllm = [record for record in replayed if record.run.engine == "vllm"]
    return {
        "every aggregated record": list(replayed),
        "vLLM": vllm,
        f"up to {LOW} in flight": low,
        f"vLLM, up to {LOW} in flight": [record for record in vllm if (record.run.in_flight or 1) <= LOW],
        "development": [record for record in replayed if not is_frozen(record.run)],
        "frozen systems and models": [record for record in replayed if is_frozen(record.run)],
    }


def figures(some: Sequence[Replayed], answers: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """One row of a table; `answers` are aiconfigurator's TTFT and TPOT in seconds by name of the run."""
    other = [(record.run, answers[record.run.name]) for record in some if record.run.name in answers]
    row: dict[str, Any] = {"records": len(some), "answered": len(other)}
    for name in ("tpot", "ttft", "fitted_ttft", "e2e"):
        errors = [getattr(record, f"{name}_error") for record in some]
        known = [error for error in errors if not math.isnan(error)]
        row |= tails_of(name, known)
        row[f"{name}_bias"] = round(median(known), 4) if known else None
    row |= tails_of("other_tpot", [answer[1] / (run.tpot_s or math.nan) - 1 for run, answer in other])
    row |= tails_of("other_ttft", [answer[0] / (run.ttft_s or math.nan) - 1 for run, answer in other])
    return row


def by_group(replayed: Sequence[Replayed]) -> Iterator[tuple[str, str, list[Replayed]]]:
    """Kind of group, its name, its records."""
    for kind, key in GROUPS.items():
        parts: dict[str, list[Replayed]] = defaultdict(list)
        for record in replayed:
            parts[key(record.run)].append(record)
        for name, some in sorted(parts.items()):
            yield kind, name, some


_OVERLAY_POINTS = 400
_ERRORS = ("TPOT, mean", "E2E, mean", "TTFT, median", "queued, mean")


def sections(data: Mapping[str, Any]) -> dict[str, str]:
    """Name of a section -> its text; a part that was not measured has none."""
    texts = {}
    if "recorded" in data:
        texts["recorded"] = _recorded(data["recorded"])
    if "knee" in data:
        texts["knee"] = _knee(data["knee"])
    if "ocr" in data:
        texts["ocr"] = _ocr(data["ocr"])
    if "own_scheduler" in data:
        texts["own scheduler"] = _own_scheduler(data["own_scheduler"])
    if "sets" in data:
        texts["sets"] = _rows(data["sets"].items())
        texts["groups"] = _rows(((f"{kind} {name}", row) for kind, name, row in data["groups"]))
        texts["first token"] = _fit(data["first_token"])
    return texts


def _own_scheduler(found: Mapping[str, Any]) -> str:
    rows = (
        (
            scheduler,
            *(f"{found[f'{name}_{what}']:.1%} ({found[f'{name}_{what}_signed']:+.0%})" for what in ("tpot", "ttft")),
        )
        for name, scheduler in (("sglang", "SGLang's own"), ("vllm", "vLLM's"))
    )
    return table((f"scheduler, {found['records']} records", "TPOT off by (bias)", "TTFT off by (bias)"), rows)


def _recorded(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ("run", "steps", *_ERRORS, "first tokens in another place", "largest shift")
    lines = []
    for row in rows:
        errors = (f"{100 * row['errors'][name]:+.1f} %" for name in _ERRORS)
        lines.append((row["name"], row["steps"], *errors, f"{row['moved']} of {row['requests']}", row["shift"]))
    return table(header, lines)


def _knee(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ("TTFT measured", "replayed", "ITL measured", "TPOT replayed", "tokens/s measured", "replayed")
    lines = []
    for row in rows:
        first = (f"{row[name]:.2f} s" for name in ("measured_ttft_s", "ttft_s"))
        steps = (f"{1e3 * row[name]:.1f} ms" for name in ("measured_itl_s", "tpot_s"))
        rates = (f"{row[name]:.0f}" for name in ("measured_tokens_per_s", "tokens_per_s"))
        lines.append((row["in_flight"], *first, *steps, *rates))
    return table(("in flight", *header), lines)


def _ocr(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ("GPU and load", "pages/s measured", "replayed", "off by", "band", "TPOT measured", "replayed")
    lines = []
    for row in rows:
        known, measured = row["measured_pages_per_s"], row["measured_tpot_s"]
        off, band = signed(row["pages_per_s"] / known - 1), f"{row['low']:.2f} to {row['high']:.2f}"
        steps = ("-" if measured is None else f"{1e3 * measured:.2f} ms", f"{1e3 * row['tpot_s']:.2f} ms")
        lines.append((row["what"], f"{known:.2f}", f"{row['pages_per_s']:.2f}", off, band, *steps))
    return table(header, lines)


_HEADER = (
    "records", "TPOT off by: median / p90 / p99", "bias", "TTFT as printed", "bias", "TTFT with the fitted way",
    "E2E of printed times", "aiconfigurator answers", "its TPOT", "its TTFT",
)  # fmt: skip


def _rows(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    lines = []
    for name, row in rows:
        tpot = (tails(row, "tpot"), signed(row["tpot_bias"]))
        ttft = (tails(row, "ttft"), signed(row["ttft_bias"]), tails(row, "fitted_ttft"))
        other = (f"{row['answered']:,}", tails(row, "other_tpot"), tails(row, "other_ttft"))
        lines.append((name, f"{row['records']:,}", *tpot, *ttft, tails(row, "e2e"), *other))
    return table(("", *_HEADER), lines)


def _fit(shares: Mapping[str, Sequence[float]]) -> str:
    header = ("engine and lengths", "constant", "of the prompt's own step", "steps")
    lines = (
        (name, f"{1e3 * numbers[0]:.0f} ms", *(f"{n:.2f}" for n in numbers[1:]))
        for name, numbers in sorted(shares.items())
    )
    return table(header, lines)


def overlay(run: RecordedRun, engines: Sequence[EngineSteps]) -> LineChart:
    """Requests that run and that wait, in all engines: each second as recorded, and as replayed."""
    last_s = max(steps.start_s[-1] for steps in engines)
    times = [last_s * at / _OVERLAY_POINTS for at in range(_OVERLAY_POINTS + 1)]

    def replayed(name: str) -> tuple[tuple[float, float], ...]:
        return tuple((time_s, sum(_at(steps, name, time_s) for steps in engines)) for time_s in times)

    def recorded(column: int) -> tuple[tuple[float, float], ...]:
        return tuple((row[0], row[column]) for row in run.series)

    return LineChart(
        title=f"Requests running and waiting: {run.name}",
        x=Axis("time", Kind.SECONDS),
        y=Axis("requests", Kind.COUNT),
        lines=(
            Line("running, recorded", recorded(3), "step"),
            Line("running, replayed", replayed("running"), "dashed"),
            Line("waiting, recorded", recorded(4), "step"),
            Line("waiting, replayed", replayed("waiting"), "dashed"),
        ),
        caption="Replayed by vLLM's scheduler at the pace of the recorded run.",
    )


def _at(steps: EngineSteps, name: str, time_s: float) -> float:
    """A count of the step that ran at that time."""
    step = bisect_right(steps.start_s, time_s) - 1
    return float(getattr(steps, name)[step]) if step >= 0 else 0.0

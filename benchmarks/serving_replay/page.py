"""The figures of the replays as sections of a page, and the overlay of recorded and replayed queues."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.pages import signed, table, tails
from benchmarks.serving_replay.recorded_runs import RecordedRun
from llm_perf_opt.core.report import Axis, Kind, Line, LineChart
from llm_perf_opt.serving.requests import EngineSteps

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
    if "sets" in data:
        texts["sets"] = _rows(data["sets"].items())
        texts["groups"] = _rows(((f"{kind} {name}", row) for kind, name, row in data["groups"]))
        texts["first token"] = _fit(data["first_token"])
    return texts


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
    lines = ((name, f"{1e3 * one[0]:.0f} ms", *(f"{n:.2f}" for n in one[1:])) for name, one in sorted(shares.items()))
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

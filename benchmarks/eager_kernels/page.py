"""The tables of docs/eager-kernels.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.eager_kernels.comparison import Run

DEVELOPED_ON = frozenset({"h100-timesformer-base", "mi300-timesformer-base"})
_LISTED_SHARE = 0.995  # of the recorded time; the rest of a run is one row
_COLUMNS = ("recorded", "recorded_us", "ours", "expected_us", "low_us", "high_us", "in_band")


def as_data(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """The runs as the data file holds them: by word, the longest first."""
    return [
        {
            "run": run.name,
            "is_developed_on": run.name in DEVELOPED_ON,
            **{name: round(run.total(name), 1) for name in _COLUMNS},
            "launch_error": round(run.launch_error, 4),
            "time_error": round(run.time_error, 4),
            "share_in_band": round(run.share_in_band, 4),
            "ops": _by_word(run),
        }
        for run in runs
    ]


def _by_word(run: Run) -> list[dict[str, Any]]:
    words = dict.fromkeys(row.key.word for row in run.rows)
    found: list[dict[str, Any]] = []
    for word in words:
        rows = [row for row in run.rows if row.key.word == word]
        sums = {name: round(float(sum(getattr(row, name) for row in rows)), 1) for name in _COLUMNS}
        origins = dict.fromkeys(rate for row in rows for rate in row.rates)
        found.append({"op": word, **sums, "origins": list(origins)[:4]})
    return sorted(found, key=lambda op: -max(op["recorded_us"], op["expected_us"]))


def sections(data: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The marked sections of the page."""
    return {"summary": "\n".join(_summary(data)), "by-op": "\n\n".join(_ops(run) for run in data)}


def _summary(data: Sequence[dict[str, Any]]) -> Iterable[str]:
    yield "| recording | launches recorded | ours | kernel time recorded, ms | expected | band | kernels in band |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for run in data:
        mark = " (developed on)" if run["is_developed_on"] else ""
        yield (
            f"| {run['run']}{mark} | {run['recorded']:,.0f} | {run['ours']:,.0f} ({run['launch_error']:+.1%}) "
            f"| {run['recorded_us'] / 1e3:.2f} | {run['expected_us'] / 1e3:.2f} ({run['time_error']:+.1%}) "
            f"| {run['low_us'] / 1e3:.2f} - {run['high_us'] / 1e3:.2f} | {run['share_in_band']:.0%} |"
        )


def _ops(run: dict[str, Any]) -> str:
    lines = [
        f"### {run['run']}",
        "",
        "| op | launches recorded | ours | recorded, us | expected, us | band, us | in band | origin |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    listed, seen = _LISTED_SHARE * run["recorded_us"], 0.0
    rest: list[dict[str, Any]] = []
    for op in run["ops"]:
        if seen < listed:
            seen += op["recorded_us"]
            lines.append(_line(op["op"], op, "; ".join(op["origins"])))
        else:
            rest.append(op)
    if rest:
        sums = {name: sum(op[name] for op in rest) for name in _COLUMNS}
        lines.append(_line(f"{len(rest)} others", sums, ""))
    return "\n".join(lines)


def _line(name: str, sums: dict[str, Any], origin: str) -> str:
    return (
        f"| {name} | {sums['recorded']:,.0f} | {sums['ours']:,.0f} | {sums['recorded_us']:,.0f} "
        f"| {sums['expected_us']:,.0f} | {sums['low_us']:,.0f} - {sums['high_us']:,.0f} | {sums['in_band']:,.0f} "
        f"| {origin} |"
    )

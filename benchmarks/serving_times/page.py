"""The figures of a judgement as sections of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_HEADER = ("", "records", "TPOT off by, median", "90 %", "bias", "TTFT off by", "in the 80 % band", "band high / low")
_OTHERS = ("aiconfigurator answers", "its TPOT", "its TTFT")


def sections(data: dict[str, Any]) -> dict[str, str]:
    """Name of a section -> its text."""
    return {
        "answer": _answer(data),
        "sets": _table(
            (*_HEADER, *_OTHERS),
            ((f"{name}: {label}", *_cells(row)) for name, rows in data["sets"].items() for label, row in rows.items()),
        ),
        "groups": "\n\n".join(_groups(name, groups) for name, groups in data["groups"].items()),
        "origins": _origins(data["origins"]),
        "order": _table(
            ("", "pairs", "faster one first"),
            (
                (f"{name}: {what}", f"{row['pairs']:,}", _share(row["share"]))
                for name, rows in data["order"].items()
                for what, row in rows.items()
            ),
        ),
        "after": _table(
            ("", "records", "off by, median", "measured / estimated, 10 %", "90 %"),
            (
                (
                    f"{name}: {what}",
                    f"{row['runs']:,}",
                    _share(row["median"]),
                    f"{row['low']:.2f}",
                    f"{row['high']:.2f}",
                )
                for name, rows in data["after"].items()
                for what, row in rows.items()
            ),
        ),
    }


def _answer(data: dict[str, Any]) -> str:
    low = "not saturated, up to 64 in flight"
    whole, frozen = data["sets"]["all"][low], data["sets"]["frozen"][low]
    return (
        f"**Time per output token is off by {_share(whole['tpot'])} in the median over {whole['runs']:,} served "
        f"records with up to 64 requests in flight, and by {_share(frozen['tpot'])} on {frozen['runs']:,} records of "
        "systems and models that no choice was made with** (time to first token: "
        f"{_share(frozen['ttft'])}). Every record is "
        f"answered. aiconfigurator, whose tables these are, answers {whole['answered']:,} of the first with "
        f"{_share(whole['other_tpot'])} and {frozen['answered']:,} of the second with {_share(frozen['other_tpot'])}."
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if not row["runs"]:
        return ("0",)
    return (
        f"{row['runs']:,}",
        _share(row["tpot"]),
        _share(row["tpot_p90"]),
        f"{100 * row['tpot_bias']:+.1f} %",
        _share(row["ttft"]),
        _share(row["held"]),
        f"{row['width']:.2f}",
        f"{row['answered']:,}",
        _share(row["other_tpot"]),
        _share(row["other_ttft"]),
    )


def _groups(name: str, groups: dict[str, dict[str, Any]]) -> str:
    rows = ((f"{kind} {part}", *_cells(row)) for kind, parts in groups.items() for part, row in parts.items())
    return f"**{name.capitalize()}**\n\n" + _table((*_HEADER, *_OTHERS), rows)


def _origins(origins: dict[str, dict[str, float]]) -> str:
    names = list(dict.fromkeys(origin for shares in origins.values() for origin in shares))
    rows = ((name, *(_share(shares.get(origin)) for origin in names)) for name, shares in origins.items())
    return _table(("", *names), rows)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|---|" + "--:|" * (len(header) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])

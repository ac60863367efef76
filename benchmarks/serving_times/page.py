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
        "sets": table(
            (*_HEADER, *_OTHERS),
            ((f"{name}: {label}", *_cells(row)) for name, rows in data["sets"].items() for label, row in rows.items()),
        ),
        "groups": "\n\n".join(_groups(name, groups) for name, groups in data["groups"].items()),
        "origins": _origins(data["origins"]),
        "order": table(
            ("", "pairs", "faster one first"),
            (
                (f"{name}: {what}", f"{row['pairs']:,}", share(row["share"]))
                for name, rows in data["order"].items()
                for what, row in rows.items()
            ),
        ),
        "after": table(
            ("", "records", "off by, median", "measured / estimated, 10 %", "90 %"),
            (
                (
                    f"{name}: {what}",
                    f"{row['runs']:,}",
                    share(row["median"]),
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
        f"**Time per output token is off by {share(whole['tpot'])} in the median over {whole['runs']:,} served "
        f"records with up to 64 requests in flight, and by {share(frozen['tpot'])} on {frozen['runs']:,} records of "
        "systems and models that no choice was made with** (time to first token: "
        f"{share(frozen['ttft'])}). Every record is "
        f"answered. aiconfigurator, whose tables these are, answers {whole['answered']:,} of the first with "
        f"{share(whole['other_tpot'])} and {frozen['answered']:,} of the second with {share(frozen['other_tpot'])}."
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if not row["runs"]:
        return ("0",)
    return (
        f"{row['runs']:,}",
        share(row["tpot"]),
        share(row["tpot_p90"]),
        f"{100 * row['tpot_bias']:+.1f} %",
        share(row["ttft"]),
        share(row["held"]),
        f"{row['width']:.2f}",
        f"{row['answered']:,}",
        share(row["other_tpot"]),
        share(row["other_ttft"]),
    )


def _groups(name: str, groups: dict[str, dict[str, Any]]) -> str:
    rows = ((f"{kind} {part}", *_cells(row)) for kind, parts in groups.items() for part, row in parts.items())
    return f"**{name.capitalize()}**\n\n" + table((*_HEADER, *_OTHERS), rows)


def _origins(origins: dict[str, dict[str, float]]) -> str:
    names = list(dict.fromkeys(origin for shares in origins.values() for origin in shares))
    rows = ((name, *(share(shares.get(origin)) for origin in names)) for name, shares in origins.items())
    return table(("", *names), rows)


def share(value: float | None) -> str:
    """In per cent; a dash where nothing is known."""
    return "-" if value is None else f"{100 * value:.1f} %"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown, numbers to the right."""
    lines = ["| " + " | ".join(header) + " |", "|---|" + "--:|" * (len(header) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])

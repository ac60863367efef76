"""The figures of a judgement as sections of a page."""

from __future__ import annotations

from typing import Any

from benchmarks.pages import share, signed, table, tails

_OFF = "off by: median / p90 / p99"
_HEADER = ("", "records", f"TPOT {_OFF}", "bias", f"TTFT {_OFF}", "in the 80 % band", "band high / low")
_OTHERS = ("aiconfigurator answers", f"its TPOT {_OFF}", f"its TTFT {_OFF}")
# Medians when the frozen records were opened for the first time, before anything was changed. Tails were not kept.
_UNTOUCHED = {"tpot": 0.146, "ttft": 0.263}


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
            ("", "records", _OFF, "measured / estimated, 10 %", "90 %"),
            (
                (f"{name}: {what}", f"{row['runs']:,}", tails(row, "off"), f"{row['low']:.2f}", f"{row['high']:.2f}")
                for name, rows in data["after"].items()
                for what, row in rows.items()
            ),
        ),
    }


def _answer(data: dict[str, Any]) -> str:
    low = "not saturated, up to 64 in flight"
    whole, frozen = data["sets"]["all"][low], data["sets"]["frozen"][low]
    return (
        f"**On models and a system that no choice had been made with, time per output token was off by "
        f"{share(_UNTOUCHED['tpot'])} in the median and time to first token by {share(_UNTOUCHED['ttft'])}**: the "
        "frozen records below, when they were opened for the first time. Tails were not kept then. Some of what was "
        "changed since was seen at these records, so today's figures are not of an untouched set.\n\n"
        f"Today, as median / p90 / p99, with up to 64 requests in flight: TPOT {tails(frozen, 'tpot')} and TTFT "
        f"{tails(frozen, 'ttft')} on the {frozen['runs']:,} frozen records, TPOT {tails(whole, 'tpot')} and TTFT "
        f"{tails(whole, 'ttft')} on all {whole['runs']:,}. Every record is answered. aiconfigurator, whose tables "
        f"these are, answers {frozen['answered']:,} of the frozen records with a TPOT off by "
        f"{tails(frozen, 'other_tpot')}, and {whole['answered']:,} of all with {tails(whole, 'other_tpot')}."
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if not row["runs"]:
        return ("0",)
    own = (tails(row, "tpot"), signed(row["tpot_bias"]), tails(row, "ttft"), share(row["held"]), f"{row['width']:.2f}")
    return f"{row['runs']:,}", *own, f"{row['answered']:,}", tails(row, "other_tpot"), tails(row, "other_ttft")


def _groups(name: str, groups: dict[str, dict[str, Any]]) -> str:
    rows = ((f"{kind} {part}", *_cells(row)) for kind, parts in groups.items() for part, row in parts.items())
    return f"**{name.capitalize()}**\n\n" + table((*_HEADER, *_OTHERS), rows)


def _origins(origins: dict[str, dict[str, float]]) -> str:
    names = list(dict.fromkeys(origin for shares in origins.values() for origin in shares))
    rows = ((name, *(share(shares.get(origin)) for origin in names)) for name, shares in origins.items())
    return table(("", *names), rows)

"""Estimate every aggregated serving record from measured kernels, fit on some, judge the others.

    python -m benchmarks.serving_times [--docs] [--fit]

Traces fifteen models without weights and reads the kernel tables: about two minutes. With --fit the fitted figures of
the package are written anew, with --docs the page and its data.
"""

from __future__ import annotations

import logging
from typing import Any

from benchmarks.pages import share, show_sections, signed, table, tails
from benchmarks.records import read_answers
from benchmarks.runner import parser
from benchmarks.serving_times.estimates import Estimated, aggregated_runs, estimated
from benchmarks.serving_times.fitting import Judged, fit_gap, fitted, judged, leave_one_out, write
from benchmarks.serving_times.judgement import (
    CHANGES,
    after_measurements,
    agreeing,
    by_group,
    by_origin,
    figures,
    one_change,
    repeated,
    sets,
)

# The figures of a judgement as sections of a page.

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
            ("", "pairs", "ratio off by: median / p90", "told apart by 10 %", "faster one first"),
            (
                (f"{name}: {what}", f"{row['pairs']:,}", _ratio(row), f"{row['told']:,}", share(row["share"]))
                for name, rows in (*data["order"].items(), ("all, repetitions agree", data["agreeing"]))
                for what, row in rows.items()
            ),
        )
        + "\n\n"
        + _repeated(data["repeated"]),
        "wrong": "\n\n".join(_wrong(data["order"]["all"][what], what) for what in ("precision", "plan")),
        "after": table(
            ("", "records", _OFF, "measured / estimated, 10 %", "90 %"),
            (
                (f"{name}: {what}", f"{row['runs']:,}", tails(row, "off"), f"{row['low']:.2f}", f"{row['high']:.2f}")
                for name, rows in data["after"].items()
                for what, row in rows.items()
            ),
        ),
    }


def _wrong(row: dict[str, Any], what: str) -> str:
    """Every wrong sign, sorted by cause, and how TPOT changes from the first to the second."""
    causes = "; ".join(f"{pairs} x {cause}" for cause, pairs in row["causes"].items())
    groups = sorted(row["wrong"], key=lambda group: list(row["causes"]).index(group["group"][-1]))
    text = table(
        ("cause", "model", "system", "engine", what, "pairs", "measured", "estimated"),
        (
            (
                *(group["group"][-1:] + group["group"][:-1]),
                group["pairs"],
                signed(group["measured"]),
                signed(group["expected"]),
            )
            for group in groups
        ),
        "lllllr",
    )
    wrong = row["told"] - row["right"]
    return f"**{what}**: {wrong:,} of {row['told']:,} pairs have a wrong sign. {causes}.\n\n{text}"


def _repeated(row: dict[str, Any]) -> str:
    return (
        f"Of one configuration that was measured more than once the times differ by {share(row['off'])} in the median, "
        f"{share(row['off_p90'])} at p90 ({row['pairs']} pairs, copies left out). `repetitions agree` leaves out "
        "configurations that are more than 10 % apart from themselves, and runs that are saturated, drafted or whole "
        "systems."
    )


def _ratio(row: dict[str, Any]) -> str:
    return f"{share(row['off'])} / {share(row['off_p90'])}"


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
        f"{tails(whole, 'ttft')} on all {whole['runs']:,}. Every record is answered. aiconfigurator, which made "
        f"these tables, answers {frozen['answered']:,} of the frozen records with a TPOT off by "
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


DEVELOPMENT, FROZEN = "development", "frozen"


def judged_sets(records: list[Estimated]) -> tuple[dict[str, list[Judged]], float]:
    """The development runs by fits to other models, the frozen ones as the package has it; and what a gap would be."""
    development = [record for record in records if not record.is_frozen]
    gap_s = fit_gap([record for record in development if record.is_clean])
    frozen = [record for record in records if record.is_frozen]
    return {DEVELOPMENT: list(leave_one_out(development)), FROZEN: judged(frozen, fitted(development))}, gap_s


def data_of(records: list[Estimated]) -> dict[str, Any]:
    """All that the page says."""
    parts, gap_s = judged_sets(records)
    answers, together = read_answers(), [record for some in parts.values() for record in some]
    return {
        "gap_s": gap_s,
        "unknown_kernels": sum(record.step.unknown + record.prompt.unknown for record in records),
        "sets": {
            name: {label: figures(members, answers) for label, members in sets(some).items()}
            for name, some in {**parts, "all": together}.items()
        },
        "groups": {name: by_group(some, answers) for name, some in parts.items()},
        "origins": {name: by_origin(some) for name, some in parts.items()},
        "order": {
            name: {what: one_change(some, change) for what, change in CHANGES.items()}
            for name, some in {**parts, "all": together}.items()
        },
        "agreeing": {what: one_change(agreeing(together), change) for what, change in CHANGES.items()},
        "repeated": repeated(together),
        "after": {name: after_measurements(some) for name, some in {**parts, "all": together}.items()},
    }


def main() -> None:
    flags = {"docs": "write the page and its data file", "fit": "write the fitted figures of the package"}
    options = parser(__doc__, **flags).parse_args()
    logging.disable(logging.WARNING)  # what a model's own code says of its configuration
    records = estimated(aggregated_runs())
    if options.fit:
        development = [record for record in records if not record.is_frozen]
        write(fitted(development))
    data = data_of(records)
    show_sections("evidence/serving-times", sections(data), is_written=options.docs, data=data)


if __name__ == "__main__":
    main()

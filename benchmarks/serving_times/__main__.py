"""Estimate every aggregated serving record from measured kernels, fit on some, judge the others.

    python -m benchmarks.serving_times [--docs] [--fit]

Traces fifteen models without weights and reads the kernel tables: about two minutes. With --fit the fitted figures of
the package are written anew, with --docs the page and its data.
"""

from __future__ import annotations

import logging
from typing import Any

from benchmarks.pages import show_sections
from benchmarks.records import read_answers
from benchmarks.runner import parser
from benchmarks.serving_times import page
from benchmarks.serving_times.estimates import Estimated, aggregated_runs, estimated
from benchmarks.serving_times.fitting import Judged, fit_gap, fitted, judged, leave_one_out, write
from benchmarks.serving_times.judgement import after_measurements, by_group, by_origin, figures, order, sets

DEVELOPMENT, FROZEN = "development", "frozen"


def judged_sets(found: list[Estimated]) -> tuple[dict[str, list[Judged]], float]:
    """The development runs by fits to other models, the frozen ones as the package has it; and what a gap would be."""
    development = [one for one in found if not one.is_frozen]
    gap_s = fit_gap([one for one in development if one.is_clean])
    frozen = [one for one in found if one.is_frozen]
    return {DEVELOPMENT: list(leave_one_out(development)), FROZEN: judged(frozen, fitted(development))}, gap_s


def data_of(found: list[Estimated]) -> dict[str, Any]:
    """All that the page says."""
    parts, gap_s = judged_sets(found)
    answers, together = read_answers(), [one for some in parts.values() for one in some]
    return {
        "gap_s": gap_s,
        "unknown_kernels": sum(one.step.unknown + one.prompt.unknown for one in found),
        "sets": {
            name: {label: figures(members, answers) for label, members in sets(some).items()}
            for name, some in {**parts, "all": together}.items()
        },
        "groups": {name: by_group(some, answers) for name, some in parts.items()},
        "origins": {name: by_origin(some) for name, some in parts.items()},
        "order": {
            name: {"plans": order(some, of_engines=False), "engines": order(some, of_engines=True)}
            for name, some in {**parts, "all": together}.items()
        },
        "after": {name: after_measurements(some) for name, some in {**parts, "all": together}.items()},
    }


def main() -> None:
    flags = {"docs": "write the page and its data file", "fit": "write the fitted figures of the package"}
    options = parser(__doc__, **flags).parse_args()
    logging.disable(logging.WARNING)  # what a model's own code says of its configuration
    found = estimated(aggregated_runs())
    if options.fit:
        development = [one for one in found if not one.is_frozen]
        write(fitted(development))
    data = data_of(found)
    show_sections("serving-times", page.sections(data), is_written=options.docs, data=data)


if __name__ == "__main__":
    main()

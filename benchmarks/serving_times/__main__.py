"""Estimate every aggregated serving record from measured kernels, fit on some, judge the others.

    python -m benchmarks.serving_times [--docs] [--fit]

Traces fifteen models without weights and reads the kernel tables: about two minutes. With --fit the fitted figures of
the package are written anew, with --docs the page and its data.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import Any

from benchmarks.breadth.marked_section import show_sections
from benchmarks.serving_times import page
from benchmarks.serving_times.estimates import Estimated, aggregated_runs, estimated
from benchmarks.serving_times.fitting import Judged, fit_gap, fitted, judged, leave_one_out, write
from benchmarks.serving_times.judgement import after_measurements, by_group, by_origin, figures, order, sets
from benchmarks.serving_times.other_answers import read_answers

DOCS = Path(__file__).parents[2] / "docs"
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="write the page and its data file")
    parser.add_argument("--fit", action="store_true", help="write the fitted figures of the package")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # what a model's own code says of its configuration
    found = estimated(aggregated_runs())
    if options.fit:
        development = [one for one in found if not one.is_frozen]
        write(fitted(development))
    data = data_of(found)
    show_sections(DOCS / "serving-times.md", page.sections(data), is_written=options.docs)
    if options.docs:
        (DOCS / "data" / "serving_times.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

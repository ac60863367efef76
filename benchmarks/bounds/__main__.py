"""Hold every measured run against the bound, and every closed form against the traces; write both pages with --docs.

    python -m benchmarks.bounds [--docs] [--only measured|deployment]

Reads tests/facts, traces without weights, and with --docs writes docs/measured-against-the-bound.md,
docs/deployment-truth.md, their data files and the plots. About ten minutes in all, most of them for `deployment`.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import Any

from benchmarks.bounds import deployment_page, page, plots
from benchmarks.bounds.agreement import agreement, models
from benchmarks.bounds.deployment_truth import CONFIGS, configuration_rows, record_row, truth
from benchmarks.bounds.evaluation import NEEDED_RULES, check, read_all, summary, violations_without
from benchmarks.breadth.marked_section import show_sections

DOCS = Path(__file__).parents[2] / "docs"
MEASURED, DEPLOYMENT = "measured-against-the-bound", "deployment-truth"


def measured_data() -> tuple[dict[str, Any], dict[str, str]]:
    """The data of the page, and its plots as SVG by name of file."""
    runs, unusable = read_all()
    checked = [check(run) for run in runs]
    data = summary(checked, unusable)
    for row in data["rules"]:
        row["violations_without"] = None if row["rule"] in NEEDED_RULES else violations_without(row["rule"])
    data["agreement"] = [_rounded(agreement(model)) for model in models()]
    ratios: dict[str, list[float]] = {engine: [] for engine in plots.ENGINES}
    for each in checked:
        if (ratio := each.to_win) is not None and each.run.engine in ratios:
            ratios[each.run.engine].append(ratio)
    return data, {
        f"{MEASURED}-by-system.svg": plots.svg_file(plots.by_system(data["groups"])),
        f"{MEASURED}-distribution.svg": plots.svg_file(plots.distribution(ratios)),
    }


def deployment_data() -> dict[str, Any]:
    """The data of the page."""
    return {
        "records": [record_row(record) for record in truth()["records"]],
        "configurations": [
            row for folder in sorted(CONFIGS.iterdir()) if folder.is_dir() for row in configuration_rows(folder)
        ],
    }


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in row.items()}


def _show(name: str, data: dict[str, Any], texts: dict[str, str], *, is_written: bool) -> None:
    show_sections(DOCS / f"{name}.md", texts, is_written=is_written)
    if is_written:
        file = DOCS / "data" / f"{name.replace('-', '_')}.json"
        file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="write the pages, their data files and the plots")
    parser.add_argument("--only", choices=("measured", "deployment"), help="one of the two (default: both)")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # what a model's own code says of its configuration
    if options.only != "deployment":
        data, drawn = measured_data()
        _show(MEASURED, data, page.sections(data), is_written=options.docs)
        for name, svg in drawn.items() if options.docs else ():
            (DOCS / "data" / name).write_text(svg, encoding="utf-8")
    if options.only != "measured":
        data = deployment_data()
        _show(DEPLOYMENT, data, deployment_page.sections(data), is_written=options.docs)


if __name__ == "__main__":
    main()

"""Hold every measured run against the bound, and every closed form against the traces; write both pages with --docs.

    python -m benchmarks.bounds [--docs] [--only measured|deployment]

Reads tests/facts, traces without weights, and with --docs writes docs/evidence/measured-against-the-bound.md,
docs/evidence/deployment-truth.md, their data files and the plots. About ten minutes in all, most of them for
`deployment`.
"""

from __future__ import annotations

import logging
from typing import Any

from benchmarks.bounds import page
from benchmarks.bounds.evaluation import NEEDED_RULES, agreement, check, models, read_all, summary, violations_without
from benchmarks.bounds.page import CONFIGS, configuration_rows, record_row, truth
from benchmarks.pages import DOCS, show_sections
from benchmarks.runner import parser

MEASURED, DEPLOYMENT = "measured-against-the-bound", "deployment-truth"


def measured_data() -> tuple[dict[str, Any], dict[str, str]]:
    """The data of the page, and its plots as SVG by name of file."""
    runs, unusable = read_all()
    checked = [check(run) for run in runs]
    data = summary(checked, unusable)
    for row in data["rules"]:
        row["violations_without"] = None if row["rule"] in NEEDED_RULES else violations_without(row["rule"])
    compared = (agreement(model).items() for model in models())
    data["agreement"] = [{k: round(v, 5) if isinstance(v, float) else v for k, v in row} for row in compared]
    ratios: dict[str, list[float]] = {engine: [] for engine in page.ENGINES}
    for each in checked:
        if (ratio := each.to_win) is not None and each.run.engine in ratios:
            ratios[each.run.engine].append(ratio)
    return data, {
        f"{MEASURED}-by-system.svg": page.svg_file(page.by_system(data["groups"])),
        f"{MEASURED}-distribution.svg": page.svg_file(page.distribution(ratios)),
    }


def deployment_data() -> dict[str, Any]:
    """The data of the page."""
    folders = sorted(folder for folder in CONFIGS.iterdir() if folder.is_dir())
    return {
        "records": [record_row(record) for record in truth()["records"]],
        "configurations": [row for folder in folders for row in configuration_rows(folder)],
    }


def main() -> None:
    asked = parser(__doc__, docs="write the pages, their data files and the plots")
    asked.add_argument("--only", choices=("measured", "deployment"), help="one of the two (default: both)")
    options = asked.parse_args()
    logging.disable(logging.WARNING)  # what a model's own code says of its configuration
    if options.only != "deployment":
        data, drawn = measured_data()
        show_sections(f"evidence/{MEASURED}", page.measured_sections(data), is_written=options.docs, data=data)
        for name, svg in drawn.items() if options.docs else ():
            (DOCS / "data" / name).write_text(svg, encoding="utf-8")
    if options.only != "measured":
        data = deployment_data()
        show_sections(f"evidence/{DEPLOYMENT}", page.deployment_sections(data), is_written=options.docs, data=data)


if __name__ == "__main__":
    main()

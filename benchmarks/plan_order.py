"""Do estimates put the faster of two measured plans first? Writes docs/plan-order.md with --docs.

    python -m benchmarks.plan_order [--docs]

Reads tests/facts/serving, traces models with a few layers, without weights. About two minutes.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import Any

from benchmarks.breadth.marked_section import show_sections
from benchmarks.plans import page
from benchmarks.plans.measured_pairs import measured_pairs
from benchmarks.plans.ordering import judge, summary
from benchmarks.plans.plan_estimates import as_engines_shard, as_the_model_shards
from benchmarks.plans.rank_floors import floor_rows

DOCS = Path(__file__).parents[1] / "docs"


def order_data() -> dict[str, Any]:
    """All that the page says."""
    pairs, left_out = measured_pairs()
    runs = {run: None for pair in pairs for run in pair.runs}
    return {
        "floors": list(floor_rows(list(runs))),
        "left_out": dict(left_out),
        "engines": summary(pairs, judge(pairs, as_engines_shard)),
        "own": summary(pairs, judge(pairs, as_the_model_shards)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="write the page and its data file")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # what a model's own code says of its configuration
    data = order_data()
    show_sections(DOCS / "plan-order.md", page.sections(data), is_written=options.docs)
    if options.docs:
        (DOCS / "data" / "plan_order.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

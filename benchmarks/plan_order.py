"""Do estimates put the faster of two measured plans first? Writes docs/plan-order.md with --docs.

    python -m benchmarks.plan_order [--docs]

Reads tests/facts/serving, traces models with a few layers, without weights. About two minutes.
"""

from __future__ import annotations

import logging
from typing import Any

from benchmarks.pages import show_sections
from benchmarks.plans import page
from benchmarks.plans.ordering import judge, measured_pairs, summary
from benchmarks.plans.plan_estimates import as_engines_shard, as_the_model_shards, floor_rows
from benchmarks.runner import parser


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
    options = parser(__doc__, docs="write the page and its data file").parse_args()
    logging.disable(logging.WARNING)  # what a model's own code says of its configuration
    data = order_data()
    show_sections("plan-order", page.sections(data), is_written=options.docs, data=data)


if __name__ == "__main__":
    main()

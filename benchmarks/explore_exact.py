"""The page to explore next to Python: random points of twelve models, in a real browser; its page.

    python -m benchmarks.explore_exact [MODEL ...]          all twelve unless named; an hour of one core
    python -m benchmarks.explore_exact --docs [MODEL ...]   puts them into docs/evidence/explore-exactness.md

Each point is a batch, a context, a prompt, an answer, users, GPUs, a plan and formats. The page's own script gives its
figures in Chromium; Python's come from traces in each format, made functions by themselves, and from what `serve` and
the fit say. Whole numbers must be equal to the last digit, times to 1e-12.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llm_perf_opt as lpo
from benchmarks.pages import DOCS, show_sections, table
from benchmarks.runner import parser
from llm_perf_opt.api.explore import explored, explored_formats
from llm_perf_opt.core.number_ranges import read_ends
from scripts.gallery import PAGES
from tests.browser.chromium import chromium
from tests.browser.explore_reference import Reference, page_answers, random_choices

MODELS = {model: (users, tokens) for model, users, tokens in PAGES.values()} | {
    "Qwen/Qwen3-8B": ("1..256", "1k..32k"),
    "meta-llama/Llama-3.1-70B-Instruct": ("1..256", "1k..32k"),
    "mistralai/Mixtral-8x7B-v0.1": ("1..256", "1k..32k"),
    "google/gemma-3-27b-it": ("1..256", "1k..32k"),
}
AT_ONCE, PATIENCE_S = 50, 500
_QUESTION_MARK = ": None is not "
DATA = DOCS / "data" / "explore_exactness.json"


def compared(driver: Any, model: str, points: int) -> dict[str, Any]:
    """Every figure of the points, by the page and by Python."""
    begin = time.process_time()
    users, tokens = read_ends(MODELS[model][0], "users"), read_ends(MODELS[model][1], "input")
    answer = lpo.sweep(model, users=users, input=tokens, points=2)
    function = answer._function
    domain = function.phases[0].domain
    formats = explored_formats(function.at(**{name: low for name, (low, _) in domain.items()}))
    data = explored(function, model)
    reference = Reference.of(model, formats, batch=users, context=tokens)
    choices = random_choices(data, points, seed=0)
    differences: list[str] = []
    unknown = figures = refused = 0
    for first in range(0, points, AT_ONCE):
        some = choices[first : first + AT_ONCE]
        for choice, page in zip(some, page_answers(driver, data, some), strict=True):
            found = reference.differences(choice, page)
            told = [text for text in found if _QUESTION_MARK not in text]
            differences += told
            unknown += len(found) - len(told)
            figures += len(page) + 3 * len(page["frontier"])
            refused += page["broken"] is not None
    return {
        "model": model,
        "formats": len(formats),
        "plans": len({entry["plan"] for entry in data["entries"]}),
        "points": points,
        "figures": figures,
        "served": points - refused,
        "unknown": unknown,
        "differences": differences,
        "cpu_s": round(time.process_time() - begin),
    }


def sections(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """One line for each model, and their sum."""
    titles = ("model", "formats", "plans", "points", "of them served", "figures", "question marks", "differences")
    names = ("formats", "plans", "points", "served", "figures", "unknown")
    lines = [(row["model"], *(f"{row[name]:,}" for name in names), len(row["differences"])) for row in rows]
    sums = [f"{sum(row[name] for row in rows):,}" for name in names[2:]]
    return {"points": table(titles, [*lines, ("all", "", "", *sums, sum(len(row["differences"]) for row in rows))])}


def main() -> None:
    asked = parser(__doc__, docs="put the models into the page and its data file")
    asked.add_argument("models", nargs="*", metavar="MODEL", default=list(MODELS))
    asked.add_argument("--points", type=int, default=1000)
    options = asked.parse_args()
    rows = {row["model"]: row for row in (json.loads(DATA.read_text("utf-8")) if DATA.exists() else [])}
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as driver:
        driver.set_script_timeout(PATIENCE_S)
        driver.command_executor.client_config.timeout = PATIENCE_S
        for model in options.models:
            rows[model] = row = compared(driver, model, options.points)
            sys.stderr.write(f"{ {**row, 'differences': (len(row['differences']), row['differences'][:5])} }\n")
            ordered = [rows[name] for name in MODELS if name in rows]
            show_sections("evidence/explore-exactness", sections(ordered), is_written=options.docs, data=ordered)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # what a model's own code says of its configuration
    main()

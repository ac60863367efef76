"""The page shows what its first command prints."""

from __future__ import annotations

from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.plugins import REPORTERS

PAGE = Path(__file__).parents[2] / "docs" / "start" / "how-fast-could-it-be.md"


@pytest.mark.slow
def test_the_output_at_the_head_of_the_page_is_what_predict_prints() -> None:
    head = PAGE.read_text(encoding="utf-8").partition("\n## ")[0]
    assert "\nllm-perf-opt trace deepseek-ocr --image 1240x1754 --device h100-sxm --rates data-sheet\n" in head
    shown = head.partition("```text\n")[2].partition("```")[0]
    assert shown.count("\n") == 17
    report = lpo.trace("deepseek-ocr", image="1240x1754").predict("h100-sxm", rates="data-sheet").report()
    assert shown in REPORTERS.get("text")().render(report)
    fits, serves = (table.title for table in report.tables[1:3])
    assert fits.startswith("Does this forward fit on"), "the page calls it the second"
    assert serves.startswith("Does it serve"), "and this the next"

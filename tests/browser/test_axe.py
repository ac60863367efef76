"""No page keeps a reader out: axe-core finds nothing serious, on a desk and on a phone, light and dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.report import Column, Kind, Report, Table
from llm_perf_opt.formats.html_format import HtmlDrawing, study_page_text
from tests.browser.axe import needs_axe, serious_findings
from tests.browser.conftest import resize
from tests.browser.test_study_page import study_view
from tests.formats.drawings.made_views import deepseek_ocr_view
from tests.formats.made_reports import full_report, hostile_report

pytestmark = needs_axe
SIZES = {"desk": (1280, 800), "phone": (390, 844)}
OPEN_WITNESS = "document.querySelector('[data-figure]')?.click()"


def report_page(report: Report) -> str:
    return REPORTERS.get("html")().render(report)


def traced_report() -> Report:
    """A table with a total, which can be clicked."""
    rows = (("vision", 3), ("decoder", 4))
    table = Table(
        title="Stages", columns=(Column("stage"), Column("FLOPs", Kind.FLOPS)), rows=rows, footer=("total", 7)
    )
    return Report(title="A report", answer=("It runs.",), tables=(table,))


PAGES: dict[str, Callable[[], str]] = {
    "report": lambda: report_page(full_report()),
    "hostile report": lambda: report_page(hostile_report()),
    "witness": lambda: report_page(traced_report()),
    "graph": lambda: HtmlDrawing().render(deepseek_ocr_view()),
    "study": lambda: study_page_text(study_view()),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("make", PAGES.values(), ids=PAGES)
def test_nothing_serious_is_found(
    browser: Any, tmp_path: Path, make: Callable[[], str], size: tuple[int, int], theme: str
) -> None:
    page = tmp_path / "page.html"
    page.write_text(make(), encoding="utf-8")
    resize(browser, size)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        browser.get(page.as_uri())
        browser.execute_script(OPEN_WITNESS)
        assert serious_findings(browser) == []
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

"""An answer in a notebook: small, whole, and as high as what is in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from llm_perf_opt.core.report import Column, Kind, Report, Table
from llm_perf_opt.formats.html_format import MOST_BYTES, notebook_html
from tests.formats.made_reports import full_report, hostile_report, limits_report


def long_table(rows: int) -> Report:
    """More than a notebook should keep."""
    columns = (Column("module"), Column("bytes", Kind.BYTES))
    listed = tuple((f"model.layers.{row}.mlp.experts.{row}.down_proj", row * 1000) for row in range(rows))
    return Report(title="Many rows", tables=(Table(title="Modules", columns=columns, rows=listed),))


def nested(depth: int) -> Report:
    """Chapters in chapters, each with charts."""
    inner = (nested(depth - 1),) * 3 if depth else ()
    return replace(full_report(), chapters=(*full_report().chapters, *inner))


MADE: dict[str, Callable[[], Report]] = {
    "full": full_report,
    "hostile": hostile_report,
    "limits": limits_report,
    "long": lambda: long_table(5000),
    "nested": lambda: nested(2),
}


@pytest.mark.parametrize("name", MADE)
def test_an_output_is_small_and_says_what_it_leaves_out(name: str) -> None:
    report = MADE[name]()
    shown = notebook_html(report)
    assert len(shown.encode()) <= MOST_BYTES
    assert shown.startswith("<iframe srcdoc='")
    assert shown.count("'") == 2  # those around the page
    if name in ("long", "nested"):
        assert "Left out in the notebook: " in shown


def test_what_fits_is_shown_whole() -> None:
    shown = notebook_html(long_table(20))
    assert "Left out" not in shown
    assert shown.count("proj") == 20


def test_the_rows_that_are_left_out_are_counted() -> None:
    shown = notebook_html(long_table(5000))
    kept = shown.count("proj")
    assert f"Left out in the notebook: {5000 - kept:,} rows." in shown


@pytest.mark.parametrize("width", [480, 1100])
@pytest.mark.parametrize("name", ["full", "long"])
def test_nothing_is_cut_in_the_notebook(browser: Any, tmp_path: Path, name: str, width: int) -> None:
    file = tmp_path / "notebook.html"
    file.write_text(f'<body style="margin:0;width:{width}px">{notebook_html(MADE[name]())}</body>', encoding="utf-8")
    browser.get(file.as_uri())
    inside = "document.querySelector('iframe').contentDocument"
    ready = f"return {inside}.documentElement.dataset.ready === 'yes'"
    WebDriverWait(browser, 20).until(lambda driver: driver.execute_script(ready))
    page, frame = (
        browser.execute_script(f"return {inside}.body.offsetHeight"),
        browser.execute_script("return document.querySelector('iframe').offsetHeight"),
    )
    assert page <= frame <= page + 10
    assert browser.execute_script(f"return {inside}.documentElement.scrollWidth") <= width
    chart = f"return [...{inside}.querySelectorAll('.drawn svg')].every((svg) => svg.checkVisibility())"
    assert browser.execute_script(chart)
    assert [entry["message"] for entry in browser.get_log("browser")] == []

"""A figure of a report, clicked: its witness opens, and the formula in it gives the figure again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.report import Column, Kind, Report, Table
from llm_perf_opt.core.witness import CLOSE, Witness, worked_out
from tests.api.tiny_folders import llama_folder

CLICK = """
const dialog = document.getElementById("witness");
return [...document.querySelectorAll("main [data-figure]")].map((button) => {
  button.click();
  const { value, worked } = dialog.dataset;
  const answer = {
    isOpen: dialog.open, exact: button.dataset.exact, value, worked,
    text: document.getElementById("witness-body").textContent,
    place: `${button.closest("table").tHead.textContent}: ${button.closest("tr").textContent}`,
  };
  dialog.close();
  return answer;
});
"""
UNTRACED = """
return [...document.querySelectorAll("main .card > .scroll td.number:not(.unknown)")]
  .filter((cell) => !cell.querySelector("[data-figure]")).map((cell) => cell.closest("tr").textContent);
"""


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens a report; afterwards nothing may stand in the console."""

    def opened(report: Report) -> Any:
        file = tmp_path / "report.html"
        file.write_text(REPORTERS.get("html")().render(report), encoding="utf-8")
        browser.get(file.as_uri())
        return browser

    browser.get_log("browser")
    yield opened
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def wrong(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Figures whose witness does not open, has no source, or does not give the figure again."""
    return [
        figure
        for figure in figures
        if not figure["isOpen"]
        or "Source" not in figure["text"]
        or not all(
            math.isclose(float(figure["exact"]), float(figure[key]), rel_tol=CLOSE) for key in ("value", "worked")
        )
    ]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_folder(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.mark.parametrize(
    "demand",
    [
        {"rate": "20/s", "slo": "ttft=2s,tpot=40ms"},
        {"users": 40, "prices": {"l4": 0.5}},
        {"users": 1, "engine_only": True},
        {"pages": 100_000, "within": "72h"},
        {},
    ],
    ids=["rate", "users", "engine", "job", "none"],
)
def test_every_figure_of_a_served_model_opens_its_witness(page: Any, served: Path, demand: dict[str, Any]) -> None:
    answer = lpo.serve(served, "l4,h100-sxm", input=300, output=50, tp=1, max_batched_tokens="2048", **demand)
    driver = page(answer.report())
    figures = driver.execute_script(CLICK)
    assert wrong(figures) == []
    assert len(figures) > 40
    assert driver.execute_script(UNTRACED) == []


def test_a_figure_that_its_witness_does_not_give_is_not_offered(page: Any) -> None:
    parts = (Witness("<b>weights</b>", 2**60 + 1, "B", "<img src=x>"), Witness("cache", 5, "B", "a trace"))
    right = worked_out("sum", "memory", parts, "B")
    table = Table(
        title="Memory",
        columns=(Column("what"), Column("bytes", Kind.BYTES)),
        rows=(("right", right.value), ("wrong by a byte", right.value + 1), ("given", 7)),
        witnesses=lambda row, column: right if column == 1 and row < 2 else None,
    )
    driver = page(Report(title="A report", tables=(table,)))
    (figure,) = driver.execute_script(CLICK)
    assert figure["value"] == figure["worked"] == str(2**60 + 6)
    assert "<b>weights</b>" in figure["text"] and "<img src=x>" in figure["text"]
    assert driver.execute_script("return document.querySelectorAll('#witness-body b, #witness-body img').length") == 0


def test_a_total_is_the_sum_of_its_rows(page: Any) -> None:
    columns = (Column("stage"), Column("FLOPs", Kind.FLOPS), Column("peak", Kind.BYTES))
    rows = (("vision", 3 * 10**17, 5), ("decoder", 7, 9))
    table = Table(title="Stages", columns=columns, rows=rows, footer=("total", 3 * 10**17 + 7, 9))
    figures = page(Report(title="A report", tables=(table,))).execute_script(CLICK)
    assert [figure["value"] for figure in figures] == [str(3 * 10**17 + 7)]  # a peak is no sum
    assert "vision" in figures[0]["text"] and "decoder" in figures[0]["text"]


def test_every_figure_of_a_whole_report_opens_its_witness(page: Any) -> None:
    """Of its table of stages, FLOPs and bytes are worked out from the ops that ran."""
    report = lpo.trace("deepseek-ocr-tiny", mode="tiny").report(device="h100-sxm").report()
    driver = page(report)
    figures = driver.execute_script(CLICK)
    assert wrong(figures) == []
    assert driver.execute_script(UNTRACED) == []
    assert len(figures) > 500
    assert sum("= " in figure["text"] for figure in figures) > 80

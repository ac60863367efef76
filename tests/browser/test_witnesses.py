"""A figure of any page, clicked: its witness opens, and the formula in it gives the figure again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import llm_perf_opt as lpo
from llm_perf_opt.api.explore import explore_page
from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.report import Column, Kind, Report, Table
from llm_perf_opt.core.witness import CLOSE, Witness, worked_out
from tests.api.tiny_folders import llama_folder
from tests.browser.conftest import WALL, resize

CLICKED = """
const dialog = document.getElementById("witness");
const clicked = () => [...document.querySelectorAll("main [data-figure]")].map((button) => {
  button.click();
  const { value, worked } = dialog.dataset;
  const answer = {
    name: button.dataset.figure, isOpen: dialog.open, exact: button.dataset.exact, value, worked,
    text: document.getElementById("witness-body").textContent,
    place: (button.closest("tr") ?? button).textContent,
  };
  dialog.close();
  return answer;
});
"""
CLICK = f"{CLICKED} return clicked();"
# The whole run and boxes on show, in each phase; after a click the panel has the figures of that box. The picture is
# hidden meanwhile: a browser lays it out again for every dialog.
CLICK_BOXES = f"""{CLICKED}
const phases = [...document.querySelectorAll("#phases button")];
const hidden = document.querySelectorAll("main > section");
return (phases.length ? phases : [document.body]).flatMap((phase) => {{
  phase.click();
  const ids = [...document.querySelectorAll(".box")].map((box) => box.id).slice(0, arguments[0]);
  for (const part of hidden) part.style.display = "none";
  const figures = [...clicked(), ...ids.flatMap((id) => {{
    document.querySelector(`#${{id}} > .head`).click();
    return clicked();
  }})];
  for (const part of hidden) part.style.display = "";
  return figures;
}});
"""
PATIENCE_S = 500  # a thousand clicks on a busy machine
UNTRACED = """
return [...document.querySelectorAll("main .card > .scroll td.number:not(.unknown)")]
  .filter((cell) => !cell.querySelector("[data-figure]")).map((cell) => cell.closest("tr").textContent);
"""


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens a report; afterwards nothing may stand in the console."""

    def opened(report: Report | Path) -> Any:
        file = report if isinstance(report, Path) else tmp_path / "report.html"
        if isinstance(report, Report):
            file.write_text(REPORTERS.get("html")().render(report), encoding="utf-8")
        resize(browser, WALL)  # a picture holds the boxes that are on show
        browser.get(file.as_uri())
        browser.set_script_timeout(PATIENCE_S)
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


@pytest.mark.parametrize("verb", ["advise", "train"])
def test_every_figure_of_advice_and_of_training_opens_its_witness(page: Any, served: Path, verb: str) -> None:
    answer = lpo.trace(served).advise("l4") if verb == "advise" else lpo.train(served, "2x l4", seq=128)
    driver = page(answer.report())
    figures = driver.execute_script(CLICK)
    assert wrong(figures) == []
    assert len(figures) > 40
    assert sum("= " in figure["text"] for figure in figures) > 8
    assert driver.execute_script(UNTRACED) == []


@pytest.mark.parametrize("options", [{}, {"only": "attention"}, {"ungrouped": True}], ids=["all", "some", "ungrouped"])
def test_every_figure_of_every_box_opens_its_witness(page: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    """FLOPs, bytes and memory of a box go back to the ops that ran, parameters to the modules that hold them."""
    run = lpo.trace("deepseek-ocr-tiny", mode="tiny")
    driver = page(run.graph(**options).save(tmp_path / "graph.html"))
    figures = driver.execute_script(CLICK_BOXES, 12)
    assert wrong(figures) == []
    assert len(figures) > 500
    assert sum("the price of aten." in figure["text"] for figure in figures) > 100
    own = [figure for figure in figures if figure["name"].startswith("own-") and float(figure["exact"])]
    assert options.get("only") or [figure["place"] for figure in own if "counted while" in figure["text"]] == []


def test_a_box_names_the_ops_that_it_sums(page: Any, tmp_path: Path) -> None:
    """A layer of 256 x 128 numbers, on two tokens: 2 x 2 x 256 x 128 FLOPs, once in this forward."""
    module = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.Linear(256, 8))
    run = lpo.trace(module, args=(torch.zeros(2, 128),))
    driver = page(run.graph().save(tmp_path / "graph.html"))
    texts = [figure["text"] for figure in driver.execute_script(CLICK_BOXES, 12)]
    assert any("runs: 1" in text and "each, of [2, 128], [256, 128], [256]: 131,072 FLOP" in text for text in texts)


def test_a_page_to_explore_opens_each_witness(page: Any, served: Path, tmp_path: Path) -> None:
    answer = lpo.sweep(served, users=(1, 8), input=(16, 48), points=2)
    driver = page(explore_page(answer, tmp_path / "explore.html"))
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    figures = driver.execute_script(CLICK)
    assert wrong(figures) == []
    assert len(figures) > 35

"""A page of each kind, and the same with hostile names."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llm_perf_opt as lpo
from llm_perf_opt.api.explore import explored
from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.report import Column, Kind, Report, Table
from llm_perf_opt.formats.explore_html import explore_page_text
from llm_perf_opt.formats.html_format import HtmlDrawing, study_page_text
from tests.api.tiny_folders import llama_folder
from tests.browser.test_study_page import study_view
from tests.formats.drawings.made_views import HOSTILE_NAMES, deepseek_ocr_view, hostile_view
from tests.formats.made_reports import full_report, hostile_report

HOSTILE = "".join(HOSTILE_NAMES)


def report_page(report: Report) -> str:
    return REPORTERS.get("html")().render(report)


def traced_report() -> Report:
    """A table with a total, which can be clicked."""
    rows = (("vision", 3), ("decoder", 4))
    table = Table(
        title="Stages", columns=(Column("stage"), Column("FLOPs", Kind.FLOPS)), rows=rows, footer=("total", 7)
    )
    return Report(title="A report", answer=("It runs.",), tables=(table,))


@cache
def _asked(verb: str) -> Any:
    with tempfile.TemporaryDirectory() as place:
        folder = llama_folder(Path(place) / "tiny-llama")
        match verb:
            case "serve":
                return lpo.serve(folder, "l4,h100-sxm", input=300, output=50, users=8)
            case "train":
                return lpo.train(folder, "2x l4", seq=128)
            case "advise":
                return lpo.trace(folder).advise("l4")
            case _:
                return explored(lpo.sweep(folder, users=(2, 8), input=(16, 48), points=2)._function, "", ["h100-sxm"])


def explore_page(name: str) -> str:
    return explore_page_text({**_asked("explore"), "model": name})


PAGES: dict[str, Callable[[], str]] = {
    "report": lambda: report_page(full_report()),
    "hostile report": lambda: report_page(hostile_report()),
    "witness": lambda: report_page(traced_report()),
    "serve": lambda: report_page(_asked("serve").report()),
    "train": lambda: report_page(_asked("train").report()),
    "advise": lambda: report_page(_asked("advise").report()),
    "graph": lambda: HtmlDrawing().render(deepseek_ocr_view()),
    "hostile graph": lambda: HtmlDrawing().render(hostile_view()),
    "study": lambda: study_page_text(study_view()),
    "explore": lambda: explore_page("tiny-llama"),
    "hostile explore": lambda: explore_page(HOSTILE),
}

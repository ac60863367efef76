"""A picture of one phase that is saved as a page of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.api.graph import graph_answer
from llm_perf_opt.api.trace import Trace
from llm_perf_opt.core.errors import UsageError
from tests.costs.small_run import small_run

RUN = (small_run(), replace(small_run(phase="decode"), stages=()))


def phases_on(page: str) -> list[str]:
    return [name for name in ("prefill", "decode") if f'"name":"{name}"' in page]


def test_a_page_that_is_saved_holds_every_phase(tmp_path: Path) -> None:
    answer = Trace(name="small", graphs=RUN).graph("decode")
    assert answer.phase == "decode"
    page = answer.save(tmp_path / "page.html").read_text("utf-8")
    assert phases_on(page) == ["prefill", "decode"]
    assert '"first":1' in page
    assert "small decode" in answer.save(tmp_path / "page.txt").read_text("utf-8")


def test_a_phase_that_an_option_does_not_suit_is_named_on_the_page() -> None:
    page = str(graph_answer(RUN[0], RUN, stage="vision").draw("html"))
    assert phases_on(page) == ["prefill"]
    assert "decode is not on this page: There is no stage " in page
    with pytest.raises(UsageError):
        graph_answer(RUN[1], RUN, stage="vision")


def test_levels_that_were_asked_for_stay_open_in_any_window() -> None:
    assert '"fits":true' in str(graph_answer(RUN[0], RUN).draw("html"))
    assert '"fits":false' in str(graph_answer(RUN[0], RUN, depth=2).draw("html"))


def test_a_picture_in_a_notebook_opens_fewer_boxes_rather_than_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = graph_answer(RUN[0], RUN)
    whole = answer._repr_html_()
    assert "<svg" in whole and "encoder" in whole
    monkeypatch.setattr("llm_perf_opt.api.graph._NOTEBOOK_BYTES", len(whole.encode()) - 1)
    smaller = answer._repr_html_()
    assert len(smaller.encode()) < len(whole.encode())
    assert "<svg" in smaller

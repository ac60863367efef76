"""`report`: the tables of traces without torch, and one page of everything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_the_tables_of_a_trace_are_printed(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--out", tmp_path)[0] == 0
    code, out, _ = run("report", tmp_path)
    assert code == 0
    assert "Cost by stage" in out
    assert "What runs?" not in out


def test_a_trace_and_a_file_make_the_whole_report(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--out", tmp_path / "run")[0] == 0
    page = tmp_path / "report.html"
    code, out, err = run("report", tmp_path / "run", "--device", "h100-sxm", "--out", page)
    assert (code, out) == (0, "")
    assert f"Wrote {page}" in err
    text = page.read_text("utf-8")
    for chapter in ("What runs?", "What does it cost?", "Does it fit?", "How fast could it be on"):
        assert chapter in text


def test_the_suffix_is_the_format(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--out", tmp_path / "run")[0] == 0
    assert run("report", tmp_path / "run", "--out", tmp_path / "report.json")[0] == 0
    made = json.loads((tmp_path / "report.json").read_text())
    assert [chapter["title"] for chapter in made["chapters"]] == ["What runs?", "What does it cost?", "Does it fit?"]
    assert [row["question"] for row in made["tables"][0]["rows"]] == [c["title"] for c in made["chapters"]]
    code, _, err = run("report", tmp_path / "run", "--out", tmp_path / "report.docx")
    assert code == 2
    assert ".html" in err


def test_a_report_is_never_overwritten_silently(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--out", tmp_path / "run")[0] == 0
    page = tmp_path / "report.md"
    page.write_text("mine")
    code, _, err = run("report", tmp_path / "run", "--out", page)
    assert code == 1
    assert "--force" in err
    assert page.read_text() == "mine"
    assert run("report", tmp_path / "run", "--out", page, "--force")[0] == 0


def test_a_wrong_device_is_refused_before_any_work(run: Run, tmp_path: Path) -> None:
    code, _, err = run("report", "stand-in", "--device", "h100-sxn", "--out", tmp_path / "report.html")
    assert code == 2
    assert "h100-sxm" in err
    assert "Tracing" not in err


def test_opening_needs_a_page(run: Run) -> None:
    assert run("report", "stand-in", "--open")[0] == 2


def test_the_page_is_opened_in_a_browser(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert run("trace", "stand-in", "--out", tmp_path / "run")[0] == 0
    assert run("report", tmp_path / "run", "--out", tmp_path / "report.html", "--open")[0] == 0
    assert opened == [(tmp_path / "report.html").as_uri()]

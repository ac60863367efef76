"""`report`: the tables of traces without torch, and one page of everything."""

from __future__ import annotations

import json
from collections.abc import Callable
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
    code, out, err = run("report", tmp_path / "run", "--gpus", "h100-sxm", "--out", page)
    assert (code, out) == (0, "")
    assert f"Wrote {page}" in err
    text = page.read_text("utf-8")
    for chapter in ("What runs?", "What does it cost?", "Does it fit?", "How fast is the traced code on"):
        assert chapter in text


def test_the_suffix_is_the_format(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--out", tmp_path / "run")[0] == 0
    assert run("report", tmp_path / "run", "--out", tmp_path / "report.json")[0] == 0
    made = json.loads((tmp_path / "report.json").read_text())
    assert [chapter["title"] for chapter in made["chapters"]] == ["What does it cost?", "Does it fit?", "What runs?"]
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
    code, _, err = run("report", "stand-in", "--gpus", "h100-sxn", "--out", tmp_path / "report.html")
    assert code == 2
    assert "h100-sxm" in err
    assert "Tracing" not in err


def test_an_answer_longer_than_any_is_refused_before_any_work(run: Run) -> None:
    code, _, err = run("report", "stand-in", "--gpus", "h100-sxm", "--output", "1000000000")
    assert code == 1
    assert "1,000,000,000 decode steps" in err
    assert "Tracing" not in err


def test_opening_needs_a_page(run: Run) -> None:
    assert run("report", "stand-in", "--open")[0] == 2


def test_the_page_is_opened_in_a_browser(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert run("trace", "stand-in", "--out", tmp_path / "run")[0] == 0
    assert run("report", tmp_path / "run", "--out", tmp_path / "report.html", "--open")[0] == 0
    assert opened == [(tmp_path / "report.html").as_uri()]


def test_the_folder_of_a_report_is_made_and_a_place_that_cannot_be_is_refused_before_the_work(
    run: Run, tmp_path: Path
) -> None:
    assert run("trace", "stand-in", "--out", tmp_path / "run")[0] == 0
    page = tmp_path / "new" / "folder" / "report.md"
    assert run("report", tmp_path / "run", "--out", page)[0] == 0
    assert page.stat().st_size > 100
    (tmp_path / "file").write_text("")
    code, _, err = run("report", "stand-in", "--out", tmp_path / "file" / "report.md")
    assert code == 1
    assert "Cannot make the folder" in err
    assert "Tracing" not in err


@pytest.mark.parametrize("words", [("--exports",), ("--users", "4"), ("--image", "10x10")])
@pytest.mark.parametrize("kept", [False, True])
def test_an_option_that_a_trace_cannot_have_is_refused(
    run: Run, tmp_path: Path, words: tuple[str, ...], kept: bool
) -> None:
    assert run("trace", "stand-in", "--out", tmp_path / "run")[0] == 0
    code, out, err = run("report", tmp_path / "run", *words, *(["--out", tmp_path / "report.html"] if kept else []))
    assert (code, out) == (2, "")
    assert f"A saved trace does not take {words[0]}." in err


def test_a_file_of_devices_needs_a_device(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--out", tmp_path)[0] == 0
    code, out, err = run("report", tmp_path, "--devices", "my.toml")
    assert (code, out) == (2, "")
    assert "--devices needs --gpus." in err


CHAPTERS = [
    "What does it cost?",
    "How fast is the traced code on NVIDIA H100 80GB SXM5?",
    "Does it fit?",
    "What runs?",
]


@pytest.fixture
def told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[dict[str, str], str]]:
    """The answers at a glance, and the whole text, of a report of the stand-in in this mode."""
    monkeypatch.setattr("llm_perf_opt.api.whole_report.QUICK_SOURCES", ("counted",))

    def of(mode: str) -> tuple[dict[str, str], str]:
        page = tmp_path / "report.json"
        assert run("report", "stand-in", "--mode", mode, "--gpus", "h100-sxm", "--out", page)[0] == 0
        made = json.loads(page.read_text())
        assert [chapter["title"] for chapter in made["chapters"]] == CHAPTERS
        return {row["question"]: row["answer"] for row in made["tables"][0]["rows"]}, page.read_text()

    return of


def test_a_model_that_raises_leaves_every_chapter_with_the_reason(
    told: Callable[[str], tuple[dict[str, str], str]],
) -> None:
    answers, text = told("broken")
    reason = "The model raised RuntimeError in module head. no prefill today"
    for question in CHAPTERS[1:]:
        assert answers[question].startswith(f"not known: {reason}")
    assert answers["What does it cost?"] == "prefill not known, decode not known"
    assert f"prefill is not known: {reason}" in text


def test_a_model_that_raises_in_the_decode_is_told_by_its_prefill(
    told: Callable[[str], tuple[dict[str, str], str]],
) -> None:
    answers, text = told("broken-decode")
    assert answers["What runs?"] == "2 modules in 2 calls, 20 parameters, decode not known"
    assert answers["What does it cost?"] == "prefill 120 FLOP, decode not known"
    assert answers["Does it fit?"].startswith("not known: 188 B at the peak, of which 80 B are weights")
    assert answers[CHAPTERS[1]].startswith("prefill ")
    assert all(answer.endswith("decode not known") for answer in answers.values())
    assert text.count("decode is not known: The model raised RuntimeError in module head. no decode today") == 3


def test_several_devices_stand_side_by_side_with_what_they_run(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--out", tmp_path / "run")[0] == 0
    page = tmp_path / "report.json"
    words = ("--gpus", "l4, h100-sxm,l4", "--execution", "fused", "--out", page)
    assert run("report", tmp_path / "run", *words)[0] == 0
    made = json.loads(page.read_text())
    _, by_device, deployment = made["tables"]
    assert [row["device"] for row in by_device["rows"]] == ["NVIDIA L4"] * 2 + ["NVIDIA H100 80GB SXM5"] * 2
    assert {row["fits"] for row in by_device["rows"]} == {"yes"}
    told = {row["part"]: row["value"] for row in deployment["rows"]}
    assert told["devices"] == "NVIDIA L4, NVIDIA H100 80GB SXM5"
    assert told["execution"].startswith("engine kernels (fused, CUDA graphs)")
    assert told["plan"] == "one device"
    (fast,) = [chapter for chapter in made["chapters"] if chapter["title"] == "How fast are its ops, fused?"]
    assert [chapter["title"] for chapter in fast["chapters"]] == ["NVIDIA L4", "NVIDIA H100 80GB SXM5"]


def test_the_times_of_a_report_are_those_of_a_prediction(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--out", tmp_path / "run")[0] == 0
    for execution in ("eager", "fused"):
        page = tmp_path / f"{execution}.json"
        words = ("--gpus", "h100-sxm", "--execution", execution)
        assert run("report", tmp_path / "run", *words, "--out", page)[0] == 0
        chapter = json.loads(page.read_text())["chapters"][1]
        timed = json.loads(run("trace", tmp_path / "run", "--device", *words[1:], "--json")[1])
        assert chapter["tables"][0] == timed["tables"][0]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--execution", "fused"), "--execution needs --gpus."),
        (("--output", "300"), "--output needs --gpus."),
        (("--gpus", "h100-sxm,nothing"), "nothing"),
    ],
)
def test_what_no_report_can_be_made_of_is_refused(run: Run, tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    code, _, err = run("report", "stand-in", *words, "--out", tmp_path / "report.html")
    assert code == 2
    assert why in err
    assert "Tracing" not in err

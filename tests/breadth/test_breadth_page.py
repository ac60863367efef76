"""The page of breadth figures is made from the data file, and only its own section is touched."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from benchmarks.breadth.tiny import section
from benchmarks.pages import replace_section
from benchmarks.runner import load_records, save_records

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "data" / "breadth_tiny.json"
HEADER = {"transformers": "5", "torch": "2", "unreadable": {"tests.a": "No module named 'b'"}}
RECORDS: dict[str, dict[str, object]] = {
    "a/T/A": {"status": "equal", "calls": 10, "calls_differ": 0},
    "a/T/B": {"status": "replayed", "calls": 7, "calls_differ": 2},
    "a/T/C": {"status": "differs", "calls": 5, "calls_differ": 1, "evidence": "another run differs"},
    "a/T/D": {"status": "differs", "calls": 3, "calls_differ": 3, "evidence": ""},
    "a/T/E": {"status": "failed", "message": "Refusal: no rule"},
    "a/T/F": {"status": "unreal", "message": "E requires the x library but"},
    "a/T/B+eager": {"status": "replayed", "calls": 9, "calls_differ": 4},
}


def test_the_figures_add_up() -> None:
    text = section(HEADER, RECORDS)
    assert "| built by the suite's test cases | 6 | 1 |" in text
    assert "| run for real on a CPU | 5 | 1 |" in text
    assert "| run weightless too | 4 | 1 |" in text
    assert "25 module calls of the first column were compared; 6 differ" in text
    assert "| `C` | 5 | 1 | values decide a length; another run differs |" in text
    assert "| `D` | 3 | 3 | not explained |" in text
    assert "| `E` | Refusal: no rule |" in text
    assert "| 1 | needs the package `x` |" in text


def test_only_the_marked_section_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n<!-- begin one -->\nold\n<!-- end one -->\n\nafter\n")
    replace_section(page, "one", "new")
    replace_section(page, "two", "added")
    replace_section(page, "one", "newer")
    assert page.read_text() == (
        "# Title\n\n<!-- begin one -->\n\nnewer\n\n<!-- end one -->\n\nafter\n\n"
        "<!-- begin two -->\n\nadded\n\n<!-- end two -->\n"
    )


def test_records_survive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data" / "records.json"
    assert load_records(path) == {}
    save_records(path, HEADER, RECORDS)
    assert load_records(path) == RECORDS


def test_the_page_shows_the_figures_of_the_data_file() -> None:
    data = json.loads(DATA.read_text())
    header = {key: value for key, value in data.items() if key != "records"}
    assert section(header, data["records"]) in (ROOT / "docs" / "evidence" / "breadth.md").read_text()


def test_every_class_that_runs_for_real_runs_weightless_and_no_difference_is_unexplained() -> None:
    records = load_records(DATA)
    counts = Counter(record["status"] for record in records.values())
    assert counts.total() > 1000
    assert counts["equal"] + counts["replayed"] + counts["differs"] == counts.total() - counts["unreal"]
    unexplained = [key for key, r in records.items() if r["status"] == "differs" and not r["evidence"]]
    assert unexplained == []

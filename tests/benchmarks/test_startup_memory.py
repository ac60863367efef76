"""The start-up records: how they are split, what follows from them, and that the page says what the data file holds."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks import startup_memory
from benchmarks.startup_memory import DEVELOPED_PART, MODELS, SET_ASIDE, StartUp, judged, sections, start_ups

DOCS = Path(__file__).parents[2] / "docs"
DATA: dict[str, Any] = json.loads((DOCS / "data" / "startup_memory.json").read_text(encoding="utf-8"))
STARTS = list(start_ups())


def test_every_record_belongs_to_one_part_and_no_model_to_both() -> None:
    parts = {part: [one for one in STARTS if one.part == part] for part in (DEVELOPED_PART, SET_ASIDE)}
    assert {part: len(found) for part, found in parts.items()} == {DEVELOPED_PART: 33, SET_ASIDE: 39}
    developed, set_aside = ({one.model for one in found} for found in parts.values())
    assert not developed & set_aside
    assert developed | set_aside == set(MODELS)


def test_parts_of_a_record_add_up_to_its_share_where_all_are_given() -> None:
    """So the newer servers ran at 0.95, which their source does not say."""
    whole = [one for one in STARTS if one.cache_gib is not None and one.weights_gib is not None]
    assert len(whole) == 8 + 17
    for one in whole:
        parts = [one.weights_gib, one.activation_gib, one.non_torch_gib, one.cache_gib]
        assert sum(part or 0 for part in parts) == pytest.approx(one.utilisation * one.seen_gib, abs=0.03)


def test_the_cache_of_a_record_without_one_follows_from_its_other_figures() -> None:
    (two,) = (one for one in STARTS if one.model == "meta-llama/Llama-3.1-8B-Instruct" and one.tp == 2)
    # 95 % of 79.19 GiB, less 7.51 of weights, 1.89 of activation and 2.07 outside PyTorch
    assert startup_memory._derived_cache_gib(two) == pytest.approx(0.95 * 79.19 - 7.51 - 1.89 - 2.07)


def test_the_page_says_what_the_data_file_holds() -> None:
    page = (DOCS / "evidence" / "memory.md").read_text(encoding="utf-8")
    for name, text in sections(DATA).items():
        assert f"<!-- begin {name} -->\n\n{text}\n\n<!-- end {name} -->" in page


def test_the_command_writes_its_sections_and_data_where_they_belong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "evidence").mkdir()
    page = tmp_path / "evidence" / "memory.md"
    page.write_text("<!-- begin start-up -->\nold\n<!-- end start-up -->\n", encoding="utf-8")
    monkeypatch.setattr("benchmarks.pages.DOCS", tmp_path)
    monkeypatch.setattr(startup_memory, "memory_data", lambda parts: DATA)
    monkeypatch.setattr("sys.argv", ["startup_memory", "--docs"])
    startup_memory.main()
    assert all(text in page.read_text(encoding="utf-8") for text in sections(DATA).values())
    assert json.loads((tmp_path / "data" / "startup_memory.json").read_text(encoding="utf-8")) == DATA


def test_medians_and_percentiles_are_those_of_the_rows_and_within_their_goals() -> None:
    rows = DATA["records"]
    assert len(rows) == len(STARTS) == 72
    caches = sorted(abs(row["cache_gib"] / row["measured_cache_gib"] - 1) for row in rows)
    found = DATA["parts"]["all"]
    assert found["cache"]["median"] == pytest.approx(median(caches), abs=2e-4)  # of figures with three decimals
    assert found["cache"]["p90"] == pytest.approx(caches[64], abs=2e-4)  # 65 of 72 are nine tenths
    measured = [row for row in rows if row["measured_activation_gib"] is not None]
    off = [abs(row["activation_gib"] / row["measured_activation_gib"] - 1) for row in measured]
    assert found["activation"]["median"] == pytest.approx(median(off), abs=5e-4)
    assert found["cache"]["median"] <= 0.03
    assert found["cache"]["p90"] <= 0.08
    assert found["activation"]["median"] <= 0.25


@pytest.mark.slow
@pytest.mark.parametrize("model", ["Qwen3-0.6B", "google/gemma-2-2b-it", "Qwen/Qwen1.5-MoE-A2.7B"])
def test_a_row_of_the_data_file_comes_out_again(model: str) -> None:
    start: StartUp = next(one for one in STARTS if one.model == model)
    row = next(row for row in DATA["records"] if row["model"] == model)
    assert startup_memory._row(judged(start)) == row

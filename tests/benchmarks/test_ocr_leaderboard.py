"""The leaderboard of OCR models: prices over pages per second, and measured points next to their own row."""

from __future__ import annotations

import pytest

from benchmarks.ocr_leaderboard import GPUS, MODELS, leaderboard, measured, page_cost, points_table
from llm_perf_opt.core.hardware.prices import shipped_prices


def test_a_million_pages_at_one_a_second_take_277_hours_and_more() -> None:
    assert page_cost(3.60, 1.0) == pytest.approx(1000)
    assert page_cost(3.29, 4.0) == pytest.approx(228.4722, rel=1e-6)


def test_measured_points_are_dated_have_a_row_and_a_source_that_a_reader_can_open() -> None:
    points = list(measured())
    assert len(points) == 6
    assert {point["model"] for point in points} <= set(MODELS)
    assert {point["gpu"] for point in points} <= set(GPUS)
    assert [point for point in points if "20" not in point["date"] or "id " in point["source"]] == []
    assert all(gpu in shipped_prices() for gpu in GPUS)


def test_the_cheapest_model_comes_first_and_what_does_not_fit_says_so() -> None:
    def row(model: str, gpu: str, cost: float | None) -> dict[str, object]:
        rate = None if cost is None else 1.5
        return {"model": model, "gpu": gpu, "tokens_in": 900.0, "usd_per_million_pages": cost, "pages_per_s": rate}

    rows = [row("dear", "l4", None), row("dear", "h100-sxm", 300.0), row("cheap", "l4", 50.0)]
    rows.append(row("cheap", "h100-sxm", 60.0))
    points = [{"model": "cheap", "gpu": "l4", "usd_per_million_pages": 75.0, "pages_per_s": 1.0}]
    assert leaderboard(rows, points).splitlines()[2:] == [
        "| cheap | 900 | $50 ($75) | $60 |",
        "| dear | 900 | does not fit | $300 |",
    ]
    told = [{**points[0], "date": "2025-12", "engine": "vLLM", "source": "a paper"}]
    assert "| 1.00 | 1.50 | 1.5 |" in points_table(rows, told)

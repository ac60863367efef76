"""The arithmetic of benchmarks/calibrated_prediction.py; the runs themselves take minutes and are not repeated here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.calibrated_prediction import PAGE, REFERENCE, record_of, spread_of, timed_stages, verdict_of, write_page
from tests.timing.made_calibrations import calibration


class Options:
    clock = "wall"


def row(mode: str, stage: str, measured_s: float, predicted_s: float) -> dict[str, Any]:
    return {
        "mode": mode,
        "stage": stage,
        "measured_s": measured_s,
        "measured_fastest_s": measured_s,
        "measured_slowest_s": measured_s,
        "predicted_s": predicted_s,
        "predicted_low_s": predicted_s,
        "predicted_high_s": predicted_s,
        "error": predicted_s / measured_s - 1,
    }


def made_record() -> dict[str, Any]:
    """In the reference mode half of the time is predicted, in the other modes 60 % and 45 % of it."""
    rows = [row(REFERENCE, "sam", 2.0, 1.0), row("tiny", "sam", 1.0, 0.6), row("large", "sam", 10.0, 4.5)]
    record = record_of(calibration(), rows, Options())  # type: ignore[arg-type]  # only its clock is read
    return record | {"steadiness": spread_of([0.1, 0.2, 0.3, 0.4, 0.5])}


def test_the_reference_run_takes_out_what_all_modes_share() -> None:
    record = made_record()
    assert record["reference_factors"] == {"sam": 2.0}
    assert record["microbenchmarks_alone"]["worst_error"] == pytest.approx(0.55)
    assert record["with_reference"]["worst_error"] == pytest.approx(0.2)
    assert record["with_reference"]["median_error"] == pytest.approx(0.15)


def test_the_reference_mode_is_not_among_the_errors() -> None:
    assert made_record()["microbenchmarks_alone"]["count"] == 2


@pytest.mark.parametrize(
    ("errors", "reached"), [([0.15, -0.15, 0.29], True), ([0.1, -0.31], False), ([0.16, -0.2, 0.2], False)]
)
def test_the_goal_is_a_median_of_15_and_a_worst_of_30_per_cent(errors: list[float], reached: bool) -> None:
    verdict = verdict_of(errors)
    assert verdict is not None
    assert verdict["reached"] is reached


def test_the_page_takes_the_tables_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text("utf-8"), "utf-8")
    write_page(made_record(), page)
    write_page(made_record(), page)
    text = page.read_text("utf-8")
    assert text.count("| tiny | sam | 1,000 (1,000 to 1,000) | 600 (600 to 600) | -40.0% | +20.0% |") == 1
    assert text.count("| base | sam |") == 2, "one thread and two, each in its own table"
    assert text.count("(twenty matmuls, 5 times) took 100 to 500 ms, half of the time 150 to 450 ms.") == 1
    assert text.partition("## What the model")[2] == PAGE.read_text("utf-8").partition("## What the model")[2]


def test_stages_are_timed_from_outside_and_left_as_they_were() -> None:
    model = torch.nn.Module()
    model.model = torch.nn.Module()
    for name in ("sam_model", "vision_model", "projector"):
        setattr(model.model, name, torch.nn.Identity())
    ticks = iter(range(100))
    with timed_stages(model, lambda: float(next(ticks))) as spent:
        model.model.sam_model(1)
        model.model.sam_model(1)
    assert spent == {"sam": 2.0, "clip": 0.0, "projector": 0.0}
    assert "forward" not in model.model.sam_model.__dict__

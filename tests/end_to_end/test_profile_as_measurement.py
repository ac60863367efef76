"""A real run of this machine as the measurement that corrects a calibrated prediction of another workload."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.api.calibration import calibrate
from llm_perf_opt.core.hardware.calibration import Calibration, Timing
from llm_perf_opt.measurements.profile.metrics_file import MetricsFile, read_metrics

pytestmark = pytest.mark.slow

MODEL = "deepseek-ocr-tiny"
STAGES = ("sam", "clip", "projector", "prefill", "decode")


def profiled(folder: Path, mode: str) -> MetricsFile:
    lpo.profile(MODEL, image="90x130", mode=mode, repeats=5, threads=1, dtype="bfloat16", operators=False, out=folder)
    return read_metrics(folder / "metrics.json")


def measured_s(run: MetricsFile, stage: str) -> float:
    """The median over the passes; of decode one step."""
    (page,) = run.pages
    spent = [one.stages_ns[stage] for one in page.passes]
    return statistics.median(sum(times) / (len(times) if stage == "decode" else 1) for times in spent) * 1e-9


def slowed(calibration: Calibration, factor: float) -> Calibration:
    def slow(time: Timing) -> Timing:
        return Timing(
            median_s=time.median_s * factor, fastest_s=time.fastest_s * factor, slowest_s=time.slowest_s * factor
        )

    tables = tuple(replace(table, times=tuple(map(slow, table.times))) for table in calibration.tables)
    fresh = None if calibration.fresh_byte is None else slow(calibration.fresh_byte)
    return replace(calibration, tables=tables, fresh_byte=fresh)


def test_one_profiled_run_corrects_every_stage_of_another(tmp_path: Path) -> None:
    """A calibration that is five times too slow: one run in one mode brings the other mode much nearer."""
    reference, other = profiled(tmp_path / "reference", "gundam"), profiled(tmp_path / "other", "base")
    calibration = slowed(calibrate(smoke=True, threads=1).calibration, 5.0)
    asked = {"image": "90x130", "torch_device": "cpu", "routing": "balanced"}
    again = lpo.trace(MODEL, mode="gundam", **asked).predict(calibration=calibration, measured=tmp_path / "reference")
    for stage in again.stages:
        assert stage.expected_s == pytest.approx(measured_s(reference, stage.name), rel=0.05)
    trace = lpo.trace(MODEL, mode="base", **asked)
    before = trace.predict(calibration=calibration)
    after = trace.predict(calibration=calibration, measured=tmp_path / "reference")
    assert after.correction is not None
    assert [change.stage for change in after.correction.stages] == list(STAGES)
    assert after.correction.corrected_share == pytest.approx(1.0)
    errors = [
        statistics.median(abs((stage.expected_s or 0.0) / measured_s(other, stage.name) - 1) for stage in answer.stages)
        for answer in (before, after)
    ]
    assert errors[0] > 1.5
    assert errors[1] < 0.5 * errors[0]

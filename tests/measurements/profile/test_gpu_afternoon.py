"""`profile --device rtx-5090 --join` on a GPU that replays a recorded one: every step of the command but the driver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.api.profile import ProfileAnswer
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.measurements.join.gaps import GapReason
from llm_perf_opt.measurements.profile.joined_run import BETWEEN
from tests.measurements.timed.test_nsight import both_stand_in
from tests.recorded_device import ALLOCATED, NAME, RecordedDevice, recorded_device

pytestmark = pytest.mark.slow
PAGE = {"image": "90x130", "mode": "gundam", "max_new_tokens": 3}


def profiled(folder: Path) -> ProfileAnswer:
    return lpo.profile(
        "deepseek-ocr-tiny",
        torch_device="cuda",
        device="rtx-5090",
        join=True,
        nsight="installed",
        threads=1,
        repeats=2,
        out=folder,
        **PAGE,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProfileAnswer, RecordedDevice]:
    folder = tmp_path_factory.mktemp("gpu")
    with pytest.MonkeyPatch.context() as patches, recorded_device(patches) as device:
        both_stand_in(folder, patches)
        return profiled(folder / "run"), device


def test_the_run_is_timed_by_events_and_named_for_nvtx(done: tuple[ProfileAnswer, RecordedDevice]) -> None:
    answer, device = done
    assert answer.folder is not None
    environment = json.loads((answer.folder / "env.json").read_text("utf-8"))
    assert (environment["device"]["type"], environment["device"]["reported_name"]) == ("cuda", NAME)
    stages = {name for page in answer.pages for one in page.passes for name in one.stages_ns}
    assert {"sam", "clip", "projector", "prefill", "sampling", "decode"} <= stages
    assert device.events > 2 * len(stages)
    assert device.synchronised > 0
    assert {"stage: sam", "stage: prefill", "stage: decode"} <= set(device.ranges)
    assert device.open_ranges == []
    assert [page.peak_device_bytes for page in answer.pages] == [ALLOCATED]
    assert answer.failures == {}


def test_nsight_watches_where_it_is_installed(done: tuple[ProfileAnswer, RecordedDevice]) -> None:
    answer, _ = done
    assert answer.folder is not None
    kept = json.loads((answer.folder / "kernels.json").read_text("utf-8"))
    assert [kernel["name"] for kernel in kept] == [kernel.name for kernel in answer.kernels]
    assert {bool(kernel["metrics"]) for kernel in kept} == {False, True}  # of nsys, and of ncu


def test_every_kernel_is_joined_and_its_time_is_the_recorded_one(done: tuple[ProfileAnswer, RecordedDevice]) -> None:
    answer, device = done
    assert answer.joined is not None
    prefill, decode = answer.joined.phases
    assert prefill.recording.device_name == NAME
    assert prefill.attributed > 0.95
    assert decode.attributed > 0.95
    assert sum(row.device_ns for row in prefill.totals.stages) == prefill.totals.total.device_ns
    joined_ns = prefill.device_ns + 2 * decode.device_ns  # both decode steps launch alike
    assert joined_ns <= device.launched_ns.total() <= 1.2 * joined_ns  # preprocessing and sampling are no stage of it


def test_measured_is_next_to_predicted_without_a_calibration(done: tuple[ProfileAnswer, RecordedDevice]) -> None:
    answer, _ = done
    assert answer.joined is not None
    assert [stage.name for stage in answer.joined.stages] == ["sam", "clip", "projector", "prefill", "decode"]
    for stage in answer.joined.stages:
        assert stage.predicted is not None
        assert stage.measured_s is not None and stage.times_expected is not None
        assert stage.mfu is not None
        assert stage.lower_bound_s is not None and stage.lower_bound_s < stage.predicted.high
    for kind in (kind for joined in answer.joined.phases for kind in joined.totals.op_kinds if "(not" not in kind.name):
        assert kind.predicted is not None, kind.name
        assert kind.mbu is not None


def test_the_report_ends_in_the_ranked_list(done: tuple[ProfileAnswer, RecordedDevice]) -> None:
    answer, _ = done
    assert answer.joined is not None
    gaps = answer.joined.gaps
    assert gaps[0].gap_s == max(gap.gap_s or 0 for gap in gaps)
    assert {gap.reason for gap in gaps} >= {GapReason.LAUNCHES, GapReason.ATTENTION, GapReason.EXPERTS}
    report = answer.report()
    assert [table.title.split(",")[0] for table in report.tables[:5]] == [
        "Measured and predicted by stage",
        "Measured and predicted by kind of kernel",
        "Largest gaps between measured and expected time",
        "Where the time goes",
        "What to change first",
    ]
    assert answer.advice is not None
    assert answer.advice.changes[0].title in report.answer[-1]


def test_the_ladder_of_the_advice_begins_at_the_measured_times(done: tuple[ProfileAnswer, RecordedDevice]) -> None:
    answer, _ = done
    assert answer.joined is not None and answer.advice is not None
    times = {stage.name: stage.measured_s or 0.0 for stage in answer.joined.stages}
    steps = answer.pages[0].decode_steps
    expected_s = sum(times.values()) + (steps - 1) * times["decode"]
    assert answer.advice.ladder.top_ns == pytest.approx(expected_s * 1e9, rel=1e-6)


def test_the_prediction_of_another_gpu_is_refused_before_the_first_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorded_device(monkeypatch) as device, pytest.raises(UsageError, match="made on NVIDIA GeForce RTX 5090"):
        lpo.profile(
            "deepseek-ocr-tiny", torch_device="cuda", device="h100-sxm", join=True, out=tmp_path / "run", **PAGE
        )
    assert device.events == 0


def test_what_is_slow_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention takes 300 times as long as on the recorded GPU."""
    with recorded_device(monkeypatch, {"attention": 300.0}):
        answer = profiled(tmp_path / "run")
    assert answer.joined is not None
    first = next(gap for gap in answer.joined.gaps if gap.place != BETWEEN)
    assert first.reason is GapReason.ATTENTION
    assert first.gap_s is not None and first.expected_s is not None
    assert first.measured_s > 20 * first.expected_s
    assert answer.joined.phases[0].totals.op_kinds[0].name == "attention"


def test_on_a_processor_ops_stand_in_the_place_of_kernels() -> None:
    answer = lpo.profile("deepseek-ocr-tiny", join=True, threads=1, repeats=1, warmup=0, **PAGE)
    assert answer.joined is not None
    assert [joined.graph.phase for joined in answer.joined.phases] == ["prefill", "decode"]
    assert all(joined.attributed > 0.9 for joined in answer.joined.phases)
    if answer.device is None:  # as on a machine that was not calibrated
        assert {gap.expected_s for gap in answer.joined.gaps} == {None}
        assert answer.report().tables[2].title.startswith("Longest times")

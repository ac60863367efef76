"""A prediction corrected by a measurement, with factors worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.api.prediction import PredictedStage, PredictionAnswer
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.measurements.correction import rests
from llm_perf_opt.ops.op import Kernel
from tests.api.test_join import FORWARD, recording
from tests.api.tiny_folders import llama_folder
from tests.costs.small_run import small_run
from tests.measurements.made_results import text_of, vllm_result

DEVICE = "h100-sxm"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> lpo.Trace:
    folder = llama_folder(tmp_path_factory.mktemp("models") / "tiny-llama")
    return lpo.trace(folder, prompt_tokens=64, batch=4)


def stage(answer: PredictionAnswer, name: str) -> PredictedStage:
    return next(one for one in answer.stages if one.name == name)


def middle(one: PredictedStage) -> float:
    return math.sqrt(one.low_s * one.high_s)


def test_the_measured_workload_is_predicted_as_it_was_measured(traced: lpo.Trace) -> None:
    """A TPOT at the very batch and context of the prediction: 3 ms is what it says afterwards, with a narrow band."""
    before = traced.predict(DEVICE)
    after = traced.predict(DEVICE, measured="tpot=3ms batch=4 context=64")
    rest, decode = rests().tpot.same_point, stage(after, "decode")
    assert decode.expected_s == pytest.approx(0.003)
    assert (decode.low_s, decode.high_s) == pytest.approx((0.003 * rest.low, 0.003 * rest.high))
    assert stage(after, "prefill") == stage(before, "prefill")
    assert after.correction is not None
    (change,) = after.correction.stages
    assert change.factor == pytest.approx(0.003 / middle(stage(before, "decode")))
    assert change.width_before == pytest.approx(stage(before, "decode").high_s / stage(before, "decode").low_s)
    assert change.width_after == pytest.approx(rest.high / rest.low)
    assert change.is_same_point
    assert stage(after, "decode").lower_bound_s == stage(before, "decode").lower_bound_s


def test_another_workload_is_predicted_too_and_its_factor_carried_over(traced: lpo.Trace) -> None:
    """16 requests in flight of 128 + 32 tokens: a decode step of batch 16 at context 128 + 16.

    While one request makes its 32 tokens each of the 15 others brings a prompt: 15 / 32 of one in each step.
    """
    there = lpo.trace(traced.name, prompt_tokens=144, batch=16).predict(DEVICE)
    alone = lpo.trace(traced.name, prompt_tokens=128).predict(DEVICE)
    factor = 0.004 / (middle(stage(there, "decode")) + middle(stage(alone, "prefill")) * 15 / 32)
    before = traced.predict(DEVICE)
    after = traced.predict(DEVICE, measured="tpot=4ms concurrency=16 isl=128 osl=32")
    rest, decode = rests().tpot.one_point, stage(after, "decode")
    assert decode.expected_s == pytest.approx(middle(stage(before, "decode")) * factor)
    assert decode.high_s / decode.low_s == pytest.approx(rest.high / rest.low)
    assert after.correction is not None
    (point,) = after.correction.points
    assert (point.batch, point.context, point.is_same_point) == (16, 144, False)
    assert point.factor == pytest.approx(factor)
    assert "decode is multiplied by" in str(after)
    assert "at batch 16, context 144" in str(after)


def test_the_queue_of_a_server_is_not_booked_as_hardware(traced: lpo.Trace) -> None:
    """16 in flight: nobody can tell the wait from the prefill, so the first token corrects nothing."""
    before = traced.predict(DEVICE)
    after = traced.predict(DEVICE, measured="ttft=358ms tpot=4ms concurrency=16 isl=128 osl=32")
    assert after.correction is not None
    assert [str(point.quantity) for point in after.correction.points] == ["TPOT"]
    assert stage(after, "prefill") == stage(before, "prefill")
    (warning,) = after.correction.warnings
    assert "the TTFT of 358 ms corrects nothing. With 16 requests in flight it contains a wait for others" in warning


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ttft=358ms concurrency=16 isl=128 osl=32", "contains a wait for others"),
        ("tpot=4ms concurrency=16 isl=128", "follows from the output tokens, which the file does not have"),
    ],
)
def test_a_measurement_of_a_queue_alone_is_refused_with_the_reason(traced: lpo.Trace, text: str, why: str) -> None:
    with pytest.raises(PerfOptError, match="Nothing of this prediction was measured") as refusal:
        traced.predict(DEVICE, measured=text)
    assert why in refusal.value.why


def test_one_request_at_a_time_has_no_queue(traced: lpo.Trace) -> None:
    after = traced.predict(DEVICE, measured="ttft=50ms concurrency=1 isl=128")
    assert after.correction is not None
    (point,) = after.correction.points
    assert (point.batch, point.context) == (1, 128)
    together = traced.predict(DEVICE, measured="ttft=50ms batch=16 isl=128").correction
    assert together is not None
    assert together.points[0].batch == 16


def test_two_loads_make_a_line_between_their_logarithms(traced: lpo.Trace) -> None:
    """The line goes through both ends: one that was measured at this very workload is met exactly."""
    runs = ["tpot=3ms batch=4 context=64", "tpot=30ms batch=512 context=1900"]
    after = traced.predict(DEVICE, execution="fused", measured=runs)
    assert after.correction is not None
    short, long = after.correction.points
    assert long.predicted_s > 1.05 * short.predicted_s
    assert stage(after, "decode").expected_s == pytest.approx(0.003)


def test_repeats_give_the_band_of_what_they_measured(traced: lpo.Trace) -> None:
    runs = [f"tpot={time_ms}ms batch=4 context=64" for time_ms in (2.7, 3.0, 3.6) for _ in range(3)]
    decode = stage(traced.predict(DEVICE, measured=runs), "decode")
    assert (decode.low_s, decode.expected_s, decode.high_s) == pytest.approx((0.0027, 0.003, 0.0036))


def test_a_time_below_the_lower_bound_is_refused_with_the_figures(traced: lpo.Trace) -> None:
    bound = stage(traced.predict(DEVICE), "decode").lower_bound_s
    assert bound is not None
    with pytest.raises(PerfOptError) as refusal:
        traced.predict(DEVICE, measured=f"tpot={bound * 0.5:.3g}s batch=4 context=64")
    assert "is below the lower bound of" in refusal.value.what
    assert "at batch 4, context 64" in refusal.value.why


def test_speculative_decoding_is_turned_into_the_time_of_a_step(traced: lpo.Trace, tmp_path: Path) -> None:
    drafted = vllm_result(model_id="tiny-llama", max_concurrency=4, spec_decode_acceptance_length=2.5)
    drafted |= {"completed": 1, "total_input_tokens": 64, "total_output_tokens": 1}
    (file := tmp_path / "result.json").write_bytes(text_of(drafted))
    before, after = traced.predict(DEVICE), traced.predict(DEVICE, measured=file)
    step_s = middle(stage(before, "decode"))
    prompt_s = middle(stage(lpo.trace(traced.name, prompt_tokens=64).predict(DEVICE), "prefill"))
    share = step_s / (step_s + 2.5 * 3 * prompt_s)  # 2.5 of one output token in a step, and three prompts of others
    assert stage(after, "decode").expected_s == pytest.approx(0.020 * 2.5 * share)
    assert "2.5 tokens" in str(after)


@pytest.mark.parametrize(("name", "is_other"), [("org/Tiny-Llama", False), ("Qwen/Qwen3-8B", True)])
def test_another_model_is_a_warning_and_leaves_the_band_as_wide(
    traced: lpo.Trace, tmp_path: Path, name: str, is_other: bool
) -> None:
    (file := tmp_path / "result.json").write_bytes(text_of(vllm_result(model_id=name)))
    after = traced.predict(DEVICE, measured=file)
    assert after.correction is not None
    assert any("was measured on the model" in text for text in after.correction.warnings) is is_other
    change = next(one for one in after.correction.stages if one.stage == "decode")
    assert (change.width_after == pytest.approx(change.width_before)) is is_other


def test_another_device_is_a_warning(traced: lpo.Trace) -> None:
    assert "prediction is for NVIDIA H100" in str(traced.predict(DEVICE, measured='tpot=3ms device="NVIDIA L4"'))
    assert "was measured on" not in str(traced.predict(DEVICE, measured="tpot=3ms device=h100-sxm"))


def test_a_saved_trace_says_that_it_cannot_follow(traced: lpo.Trace) -> None:
    saved = replace(traced, origin=None)
    after = saved.predict(DEVICE, measured="tpot=3ms batch=16 context=144")
    assert after.correction is not None
    assert "a saved trace holds no model" in after.correction.warnings[0]
    assert stage(after, "decode").expected_s == pytest.approx(0.003)


def test_nothing_that_was_measured_is_in_the_prediction(traced: lpo.Trace) -> None:
    prefill = replace(traced, graphs=traced.graphs[:1])
    with pytest.raises(PerfOptError, match="Nothing of this prediction was measured"):
        prefill.predict(DEVICE, measured="tpot=3ms batch=4 context=64")


def test_the_whole_run_is_corrected_step_by_step(traced: lpo.Trace) -> None:
    given = {"device": DEVICE, "decode_steps": 8}
    before, after = traced.predict(**given), traced.predict(**given, measured="ttft=9ms tpot=3ms batch=4 context=64")
    assert before.run is not None and after.run is not None
    assert before.run.decode is not None and after.run.decode is not None
    assert after.run.first_step is not None
    assert after.run.first_step.expected_s == pytest.approx(0.003)
    assert after.run.prefill_expected_s == pytest.approx(0.009)
    factor = 0.003 / middle(stage(before, "decode"))
    assert after.run.decode.expected_s == pytest.approx(
        math.sqrt(before.run.decode.low_s * before.run.decode.high_s) * factor
    )
    assert after.run.decode.lower_bound_s == before.run.decode.lower_bound_s


def test_the_answer_is_plain_values_and_tables(traced: lpo.Trace) -> None:
    after = traced.predict(DEVICE, measured="ttft=9ms tpot=3ms batch=4 context=64")
    plain: dict[str, Any] = json.loads(json.dumps(after.to_dict()))
    assert plain["correction"]["corrected_share"] == pytest.approx(1.0)
    assert [one["what"] for one in plain["correction"]["points"]] == ["TTFT", "TPOT"]
    assert {"What was measured", "Corrected by measurement"} <= set(after.tables)
    frame = after.to_pandas("Corrected by measurement")
    assert list(frame["after"]) == pytest.approx([0.009, 0.003])
    assert traced.predict(DEVICE).correction is None


# Kernels of the small run, by hand: three matmuls of 40, 50 and 60 us, four activations of 3, 3, 4 and 5 us.
MATMULS_S = {"vision": 90e-6, "prefill": 60e-6}
ACTIVATIONS_S = {"vision": 6e-6, "prefill": 9e-6}


def test_a_gpu_recording_corrects_every_stage_and_kind_of_kernel(tmp_path: Path) -> None:
    small = lpo.Trace(name="small", graphs=(small_run(),))
    file = recording(tmp_path, FORWARD)
    before, after = small.predict(DEVICE), small.predict(DEVICE, measured=file)
    assert after.correction is not None
    assert {point.what: point.measured_s for point in after.correction.points} == pytest.approx(
        {name: MATMULS_S[name] + ACTIVATIONS_S[name] for name in MATMULS_S}
    )
    for change in after.correction.stages:
        (old,) = (one for phase in before._times for one in phase if one.name == change.stage)
        (new,) = (one for phase in after._times for one in phase if one.name == change.stage)
        spent = {"matmul": MATMULS_S[change.stage], "vector": ACTIVATIONS_S[change.stage]}
        for family, seconds in spent.items():
            kernels = [one for one in old.pieces if isinstance(one.what, Kernel) and str(one.what.kind) == family]
            predicted = sum((one.each.expected or one.each.middle or one.each.high / 2) * one.count for one in kernels)
            assert change.by_family[family] == pytest.approx(seconds / predicted)
        assert new.device_time.expected == pytest.approx(sum(spent.values()))
        assert new.host_time == old.host_time


def test_the_report_of_a_join_corrects_every_stage(tmp_path: Path) -> None:
    small = lpo.Trace(name="small", graphs=(small_run(),))
    file = small.join(recording(tmp_path, FORWARD * 2)).save(tmp_path / "joined.json")
    correction = small.predict(DEVICE, measured=file).correction
    assert correction is not None
    assert {point.what: point.measured_s for point in correction.points} == pytest.approx(
        {name: MATMULS_S[name] + ACTIVATIONS_S[name] for name in MATMULS_S}
    )
    assert not correction.warnings


def test_every_kind_of_rank_is_corrected_by_the_same_factor(tmp_path: Path) -> None:
    """Two stages of a pipeline run different layers: both decode steps are multiplied by what the first one was."""
    traced = lpo.trace(llama_folder(tmp_path / "tiny-llama", num_hidden_layers=4), prompt_tokens=64, batch=4, pp=2)
    given = {"device": f"2x {DEVICE}", "rates": "data-sheet"}
    before, after = traced.predict(**given), traced.predict(**given, measured="tpot=3ms batch=4 context=64")
    assert before.ranks is not None and after.ranks is not None and after.correction is not None
    assert len(after.ranks.kinds) == 2
    assert "2 stages of the pipeline" in after.correction.warnings[0]
    (change,) = (one for one in after.correction.stages if one.phase == "decode")
    for old, new in zip(before.ranks.kinds, after.ranks.kinds, strict=True):
        was, now = (next(one for one in kind.phases if one.phase == "decode").time for kind in (old, new))
        assert was is not None and now is not None
        assert math.sqrt(now.low_s * now.high_s) == pytest.approx(
            math.sqrt(was.low_s * was.high_s)
            * change.factor
            * math.sqrt(rests().tpot.same_point.low * rests().tpot.same_point.high)
        )

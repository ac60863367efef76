"""Times and costs become figures by one division each."""

from __future__ import annotations

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.measurements.profile import join_run
from llm_perf_opt.timing.datasheet_rates import DataSheetRates
from llm_perf_opt.timing.predict import stage_time
from llm_perf_opt.timing.stage_work import StageWork, work_of
from tests.costs.made_kinds import kind, tensor
from tests.measurements.profile.made_runs import DEVICE, MS, made_costs, made_needs, made_page, made_pass, made_work

COSTS = made_costs(
    made_work("sam", 8 * 10**9, 10**8), made_work("prefill", 6 * 10**9, 10**8), made_work("decode", 10**9, 10**9)
)
PAGE = made_page(made_pass(20, 10, (3, 5)), made_pass(22, 30, (4, 6)), made_pass(90, 12, (5, 7)))


def test_figures_by_hand() -> None:
    run = join_run([PAGE], [COSTS], DEVICE, "float32")
    stages = {stage.name: stage for stage in run.stages}
    assert list(stages) == ["preprocess", "sam", "prefill", "sampling", "decode"]
    assert stages["sam"].total_ns == 22 * MS
    assert stages["sam"].efficiency is not None
    assert stages["sam"].efficiency.mfu == pytest.approx(8e9 / 22e-3 / 1e12)
    assert stages["decode"].occurrences == 2
    assert stages["decode"].total_ns == 10 * MS  # 8, 10, 12
    assert stages["decode"].efficiency is not None
    assert stages["decode"].efficiency.seconds == pytest.approx(5e-3)  # one step
    assert stages["decode"].efficiency.mfu == pytest.approx(1e9 / 10e-3 / 1e12)
    assert stages["decode"].efficiency.weight_bytes == 10**6 // 2  # of one of its two steps
    assert stages["preprocess"].flops is None and stages["preprocess"].efficiency is None
    assert run.model.stages == ("sam", "prefill", "decode")
    assert run.model.mfu == pytest.approx(15e9 / (22 + 12 + 10) / 1e-3 / 1e12)
    assert run.language_model.mfu == pytest.approx(7e9 / (12 + 10) / 1e-3 / 1e12)
    assert run.first_token.samples == 3
    assert run.first_token.least_ns == (2 + 20 + 10 + 1) * MS
    assert run.step is not None and run.step.samples == 6 and run.step.median_ns == 5 * MS
    assert run.unattributed_ns == MS


def test_a_page_weighs_once_however_often_it_was_repeated() -> None:
    often = made_page(*[made_pass(20, 10, (4, 4))] * 5)
    once = made_page(made_pass(40, 30, (6, 6)), image="other.png")
    run = join_run([often, once], [COSTS, COSTS], DEVICE, "float32")
    stages = {stage.name: stage for stage in run.stages}
    assert stages["sam"].total_ns == 60 * MS
    assert stages["sam"].flops == 16 * 10**9
    assert stages["decode"].occurrences == 4


def test_what_is_not_known_stays_unknown() -> None:
    without_device = join_run([PAGE], [COSTS], None, "float32")
    assert without_device.model.mfu is None and without_device.model.flops == 15 * 10**9
    without_costs = join_run([PAGE], [None], DEVICE, "float32")
    assert without_costs.model.flops is None and without_costs.model.mfu is None
    half = join_run([PAGE, made_page(made_pass(20, 10, (3, 5)))], [COSTS, None], DEVICE, "float32")
    assert half.model.flops is None


def causal_prefill() -> StageWork:
    """Fused attention over 64 tokens, 4 heads of 16: of 64 * 64 pairs the mask hides 63 in 128."""
    heads = tensor(1, 4, 64, 16)
    attention = kind(
        "aten.scaled_dot_product_attention.default",
        {"query": heads, "key": heads, "value": heads},
        heads,
        arguments={"is_causal": True},
    )
    gate = kind("aten.mm.default", {"self": HALF, "mat2": HALF}, HALF)
    needs = made_needs({"float32": 1000 * ATTENTION_FLOPS * 65 // 128, "bfloat16": GATE_FLOPS}, 10**6)
    return work_of("prefill", {attention: 1000, gate: 10}, needs)


HALF = tensor(128, 128, dtype="bfloat16")
ATTENTION_FLOPS, GATE_FLOPS = 4 * 64 * 64 * 4 * 16, 10 * 2 * 128**3


def test_the_bound_is_that_of_the_prediction() -> None:
    work = causal_prefill()
    attention, gate = 1000 * ATTENTION_FLOPS, GATE_FLOPS
    assert (work.flops, work.skippable_flops) == (attention + gate, attention * 63 // 128)
    run = join_run([PAGE], [made_costs(work)], DEVICE, "float32")
    (found,) = [stage.efficiency for stage in run.stages if stage.name == "prefill"]
    predicted = stage_time(work, tuple(work.kernels.items()), DataSheetRates(DEVICE))
    assert found is not None and found.lower_bound_s == predicted.lower_bound_s
    assert found.lower_bound_s == pytest.approx(attention * 65 / 128 / 1e12 + gate / 2e12)
    assert found.skippable_flops == work.skippable_flops


def test_half_of_a_causal_attention_may_be_skipped_without_breaking_the_peak() -> None:
    """1.07 GFLOP in 1 ms of a peak of 1 TFLOP/s: an MFU of 1.07 by convention, and 0.58 of what must be done."""
    page = made_page(made_pass(20, 1, (3, 5)))
    run = join_run([page], [made_costs(causal_prefill())], DEVICE, "float32")
    (found,) = [stage.efficiency for stage in run.stages if stage.name == "prefill"]
    assert found is not None and found.mfu is not None and 1.0 < found.mfu < 1.2


def test_a_run_faster_than_the_device_is_refused() -> None:
    greedy = made_costs(made_work("sam", 10**14, 10**8))
    with pytest.raises(PerfOptError, match="MFU"):
        join_run([PAGE], [greedy], DEVICE, "float32")


def test_a_decode_faster_than_its_bytes_is_refused() -> None:
    heavy = made_costs(made_work("decode", 10**6, 10**9, 2 * 10**9))  # a step takes 10 ms at least, and took 5
    with pytest.raises(PerfOptError, match="decode"):
        join_run([PAGE], [heavy], DEVICE, "float32")


@pytest.mark.parametrize(
    ("sam_ms", "gap_ms"),
    [(83, 16), (83, -1), (983, 64), (983, -1)],  # all other stages take 17 ms: 10 ms and 5 % of the pass are allowed
)
def test_stages_that_do_not_add_up_are_refused_however_short_the_pass(sam_ms: int, gap_ms: int) -> None:
    with pytest.raises(PerfOptError, match="do not add up"):
        join_run([made_page(made_pass(sam_ms, 5, (3, 3), gap_ms=gap_ms))], [None], None, "float32")


@pytest.mark.parametrize(("sam_ms", "gap_ms"), [(83, 0), (83, 15), (983, 63)])
def test_what_timers_and_one_interruption_take_is_allowed(sam_ms: int, gap_ms: int) -> None:
    run = join_run([made_page(made_pass(sam_ms, 5, (3, 3), gap_ms=gap_ms))], [None], None, "float32")
    assert run.unattributed_ns == gap_ms * MS


def test_one_disturbed_pass_is_no_missing_stage() -> None:
    disturbed = made_pass(800, 300, (3, 5), gap_ms=90)
    run = join_run([made_page(disturbed, made_pass(800, 300, (3, 5)))], [None], None, "float32")
    assert run.wall.samples == 2


def test_a_run_without_decode_has_no_step() -> None:
    run = join_run([made_page(made_pass(20, 10, ()))], [None], None, "float32")
    assert run.step is None

"""Times and costs become figures by one division each."""

from __future__ import annotations

import pytest

from llm_perf_opt.analyses.profile import join_run
from llm_perf_opt.errors import PerfOptError
from tests.analyses.profile.made_runs import DEVICE, MS, made_costs, made_page, made_pass, made_work

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


def test_a_run_faster_than_the_device_is_refused() -> None:
    greedy = made_costs(made_work("sam", 10**14, 10**8))
    with pytest.raises(PerfOptError, match="MFU"):
        join_run([PAGE], [greedy], DEVICE, "float32")


def test_a_decode_faster_than_its_bytes_is_refused() -> None:
    heavy = made_costs(made_work("decode", 10**6, 10**9, 2 * 10**9))  # a step takes 10 ms at least, and took 5
    with pytest.raises(PerfOptError, match="decode"):
        join_run([PAGE], [heavy], DEVICE, "float32")


def test_stages_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(PerfOptError, match="do not add up"):
        join_run([made_page(made_pass(800, 300, (3, 5), gap_ms=90))], [None], None, "float32")
    with pytest.raises(PerfOptError, match="do not add up"):
        join_run([made_page(made_pass(20, 10, (3, 5), gap_ms=-1))], [None], None, "float32")


def test_one_disturbed_pass_is_no_missing_stage() -> None:
    disturbed = made_pass(800, 300, (3, 5), gap_ms=90)
    run = join_run([made_page(disturbed, made_pass(800, 300, (3, 5)))], [None], None, "float32")
    assert run.wall.samples == 2


def test_a_run_without_decode_has_no_step() -> None:
    run = join_run([made_page(made_pass(20, 10, ()))], [None], None, "float32")
    assert run.step is None

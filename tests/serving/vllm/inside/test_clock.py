"""The virtual clock: stages of a pipeline and results that are due, with hand-worked times."""

from __future__ import annotations

from llm_perf_opt.serving.engine_process.clock import Clock, Stages
from llm_perf_opt.serving.vllm.inside.launches import Due


def test_to_wait_for_a_result_moves_the_clock_to_its_time_and_never_back() -> None:
    clock = Clock()
    late, early = Due(clock, 3.0, "late"), Due(clock, 1.0, "early")
    assert not late.done()
    assert late.result() == "late"
    assert early.result() == "early"
    assert clock.now == 3.0
    assert late.done() and early.done()


def test_one_stage_takes_one_step_after_another() -> None:
    stages = Stages(1)
    assert stages.launch(0.0, 2.0) == (0.0, 2.0)
    assert stages.launch(1.0, 2.0) == (2.0, 4.0)  # launched early, it waits for the device
    assert stages.launch(9.0, 1.0) == (9.0, 10.0)


def test_steps_of_a_pipeline_overlap() -> None:
    """Three stages of 1 s, launched at once: each step begins when the first stage is free."""
    stages = Stages(3)
    assert [stages.launch(0.0, 1.0) for _ in range(3)] == [(0.0, 3.0), (1.0, 4.0), (2.0, 5.0)]


def test_a_long_step_holds_up_the_short_one_behind_it() -> None:
    """Stages of 5 s, then of 1 s: the second step enters at 5 s, waits for the last stage until 10 s."""
    stages = Stages(2)
    assert stages.launch(0.0, 5.0) == (0.0, 10.0)
    assert stages.launch(0.0, 1.0) == (5.0, 11.0)

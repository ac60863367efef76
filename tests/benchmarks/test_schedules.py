"""A schedule is a replay without its times: priced by the table that made it, it gives the times of the replay."""

from __future__ import annotations

import pytest

from benchmarks.serving_replay.field_records import schedule_of, times_of
from llm_perf_opt.serving.requests import AnsweredRequests, EngineSteps, Replayed
from llm_perf_opt.timing.step.step_table import Curve, RankStep, StepTable, Surface

NOTHING = Surface(across=(1, 8), along=(1, 8), seconds=((0.0, 0.0), (0.0, 0.0)))


def table(seconds: float) -> StepTable:
    """Every step takes as long."""
    flat = Curve(at=(1, 8), seconds=(seconds, seconds))
    return StepTable(tokens=flat, head=Curve(at=(1,), seconds=(0.0,)), decoding=NOTHING, prompts=NOTHING)


def replayed() -> Replayed:
    """One client, two requests of two tokens each; four steps of a second, the second of which stands for three."""
    starts, lengths = [0.0, 1.0, 4.0, 5.0], [1.0, 3.0, 1.0, 1.0]
    return Replayed(
        requests=AnsweredRequests(
            ids=["0", "1"],
            arrival_s=[0.0, 4.0],
            scheduled_s=[0.0, 4.0],
            first_token_s=[1.0, 5.0],
            last_token_s=[4.0, 6.0],
            prompt_tokens=[4, 4],
            output_tokens=[4, 2],
            cached_tokens=[0, 0],
            preemptions=[0, 1],
        ),
        steps=EngineSteps(
            start_s=starts,
            duration_s=lengths,
            decoding=[0, 1, 0, 1],
            prompt_tokens=[4, 0, 4, 0],
            running=[1] * 4,
            waiting=[0] * 4,
            cache_use=[0.1] * 4,
        ),
        seconds=6.0,
        busy_s=6.0,
        batches=[
            RankStep(0, 0, [(4, 0)]),
            RankStep(1, 4, (), 0, 2),
            RankStep(0, 0, [(4, 0)]),
            RankStep(1, 4),
        ],
    )


def test_the_table_that_made_a_schedule_gives_its_times_again() -> None:
    schedule = schedule_of(replayed())
    assert (schedule.came, schedule.scheduled, schedule.first, schedule.last) == ([0, 2], [0, 2], [1, 3], [2, 4])
    times = times_of(schedule, table(1.0))
    assert times.e2e == pytest.approx([4.0, 2.0])
    assert times.ttft == pytest.approx([1.0, 1.0])
    assert times.tpot == pytest.approx([1.0, 1.0])
    assert times.queued == [0.0, 0.0]
    assert schedule.preemptions == 1


def test_steps_of_another_table_take_as_long_as_it_says() -> None:
    assert times_of(schedule_of(replayed()), table(0.25)).e2e == pytest.approx([1.0, 0.5])

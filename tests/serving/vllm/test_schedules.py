"""A replay has the schedule of vLLM's real engine: recorded runs, step by step, and every time of every request.

Where vLLM's environment is, the recorded runs of its version are replayed. Everywhere, what the last comparison left
is held against the recorded runs, and these against what any engine must do.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.vllm_schedules.cases import CASES, FOLDER
from benchmarks.vllm_schedules.recorded import RecordedSchedule, compare, digests, read_compared
from benchmarks.vllm_schedules.recorded import read as recorded_in
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.serving.engine_process.clock import Stages
from llm_perf_opt.serving.engine_process.environment import EngineEnvironment, find
from llm_perf_opt.serving.engine_process.process import EngineProcess

read = cache(recorded_in)
FILES = sorted(FOLDER.glob("0.*/*.json"))


def _id(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def _waits_for_results(path: Path) -> bool:
    """Whether a step begins when the one before has ended: elsewhere launches depend on results not there yet."""
    settings = CASES[path.stem].settings()
    return settings.plan.pp == 1 and not settings.more["async_scheduling"]


EVERY = pytest.mark.parametrize("path", FILES, ids=_id)
ONE_BY_ONE = pytest.mark.parametrize("path", filter(_waits_for_results, FILES), ids=_id)


def counts(recorded: RecordedSchedule) -> list[tuple[int, ...]]:
    """Of each step: sequences, tokens, finished, preempted."""
    return [tuple(map(int, line.split()[:4])) for line in recorded.steps]


@EVERY
def test_the_replay_that_was_compared_last_had_the_recorded_schedule(path: Path) -> None:
    assert read_compared(path.parent.name)[path.stem] == digests(read(path))


@EVERY
def test_a_recorded_run_is_of_the_case_that_its_name_says(path: Path) -> None:
    recorded, case = read(path), CASES[path.stem]
    assert recorded.settings == case.settings()
    assert [one.arrival_s for one in recorded.traffic.requests] == [one.arrival_s for one in case.traffic().requests]


@EVERY
def test_every_step_with_tokens_has_its_duration(path: Path) -> None:
    recorded = read(path)
    assert sum(tokens > 0 for _, tokens, _, _ in counts(recorded)) == len(recorded.step_seconds)


@ONE_BY_ONE
def test_tokens_come_at_ends_of_steps_by_our_clock(path: Path) -> None:
    """The ends of steps are worked out by the clock of replays from durations; it waits where nobody is inside."""
    recorded = read(path)
    stages, now_s, ends = Stages(1), 0.0, set()
    inside_from = sorted(recorded.answered.scheduled_s)
    for seconds in recorded.step_seconds:
        if now_s not in inside_from and not any(
            begin <= now_s < end
            for begin, end in zip(recorded.answered.scheduled_s, recorded.answered.last_token_s, strict=True)
        ):
            now_s = min(begin for begin in inside_from if begin > now_s)
        _, now_s = stages.launch(now_s, seconds)
        ends.add(now_s)
    assert set(recorded.answered.first_token_s) <= ends
    assert set(recorded.answered.last_token_s) <= ends


@EVERY
def test_a_request_comes_then_is_scheduled_then_has_its_tokens(path: Path) -> None:
    answered = read(path).answered
    rows = zip(answered.arrival_s, answered.scheduled_s, answered.first_token_s, answered.last_token_s, strict=True)
    assert all(earlier <= later for row in rows for earlier, later in pairwise(row))
    assert answered.output_tokens == [request.output_tokens for request in read(path).traffic.requests]


def test_every_token_is_computed_once_where_nothing_is_dropped() -> None:
    """A prompt but for what the prefix cache had, and each token of the answer but the last, which nobody reads.

    What is preempted is computed again, and drafts may be wrong: such runs do not count.
    """
    whole = [one for one in map(read, FILES) if not any(one.answered.preemptions) and not one.tokens]
    assert len(whole) > 10
    for recorded in whole:
        answered = recorded.answered
        given = sum(answered.prompt_tokens) - sum(answered.cached_tokens)
        needed = given + sum(answered.output_tokens) - len(answered.ids)
        assert sum(tokens for _, tokens, _, _ in counts(recorded)) == needed


def environment_or_reason() -> EngineEnvironment | str:
    try:
        return find()
    except PerfOptError as error:
        return f"{error.what} {error.fix}"


@pytest.mark.slow
def test_a_replay_repeats_every_step_of_the_real_engine() -> None:
    environment = environment_or_reason()
    if isinstance(environment, str):
        pytest.skip(environment)
    files = [file for file in FILES if file.parent.name == environment.release]
    if not files:
        pytest.skip(f"no runs of vLLM {environment.version} are recorded")
    with EngineProcess(environment) as process:
        found = [compare(read(file), process) for file in files]
    assert {one.case: one.first_difference for one in found if one.first_difference is not None} == {}
    assert {one.case: one.largest_time_error_s for one in found if one.largest_time_error_s} == {}

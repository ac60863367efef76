"""A replay has the schedule of SGLang's own server loop: recorded runs, step by step, and every time of every request.

Where SGLang's environment is, the recorded runs are replayed. Everywhere, what the last comparison left is held
against the recorded runs, and these against what any engine must do.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.sglang_schedules.cases import CASES, FOLDER
from benchmarks.vllm_schedules.recorded import RecordedSchedule, compare, digests, read_compared
from benchmarks.vllm_schedules.recorded import read as recorded_in
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.serving.engine_process.environment import SGLANG, checked_versions, find
from llm_perf_opt.serving.engine_process.process import EngineProcess

read = cache(recorded_in)
FILES = sorted(FOLDER.glob("0.*/*.json"))
EVERY = pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])


def counts(recorded: RecordedSchedule) -> list[tuple[int, ...]]:
    """Of each step: sequences, tokens, running, waiting."""
    return [tuple(map(int, line.split()[:4])) for line in recorded.steps]


def test_every_checked_version_has_its_recorded_runs() -> None:
    for checked in checked_versions(SGLANG):
        recorded = [read(file) for file in FILES if file.parent.name == checked.version]
        assert {one.case for one in recorded} == CASES.keys()
        assert len(recorded) == checked.cases
        assert sum(len(one.steps) for one in recorded) == checked.steps


@EVERY
def test_the_replay_that_was_compared_last_had_the_recorded_schedule(path: Path) -> None:
    assert read_compared(path.parent.name, FOLDER)[path.stem] == digests(read(path))


@EVERY
def test_a_recorded_run_is_of_the_case_that_its_name_says(path: Path) -> None:
    recorded, case = read(path), CASES[path.stem]
    assert recorded.settings == case.settings()
    assert {(one.id, one.prompt_tokens, one.output_tokens) for one in recorded.traffic.requests} == {
        (one.id, one.prompt_tokens, one.output_tokens) for one in case.traffic().requests
    }
    assert len(recorded.step_seconds) == len(recorded.steps)


@EVERY
def test_a_request_comes_then_is_scheduled_then_has_its_tokens(path: Path) -> None:
    answered = read(path).answered
    rows = zip(answered.arrival_s, answered.scheduled_s, answered.first_token_s, answered.last_token_s, strict=True)
    assert all(earlier <= later for row in rows for earlier, later in pairwise(row))
    assert answered.output_tokens == [request.output_tokens for request in read(path).traffic.requests]


@EVERY
def test_no_step_has_more_sequences_or_tokens_than_its_limits(path: Path) -> None:
    recorded = read(path)
    limits = recorded.settings
    assert limits.max_sequences is not None and limits.max_batched_tokens is not None
    for sequences, tokens, _, _ in counts(recorded):
        assert sequences <= limits.max_sequences
        assert tokens <= max(limits.max_batched_tokens, limits.max_sequences)


def test_the_cases_have_what_their_names_say() -> None:
    """Retracted requests, hits in the prefix cache, and none where it is off."""
    by_name = {path.stem: read(path).answered for path in FILES}
    assert all(sum(by_name[name].preemptions) for name in ("retraction", "no-overlap-retraction"))
    assert all(sum(by_name[name].cached_tokens) for name in ("prefix", "prefix-tight", "lpm", "pages"))
    assert not sum(by_name["no-prefix-cache"].cached_tokens)


def test_every_token_is_computed_once_where_nothing_is_retracted_and_batches_wait() -> None:
    """A prompt but for what the prefix cache had, and each token of the answer but the last, which nobody reads."""
    recorded = read(FOLDER / "0.5.23" / "no-overlap.json")
    answered = recorded.answered
    needed = sum(answered.prompt_tokens) - sum(answered.cached_tokens) + sum(answered.output_tokens)
    assert not sum(answered.preemptions)
    assert sum(tokens for _, tokens, _, _ in counts(recorded)) == needed - len(answered.ids)


@pytest.mark.slow
@EVERY
def test_a_replay_repeats_every_step_of_the_real_loop(path: Path) -> None:
    try:
        environment = find(SGLANG)
    except PerfOptError as error:
        pytest.skip(f"{error.what} {error.fix}")
    if path.parent.name != environment.release:
        pytest.skip(f"no SGLang {path.parent.name}: {environment.version} is installed")
    with EngineProcess(environment) as process:
        found = compare(read(path), process)
    assert found.first_difference is None
    assert found.largest_time_error_s == 0

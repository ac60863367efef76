"""The list of checked versions says what the recorded runs hold."""

from __future__ import annotations

from benchmarks.vllm_schedules.cases import CASES, FOLDER
from benchmarks.vllm_schedules.recorded import read
from llm_perf_opt.serving.engine_process.environment import checked_versions, is_checked


def test_every_checked_version_has_its_recorded_runs() -> None:
    for checked in checked_versions():
        recorded = [read(file) for file in (FOLDER / checked.version).glob("*.json")]
        assert {one.version.partition("+")[0] for one in recorded} == {checked.version}
        assert len(recorded) == checked.cases
        assert sum(len(one.steps) for one in recorded) == checked.steps


def test_the_newest_has_every_case_and_enough_steps() -> None:
    newest = checked_versions()[0]
    assert {file.stem for file in (FOLDER / newest.version).glob("*.json")} == CASES.keys()
    assert newest.steps >= 3000
    assert not newest.not_checked


def test_a_version_that_nobody_compared_is_not_checked() -> None:
    assert is_checked(checked_versions()[0].version)
    assert not is_checked("0.22.1")

"""The page of serving times: tails next to every median, and a headline of what was untouched."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.records import MeasuredRun
from benchmarks.serving_times import judgement
from benchmarks.serving_times.estimates import aggregated_runs, is_frozen

PAGE = (Path(__file__).parents[2] / "docs/evidence/serving-times.md").read_text(encoding="utf-8")


def test_tails_are_those_that_90_and_99_of_100_errors_do_not_exceed() -> None:
    """Errors of 1 to 100 %, some of them too short: 50.5 in the median, 90 of them below 91, 99 below 100."""
    errors = [(-1) ** number * number / 100 for number in range(1, 101)]
    assert judgement.tails_of("tpot", errors) == {"tpot": 0.505, "tpot_p90": 0.91, "tpot_p99": 1.0}
    assert judgement.tails_of("tpot", []) == {"tpot": None, "tpot_p90": None, "tpot_p99": None}


def test_the_headline_is_of_records_that_nothing_was_changed_after() -> None:
    headline = re.search(r"\*\*(.*?)\*\*", PAGE)
    assert headline is not None
    assert "14.6 %" in headline[1]
    assert "26.3 %" in headline[1]
    assert "They were opened once, after the last choice: 14.6 % and 26.3 % in the median" in PAGE
    answer = PAGE.split("<!-- begin answer -->")[1].split("<!-- end answer -->")[0]
    today = answer.split("Today")[1]
    share = r"(?:[\d.]+ %|-)"
    assert len(re.findall(rf"[\d.]+ % / {share} / {share}", today)) == 6, "two times, of two sets and of two tools"


def test_no_system_is_named_that_no_record_is_of() -> None:
    frozen: set[str] = {run.device for run in _frozen()}
    assert "b300-sxm" in frozen
    assert "gb300" not in frozen
    assert "GB300" not in PAGE.partition("## Prefill and decode on separate GPUs")[0], "its records are of their own"


def _frozen() -> list[MeasuredRun]:
    return [run for run in aggregated_runs() if is_frozen(run)]

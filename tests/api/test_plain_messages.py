"""Messages say how many in proper words, list everything there is, and name the nearest."""

from __future__ import annotations

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.api.cost import check_sources
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plugins import OUTSIDE_PROFILERS, REPORTERS
from llm_perf_opt.core.units import format_number_of


def test_one_time_and_two_times() -> None:
    assert [format_number_of(count, "time") for count in (0, 1, 2, 1234)] == [
        "0 times",
        "1 time",
        "2 times",
        "1,234 times",
    ]


def test_the_list_of_sources_begins_with_the_count_of_the_trace() -> None:
    assert check_sources(["counted", "fvcore"]) == ("counted", "fvcore")
    with pytest.raises(UsageError) as caught:
        check_sources(["count"])
    assert caught.value.why.startswith("known sources of figures: counted, torch-counter, ")
    assert "counted" in caught.value.fix


def test_the_plural_stands_with_its_noun() -> None:
    for registry, words in (
        (OUTSIDE_PROFILERS, "known profilers of another vendor: "),
        (REPORTERS, "known report formats: "),
    ):
        with pytest.raises(UsageError) as caught:
            registry.check("nothing")
        assert caught.value.why.startswith(words)


@pytest.mark.parametrize(
    ("given", "near"), [("imag", "image="), ("devic", "device="), ("prompt_token", "prompt_tokens=")]
)
def test_an_unknown_keyword_of_trace_gets_the_nearest(given: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"trace takes no '{given}'") as caught:
        lpo.trace("deepseek-ocr-tiny", **{given: 1})
    assert caught.value.fix == f"did you mean {near}?"

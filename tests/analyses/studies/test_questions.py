"""Named questions: phrases with numbers and filters become SQL with parameters."""

from __future__ import annotations

import pytest

from llm_perf_opt.analyses.studies.questions import QUESTIONS, find_question
from llm_perf_opt.core.errors import UsageError


def test_a_phrase_gives_its_numbers_and_filters() -> None:
    found = find_question("Cheapest plan under 12.5ms tpot for llama on h100-sxm")
    assert found.parameters == {"tpot_ms": 12.5, "model": "llama", "device": "h100-sxm"}
    assert "model = $model and device = $device" in found.sql or "device = $device and model = $model" in found.sql


def test_a_filter_is_a_parameter_and_no_text_of_the_query() -> None:
    found = find_question("failures for x'--")
    assert found.parameters == {"model": "x'--"}
    assert "x'--" not in found.sql


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.phrase)
def test_every_question_is_found_by_its_own_phrase(question: object) -> None:
    phrase = question.phrase  # type: ignore[attr-defined]
    for slot in question.slots:  # type: ignore[attr-defined]
        phrase = phrase.replace(f"{{{slot}}}", "7")
    assert find_question(phrase).question is question


def test_an_unknown_phrase_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="cheapest plan under"):
        find_question("which is best?")

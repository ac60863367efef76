"""One question asked of every verb: the same quantity has the same figure, to the last digit, or another name."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.end_to_end.asked_questions import ONE, OVER_ALL, PHASES, Figure, Question, more_questions, questions
from tests.end_to_end.asked_verbs import asked

QUESTIONS, MORE = questions(), more_questions()
OF_A_PHASE = ("flops", "bytes_moved", "weights_bytes", "necessary_flops", "must_be_read_bytes")
BY_DATA_SHEET = ("data_sheet_low_seconds", "data_sheet_high_seconds")
GROUPED = ("int4-g128",)
# A rank's own shard has whole groups, the share of a matrix that was traced whole may end inside one:
# docs/reference/limits.md.
SHARE_OF_GROUPS = ("weights_bytes", "room_bytes", "cache_tokens")
MEASURED = ("low_seconds", "expected_seconds", "high_seconds")


@pytest.mark.parametrize(
    "question",
    [*QUESTIONS, *(pytest.param(question, marks=pytest.mark.breadth) for question in MORE)],
    ids=str,
)
def test_every_verb_says_the_same_of_a_quantity_of_one_name(question: Question) -> None:
    told = asked(question)
    answered = {verb: figures for verb, figures in told.items() if figures is not None}
    if len(answered) < len(told):
        assert answered.keys() <= {"serve"}, "what one verb refuses, all do; an engine spreads a model by its own rules"
        return
    if question.plan == "tp2" and question.run.weights in GROUPED:
        for name in SHARE_OF_GROUPS:
            answered["serve"].pop(("", name), None)
    by_name: dict[tuple[str, str], dict[str, Figure]] = {}
    for verb, figures in answered.items():
        for name, figure in figures.items():
            by_name.setdefault(name, {})[verb] = figure
    assert {name: found for name, found in by_name.items() if len(set(found.values())) > 1} == {}
    shared = Counter({name: len(found) for name, found in by_name.items() if None not in found.values()})
    is_alike = not any(key.startswith(OVER_ALL) for _, key in by_name)
    launches = ("launches",) if question.plan == ONE else ()  # of a plan that an engine runs one verb alone tells them
    is_measured = any(key.endswith("expected_seconds") for _, key in by_name)
    times = ("lower_bound_seconds", *(MEASURED if is_measured else BY_DATA_SHEET))
    wanted = (*OF_A_PHASE, *launches, *(times if is_alike else ()))  # over all stages `study` alone tells times
    assert [(phase, key) for phase in PHASES for key in wanted if shared[phase, key] < 2] == []


def test_there_are_two_hundred_questions_of_every_kind() -> None:
    assert len({*QUESTIONS, *MORE}) == 200
    assert len({question.run.model for question in (*QUESTIONS, *MORE)}) == 25
    assert len(set(QUESTIONS)) == len(QUESTIONS) == 40
    assert {one.run.execution for one in QUESTIONS} == {"eager", "fused"}
    assert len({one.plan for one in (*QUESTIONS, *MORE)}) == 5
    assert sum(one.plan == ONE for one in QUESTIONS) == 32
    assert sum(one.run.global_batch == 1 for one in (*QUESTIONS, *MORE)) > 60
    assert len({one.device for one in QUESTIONS}) > 5
    assert len({(one.run.weights, one.run.cache) for one in QUESTIONS}) > 3

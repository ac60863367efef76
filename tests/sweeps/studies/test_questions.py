"""Named questions: phrases with numbers and filters become SQL with parameters."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.sweeps.studies.questions import QUESTIONS, find_question


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


TIED = ("cost_per_million_requests", "cost_per_million_tokens", "requests_per_s", "tokens_per_s", "tpot_s", "watts")
OCR_STUDY = Path(__file__).parents[3] / "docs" / "data" / "ocr_study"


@pytest.mark.skipif(
    find_spec("duckdb") is None or find_spec("pyarrow") is None, reason="studies need the extra: llm-perf-opt[study]"
)
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.phrase)
def test_equal_points_come_in_one_order_whichever_was_stored_first(question: object) -> None:
    """A real study whose costs and rates are all the same, stored in two orders."""
    from llm_perf_opt.sweeps.studies.parquet_store import StudyStore
    from llm_perf_opt.sweeps.studies.sql import connection

    sql = question.sql.replace("{where}", "true")  # type: ignore[attr-defined]
    numbers = dict.fromkeys(question.slots, 1000000000.0)  # type: ignore[attr-defined]
    found = []
    store = StudyStore(str(OCR_STUDY))
    with connection(store, store.studies()) as opened:
        ties = ", ".join(f"1.0 as {name}" for name in TIED)
        for seed in (1, 2):
            order = f"hash(model || device || weights || global_batch::varchar || '{seed}')"
            opened.execute(
                f"create or replace temp table shuffled as select * replace ({ties}) from points order by {order}"
            )
            found.append(opened.execute(sql.replace("from points", "from shuffled"), numbers).fetchall())
    assert found[0] == found[1]
    assert found[0] or "traffic" in sql or "'failed'" in sql, "a question of which this study has no points"

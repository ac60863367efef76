"""The table that answers first."""

from __future__ import annotations

import pytest

from llm_perf_opt.serving.fit import serving_fit_table
from tests.timing.step.made_deployments import made_cache, made_fit


def test_a_row_has_the_answer_first_and_the_parts_add_up() -> None:
    table = serving_fit_table([made_fit(batch=2, context=1000)])
    row = dict(zip([column.name for column in table.columns], table.rows[0], strict=True))
    assert table.title == "Does it serve 2 sequences of 1,000 tokens?"
    assert (row["devices"], row["serves"], row["largest batch"], row["largest context"]) == ("Made", "yes", 5, 2500)
    assert row["cache asked for"] == 2_000_000
    taken = row["engine weights"], row["working memory"], row["outside PyTorch"], row["room for cache"]
    assert sum(part for part in taken if isinstance(part, int)) == row["share in use"] == 9_000_000


def test_what_is_unknown_is_an_empty_cell() -> None:
    table = serving_fit_table([made_fit(working_bytes=None)])
    assert table.rows[0][1:4] == (None, None, None)


def test_one_table_is_about_one_batch_and_one_context() -> None:
    with pytest.raises(ValueError, match="one batch"):
        serving_fit_table([made_fit(context=1), made_fit(context=2, cache=made_cache())])

"""The disaggregated records that say how many workers there were, and what is read into them."""

from __future__ import annotations

from benchmarks.serving_times.disaggregated import recorded
from benchmarks.serving_times.estimates import is_frozen


def test_the_sets_are_as_the_page_says() -> None:
    records = recorded()
    frozen = [record for record in records if is_frozen(record.run)]
    assert (len(records), len(frozen)) == (274, 88)
    assert {record.run.device for record in frozen if record.run.model != "kimi-k2.5"} == {"gb300"}
    assert all(record.prefills and record.decodes and record.users for record in records)


def test_ranks_have_whole_experts_where_a_slice_would_be_too_thin() -> None:
    plans = [plan for record in recorded() for plan in (record.decode_plan, record.prefill_plan)]
    wide = [plan for plan in plans if plan.attention_dp == 32]
    assert wide
    assert {plan.ep for plan in wide} == {32}
    assert any(plan.ep == 1 and plan.attention_dp == 8 for plan in plans), "256 numbers are thick enough"

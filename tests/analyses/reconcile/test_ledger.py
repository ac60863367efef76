"""Differences between sources: each cause with the arithmetic behind it, and none that swallows a real error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analyses.reconcile import CAUSES, reconcile
from llm_perf_opt.testimony import BlindSpot, Family, Method, OperatorFigure, Testimony, family_of


def said(source: str, operators: dict[str, int], **more: Any) -> Testimony:
    figures = tuple(OperatorFigure(name=name, family=family_of(name), flops=flops) for name, flops in operators.items())
    total = more.pop("flops", sum(operators.values()))
    return Testimony(
        source=source, phase="prefill", stage="sam", method=Method.ISOLATED, flops=total, operators=figures, **more
    )


def blind(cause: str, operator: str, flops: int | None = None) -> BlindSpot:
    return BlindSpot(cause=cause, operator=operator, calls=3, flops=flops)


COUNTED = said("counted", {"aten.linear.default": 800, "aten.scaled_dot_product_attention.default": 200})


def test_two_sources_that_agree_leave_nothing_to_explain() -> None:
    other = said("other", {"aten.addmm": 600, "aten.bmm": 400})
    ledger = reconcile([COUNTED, other])
    assert ledger.entries
    assert not ledger.differences


def test_fused_attention_is_explained_by_exactly_what_another_source_counted_for_it() -> None:
    other = said("torch", {"aten.addmm": 800}, blind_spots=(blind("fused-attention-uncounted", "aten._flash"),))
    (difference,) = reconcile([COUNTED, other]).differences
    assert (difference.family, difference.flops, difference.unexplained_flops) == (Family.ATTENTION, 200, 0)
    assert [part.cause for part in difference.explanations] == ["fused-attention-uncounted"]


def test_a_blind_spot_explains_no_more_than_its_own_size() -> None:
    """The products differ by 50 too; that the source also misses attention is no excuse for it."""
    other = said("torch", {"aten.addmm": 750}, blind_spots=(blind("fused-attention-uncounted", "aten._flash"),))
    (unexplained,) = reconcile([COUNTED, other]).unexplained
    assert (unexplained.family, unexplained.unexplained_flops) == (Family.PRODUCT, 50)


def test_attention_that_a_third_source_lists_as_products_is_still_bounded_by_the_count() -> None:
    closed = said("closed-form", {"matmul": 200, "linear": 800})
    blind_one = said("torch", {"aten.addmm": 800}, blind_spots=(blind("fused-attention-uncounted", "aten._flash"),))
    assert not reconcile([COUNTED, closed, blind_one]).unexplained
    wrong = said("closed-form", {"matmul": 201, "linear": 800})
    assert reconcile([COUNTED, wrong, blind_one]).unexplained


def test_several_fused_ops_share_one_gap() -> None:
    spots = (blind("fused-attention-uncounted", "aten._flash"), blind("fused-attention-uncounted", "aten._efficient"))
    other = said("torch", {"aten.addmm": 800}, blind_spots=spots)
    (difference,) = reconcile([COUNTED, other]).differences
    assert sum(part.flops for part in difference.explanations) == 200


def test_half_of_everything_is_multiply_adds() -> None:
    other = said("macs", {}, flops=500)
    (difference,) = reconcile([COUNTED, other]).differences
    assert [part.cause for part in difference.explanations] == ["mac-not-flop"]


def test_half_of_the_attention_alone_is_a_causal_mask() -> None:
    other = said("causal", {"linear": 800, "scaled_dot_product_attention": 100})
    (difference,) = reconcile([COUNTED, other]).differences
    assert [part.cause for part in difference.explanations] == ["causal-half"]


def test_the_head_on_one_position_is_recognised_by_the_length_of_the_sequence() -> None:
    whole = said("counted", {"head.linear": 100 * 7, "body.conv": 50})
    last = said("last", {"head.linear": 7, "body.conv": 50})
    (difference,) = reconcile([whole, last], context_tokens=100).differences
    assert [part.cause for part in difference.explanations] == ["head-on-all-positions"]
    assert reconcile([whole, last], context_tokens=99).unexplained


def test_work_that_a_source_adds_is_taken_off_the_larger_side() -> None:
    more = said(
        "fvcore",
        {"linear": 800, "matmul": 200, "layer_norm": 30},
        blind_spots=(blind("elementwise-counted", "layer_norm", 30),),
    )
    entries = {entry.family: entry for entry in reconcile([COUNTED, more]).differences}
    assert (entries[Family.OTHER].flops, entries[Family.OTHER].unexplained_flops) == (-30, 0)


def test_a_blind_spot_of_both_sources_explains_nothing_between_them() -> None:
    spot = blind("fused-attention-uncounted", "aten._flash")
    one = said("torch", {"aten.addmm": 800}, blind_spots=(spot,))
    two = said("fvcore", {"aten.addmm": 790}, blind_spots=(spot,))
    entries = {(entry.left, entry.right): entry for entry in reconcile([COUNTED, one, two]).unexplained}
    assert entries["torch", "fvcore"].unexplained_flops == 10


def test_a_blind_spot_that_is_larger_than_the_gap_leaves_the_rest_unexplained() -> None:
    other = said(
        "other",
        {"aten.addmm": 790, "scaled_dot_product_attention": 200},
        blind_spots=(blind("shared-module", "linear", 30),),
    )
    (entry,) = reconcile([COUNTED, other]).unexplained
    assert (entry.flops, entry.unexplained_flops) == (10, -20)


def test_a_source_that_failed_is_missing_with_its_reason_and_compared_with_nobody() -> None:
    failed = Testimony(source="fvcore", phase="prefill", stage="sam", method=Method.ISOLATED, failure="not installed")
    ledger = reconcile([COUNTED, failed])
    assert ledger.missing == (("fvcore", "prefill", "sam", "not installed"),)
    assert not ledger.entries


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_says_what_it_means(cause: str) -> None:
    assert len(CAUSES[cause].meaning.split()) > 3


@given(st.integers(0, 10**15), st.integers(0, 10**15))
def test_without_a_cause_every_difference_but_a_half_is_unexplained(left: int, right: int) -> None:
    ledger = reconcile([said("a", {"linear": left}), said("b", {"linear": right})])
    is_half = left == 2 * right or right == 2 * left
    assert bool(ledger.unexplained) == (left != right and not is_half)

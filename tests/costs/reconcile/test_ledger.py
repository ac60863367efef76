"""Differences between sources: each cause with the arithmetic behind it, and none that swallows a real error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.core.source_figures import BlindSpot, Method, OperatorFigure, SourceFigures, WorkFamily, family_of
from llm_perf_opt.costs.reconcile import CAUSES, reconcile


def said(source: str, operators: dict[str, int], **more: Any) -> SourceFigures:
    figures = tuple(OperatorFigure(name=name, family=family_of(name), flops=flops) for name, flops in operators.items())
    total = more.pop("flops", sum(operators.values()))
    return SourceFigures(
        source=source, phase="prefill", stage="sam", method=Method.ISOLATED, flops=total, operators=figures, **more
    )


def blind(cause: str, operator: str, flops: int | None = None, *, is_bound: bool = False) -> BlindSpot:
    return BlindSpot(cause=cause, operator=operator, calls=3, flops=flops, is_bound=is_bound)


COUNTED = said("counted", {"aten.linear.default": 800, "aten.scaled_dot_product_attention.default": 200})


def test_two_sources_that_agree_leave_nothing_to_explain() -> None:
    other = said("other", {"aten.addmm": 600, "aten.bmm": 400})
    ledger = reconcile([COUNTED, other])
    assert ledger.entries
    assert not ledger.differences


def test_fused_attention_is_explained_by_exactly_what_another_source_counted_for_it() -> None:
    other = said("torch", {"aten.addmm": 800}, blind_spots=(blind("fused-attention-uncounted", "aten._flash"),))
    (difference,) = reconcile([COUNTED, other]).differences
    assert (difference.family, difference.flops, difference.unexplained_flops) == (WorkFamily.ATTENTION, 200, 0)
    assert [part.cause for part in difference.explanations] == ["fused-attention-uncounted"]


def test_a_blind_spot_explains_no_more_than_its_own_size() -> None:
    """The matmuls differ by 50 too; that the source also misses attention is no excuse for it."""
    other = said("torch", {"aten.addmm": 750}, blind_spots=(blind("fused-attention-uncounted", "aten._flash"),))
    (unexplained,) = reconcile([COUNTED, other]).unexplained
    assert (unexplained.family, unexplained.unexplained_flops) == (WorkFamily.MATMUL, 50)


def test_attention_that_a_third_source_lists_as_matmuls_is_still_bounded_by_the_count() -> None:
    closed = said("closed-form", {"matmul": 200, "linear": 800})
    blind_one = said("torch", {"aten.addmm": 800}, blind_spots=(blind("fused-attention-uncounted", "aten._flash"),))
    assert not reconcile([COUNTED, closed, blind_one]).unexplained
    wrong = said("closed-form", {"matmul": 201, "linear": 800})
    assert reconcile([COUNTED, wrong, blind_one]).unexplained


def test_attention_in_matmuls_is_held_against_fused_attention_also_where_experts_are_missing() -> None:
    ours = said("counted", {"linear": 800, "scaled_dot_product_attention": 200, "_grouped_mm": 500})
    spot = blind("grouped-matmul-uncounted", "aten._grouped_mm")
    other = said("torch", {"aten.addmm": 800, "aten.bmm": 200}, blind_spots=(spot,))
    ledger = reconcile([ours, other])
    assert [(entry.family, entry.flops) for entry in ledger.differences] == [(WorkFamily.GROUPED, 500)]
    assert not ledger.unexplained
    wrong = said("torch", {"aten.addmm": 800, "aten.bmm": 190}, blind_spots=(spot,))
    (entry,) = reconcile([ours, wrong]).unexplained_flops
    assert (entry.family, entry.unexplained_flops) == (WorkFamily.MATMUL, 10)


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


def test_a_causal_half_may_be_off_by_one_percent_of_itself_and_no_more() -> None:
    """Of 2,000 FLOPs the half is 1,000, so that 10 may stay over."""
    whole = said("counted", {"scaled_dot_product_attention": 2000})
    assert not reconcile([whole, said("causal", {"scaled_dot_product_attention": 1010})]).unexplained
    assert reconcile([whole, said("causal", {"scaled_dot_product_attention": 1011})]).unexplained


def test_a_tiny_op_without_a_formula_excuses_its_bound_and_nothing_else() -> None:
    closed = said("closed-form", {"linear": 1000})
    counted = said("counted", {"linear": 10}, blind_spots=(blind("op-without-formula", "custom", 5, is_bound=True),))
    (entry,) = reconcile([closed, counted]).unexplained_flops
    assert [part.flops for part in entry.explanations] == [5]
    assert (entry.flops, entry.unexplained_flops) == (990, 985)


def test_an_op_below_its_bound_is_explained_and_one_below_its_known_figure_is_not() -> None:
    closed = said("closed-form", {"linear": 1000})
    bounded = blind("op-without-formula", "custom", 40, is_bound=True)
    assert not reconcile([closed, said("counted", {"linear": 970}, blind_spots=(bounded,))]).unexplained
    known = blind("op-without-formula", "aten::lstm", 40)
    (entry,) = reconcile([closed, said("fvcore", {"linear": 970}, blind_spots=(known,))]).unexplained_flops
    assert entry.unexplained_flops == -10


def test_one_bound_does_not_excuse_every_family_anew() -> None:
    closed = said("closed-form", {"linear": 100, "conv": 100})
    spot = blind("op-without-formula", "custom", 5, is_bound=True)
    counted = said("counted", {"linear": 95, "conv": 95}, blind_spots=(spot,))
    (entry,) = reconcile([closed, counted]).unexplained_flops
    assert (entry.family, entry.flops, entry.unexplained_flops) == (None, 10, 5)


def test_tokens_that_went_to_other_experts_account_for_five_percent_of_the_matmuls_at_most() -> None:
    balanced = said("torch", {"linear": 1000, "conv": 100}, routing="balanced")
    one = said("counted", {"linear": 960, "conv": 100}, routing="one")
    (entry,) = reconcile([balanced, one]).differences
    assert [(part.cause, part.flops) for part in entry.explanations] == [("routing", 40)]
    assert entry.unexplained_flops == 0
    far = said("counted", {"linear": 900, "conv": 100}, routing="one")
    (entry,) = reconcile([balanced, far]).unexplained_flops
    assert entry.unexplained_flops == 50


@pytest.mark.parametrize("routing", ["balanced", None])
def test_without_different_policies_there_is_no_routing_to_blame(routing: str | None) -> None:
    balanced = said("torch", {"linear": 1000}, routing="balanced")
    (entry,) = reconcile([balanced, said("counted", {"linear": 990}, routing=routing)]).unexplained_flops
    assert entry.explanations == ()


def test_a_convolution_is_no_work_of_experts() -> None:
    left, right = said("a", {"conv": 1000}, routing="balanced"), said("b", {"conv": 990}, routing="one")
    assert reconcile([left, right]).unexplained


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
    assert (entries[WorkFamily.OTHER].flops, entries[WorkFamily.OTHER].unexplained_flops) == (-30, 0)


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
        blind_spots=(blind("broadcast-uncounted", "linear", 30),),
    )
    (entry,) = reconcile([COUNTED, other]).unexplained
    assert (entry.flops, entry.unexplained_flops) == (10, -20)


def test_a_source_that_failed_is_missing_with_its_reason_and_compared_with_nobody() -> None:
    failed = SourceFigures(
        source="fvcore", phase="prefill", stage="sam", method=Method.ISOLATED, failure="not installed"
    )
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


def test_operators_that_do_not_add_up_to_the_stage_are_compared_as_a_whole() -> None:
    """Of 1,100 FLOPs only 700 have an operator: the family of the others is not known."""
    partial = said("other", {"aten.addmm": 700}, flops=1100)
    (entry,) = reconcile([COUNTED, partial]).entries
    assert (entry.family, entry.left_flops, entry.right_flops) == (None, 1000, 1100)

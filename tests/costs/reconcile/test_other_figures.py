"""Figures other than FLOPs: two sources that differ need a cause here too."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.core.source_figures import BlindSpot, Method, OperatorFigure, SourceFigures, family_of
from llm_perf_opt.costs.reconcile import CAUSES, FIGURES, FigureDifference, reconcile


def said(source: str, activations_by_operator: dict[str, int] | None = None, **figures: Any) -> SourceFigures:
    operators = tuple(
        OperatorFigure(name=name, family=family_of(name), flops=1, activations=elements)
        for name, elements in (activations_by_operator or {}).items()
    )
    return SourceFigures(
        source=source, phase="prefill", stage="sam", method=Method.ISOLATED, operators=operators, **figures
    )


def only(left: SourceFigures, right: SourceFigures) -> FigureDifference:
    (found,) = reconcile([left, right]).figures
    return found


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_that_two_sources_give_differently_is_unexplained(figure: str) -> None:
    ledger = reconcile([said("counted", **{figure: 7}), said("closed-form", **{figure: 5})])
    (entry,) = ledger.unexplained_figures
    assert (entry.figure, entry.left_value, entry.right_value, entry.difference) == (figure, 7, 5, 2)
    assert ledger.unexplained == (entry,)


@pytest.mark.parametrize("figure", FIGURES)
def test_two_that_agree_are_an_entry_and_one_alone_is_none(figure: str) -> None:
    entry = only(said("counted", **{figure: 7}), said("closed-form", **{figure: 7}))
    assert not entry.is_unexplained
    assert not reconcile([said("counted", **{figure: 7}), said("closed-form")]).figures


def test_a_source_that_failed_is_compared_with_nobody() -> None:
    assert not reconcile([said("counted", parameters=7), said("other", parameters=5, failure="no ops")]).figures


@pytest.mark.parametrize(("figure", "cause"), [("active_parameters", "routing"), ("parameters", None)])
def test_other_experts_explain_weights_in_use_and_not_how_many_there_are(figure: str, cause: str | None) -> None:
    entry = only(said("counted", routing="one", **{figure: 7}), said("closed-form", routing="balanced", **{figure: 9}))
    assert entry.cause == cause
    assert cause is None or entry.detail == "counted one, closed-form balanced"


@pytest.mark.parametrize(
    ("cause", "operator"),
    [
        ("op-without-formula", "aten::lstm"),
        ("grouped-matmul-uncounted", "aten::_grouped_mm"),
        ("outside-isolated-modules", "aten.mm"),
    ],
)
def test_what_an_op_puts_out_that_a_source_leaves_out_is_not_in_its_activations(cause: str, operator: str) -> None:
    spot = BlindSpot(cause=cause, operator=operator, calls=1)
    lists = {"aten.conv2d.default": 100, f"aten.{operator.split(':')[-1].split('.')[-1]}.default": 30}
    counted = said("counted", lists, activations=130)
    assert only(counted, said("fvcore", activations=100, blind_spots=(spot,))).cause == cause
    assert cause in CAUSES
    assert only(counted, said("fvcore", activations=99, blind_spots=(spot,))).is_unexplained


@pytest.mark.parametrize("cause", ["rounded-up", "elementwise-counted", "broadcast-uncounted"])
def test_a_wrong_price_does_not_excuse_a_wrong_number_of_elements(cause: str) -> None:
    spot = BlindSpot(cause=cause, operator="aten::einsum", calls=1, flops=3)
    counted = said("counted", {"aten.einsum.default": 30}, activations=30)
    assert only(counted, said("fvcore", activations=20, blind_spots=(spot,))).is_unexplained

"""What one source alone gives is listed as such, and a difference over it is never called explained."""

from __future__ import annotations

from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.costs.reconcile import reconcile
from tests.costs.reconcile.test_ledger import blind, said

OURS = said("counted", {"linear": 800, "_grouped_mm": 500})


def single(*source_figures: object) -> set[tuple[str, WorkFamily | None, str]]:
    return {(found.figure, found.family, found.source) for found in reconcile(source_figures).single}  # type: ignore[arg-type]


def test_a_figure_that_a_source_left_out_has_one_source() -> None:
    """Also where it knows how much: a size that fills a gap is no count."""
    for size in (None, 500):
        blind_one = said(
            "fvcore", {"addmm": 800}, blind_spots=(blind("grouped-matmul-uncounted", "_grouped_mm", size),)
        )
        assert single(OURS, blind_one) == {("flops", WorkFamily.GROUPED, "counted")}
        (entry,) = reconcile([OURS, blind_one]).differences
        assert (entry.family, entry.one_source) == (WorkFamily.GROUPED, "counted")


def test_a_second_source_takes_it_off_the_list_whether_it_runs_them_fused_or_as_matmuls() -> None:
    blind_one = said("fvcore", {"addmm": 800}, blind_spots=(blind("grouped-matmul-uncounted", "_grouped_mm", 500),))
    for other in (said("torch", {"addmm": 800, "_grouped_mm": 500}), said("torch", {"mm": 1300})):
        assert single(OURS, blind_one, other) == set()
        ledger = reconcile([OURS, blind_one, other])
        assert {entry.one_source for entry in ledger.differences} == {None}


def test_a_difference_over_the_whole_stage_names_the_one_source_too() -> None:
    known = blind(
        "op-without-formula", "aten::lstm", 40
    )  # it may be in any family, so the stage is compared as a whole
    spots = (known, blind("grouped-matmul-uncounted", "_grouped_mm", 500))
    (entry,) = reconcile([OURS, said("fvcore", {"addmm": 760}, blind_spots=spots)]).differences
    assert (entry.family, entry.unexplained_flops, entry.one_source) == (None, 0, "counted")


def test_a_source_without_flops_bears_none_out() -> None:
    bytes_only = said("byte-counter", {}, flops=None, bytes_moved=7)
    assert single(OURS, bytes_only) == {
        ("flops", WorkFamily.MATMUL, "counted"),
        ("flops", WorkFamily.GROUPED, "counted"),
        ("bytes_moved", None, "byte-counter"),
    }


def test_an_op_of_unknown_size_may_hide_any_operator() -> None:
    whole = said("closed-form", {"linear": 800})
    vague = said("torch", {"addmm": 700}, blind_spots=(blind("op-without-formula", "vendor.fused"),))
    assert single(whole, vague) == {("flops", WorkFamily.MATMUL, "closed-form")}
    exact = said("torch", {"addmm": 800}, blind_spots=(blind("op-without-formula", "vendor.scan", 0),))
    assert single(whole, exact) == set()


def test_other_figures_with_one_source_are_listed_and_those_with_two_are_not() -> None:
    left, right = said("a", {"mm": 1}, parameters=3, bytes_moved=5), said("b", {"mm": 1}, parameters=3)
    assert single(left, right) == {("bytes_moved", None, "a")}

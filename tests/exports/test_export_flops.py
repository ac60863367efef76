"""Where the FLOPs of a part differ between sources: which causes are claimed, and what has none."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.export_outcome import Check, CheckOutcome, GraphOp, PartOutcome, Verdict
from llm_perf_opt.core.report import Level
from llm_perf_opt.exports.export_matrix import PartFlops, export_report, part_flops
from tests.costs.made_kinds import kind, tensor

ONE_LINEAR = 2 * 4 * 8 * 16


def linear(rows: int) -> OpKind:
    inputs = {"input": tensor(rows, 8), "weight": tensor(16, 8)}
    return kind("aten.linear.default", inputs, tensor(rows, 16))


def matmul(rows: int) -> OpKind:
    return kind("aten.mm.default", {"self": tensor(rows, 8), "mat2": tensor(8, 16)}, tensor(rows, 16))


ADD = kind("aten.add.Tensor", {"self": tensor(4, 16), "other": tensor(4, 16)}, tensor(4, 16))
NOVEL = kind("their.fused_linear.default", {"self": tensor(4, 8)}, tensor(4, 16))


def outcome(*ops: OpKind, **more: Any) -> PartOutcome:
    facts: dict[str, Any] = {"adaptation": "", "does_other_work": False, "adaptations": (), **more}
    return PartOutcome(
        name="part",
        title="",
        phase="prefill",
        path="part",
        wraps=("part",),
        class_name="Part",
        inputs=(),
        parameters=0,
        outcomes=tuple(CheckOutcome(check=check, verdict=Verdict.OK) for check in Check),
        ops=tuple(GraphOp(kind=op, count=1) for op in ops),
        **facts,
    )


def compared(traced: list[OpKind], exported: list[OpKind], **more: Any) -> PartFlops:
    return part_flops(outcome(*exported, **more), dict.fromkeys(traced, 1))


def test_other_names_with_the_same_flops_need_no_cause() -> None:
    found = compared([linear(4)], [matmul(4)])
    assert (found.exported, found.traced, found.causes) == (ONE_LINEAR, ONE_LINEAR, ())
    assert found.is_explained


def test_an_op_without_flops_is_no_difference() -> None:
    found = compared([linear(4), ADD], [linear(4)])
    assert (found.causes, found.is_explained) == ((), True)


def test_another_shape_of_the_same_op_has_no_cause() -> None:
    found = compared([linear(4)], [linear(5)])
    assert found.causes == (
        "no cause is known: only in the trace aten.linear.default with 1,024 FLOPs; "
        "only in the graph aten.linear.default with 1,280 FLOPs",
    )
    assert not found.is_explained


def test_other_names_with_other_flops_are_no_decomposition() -> None:
    found = compared([linear(4)], [matmul(5)])
    assert found.causes == (
        "no cause is known: only in the trace aten.linear.default with 1,024 FLOPs; "
        "only in the graph aten.mm.default with 1,280 FLOPs",
    )
    assert not found.is_explained


def test_an_op_without_a_price_may_be_what_another_was_taken_apart_into() -> None:
    found = compared([linear(4)], [NOVEL])
    assert found.causes == (
        "decomposed on export: aten.linear.default into their.fused_linear.default; "
        "no price for their.fused_linear.default",
    )
    assert found.is_explained
    assert found.unpriced == {"their.fused_linear.default": 1}  # which --strict refuses


def test_an_op_without_a_price_does_not_explain_another_shape() -> None:
    assert not compared([linear(4)], [linear(5), NOVEL]).is_explained


def test_work_that_is_missing_in_the_graph_is_not_told_as_folded() -> None:
    found = compared([linear(4), matmul(4)], [linear(4)])
    assert found.causes == ("no cause is known: only in the trace aten.mm.default with 1,024 FLOPs",)
    assert not found.is_explained


@pytest.mark.parametrize("does_other_work", [True, False])
def test_only_an_adaptation_that_says_so_explains_other_work(does_other_work: bool) -> None:
    found = compared([linear(4)], [linear(5)], adaptation="more", does_other_work=does_other_work)
    assert found.is_explained is does_other_work
    assert (found.causes == ("the trace ran the module as it is: more",)) is does_other_work


@pytest.mark.parametrize(
    ("eager", "unknown", "cause", "is_explained"),
    [
        (ONE_LINEAR, None, (), True),
        (1, None, ("eager: no cause is known",), False),
        (1, "no formula for x", ("eager: no formula for x",), True),
        (2 * ONE_LINEAR, "no formula for x", ("eager: no cause is known",), False),
        (None, "it cannot run", ("eager: it cannot run",), True),
        (None, None, (), True),
    ],
)
def test_torchs_counter_may_lack_a_formula_but_never_counts_too_much(
    eager: int | None, unknown: str | None, cause: tuple[str, ...], is_explained: bool
) -> None:
    found = compared([linear(4)], [linear(4)], eager_flops=eager, eager_unknown=unknown)
    assert (found.causes, found.is_explained) == (cause, is_explained)


def test_a_difference_without_a_cause_is_a_warning() -> None:
    found = compared([linear(4)], [linear(5)])
    notes = export_report("model", [outcome(linear(5))], [found]).notes
    assert [note.text for note in notes if note.level is Level.WARNING] == [
        "part: the sources differ and no cause is known."
    ]

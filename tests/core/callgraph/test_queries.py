"""Questions of the analyses, answered for the toy graph by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder
from llm_perf_opt.core.callgraph.queries import (
    count_kinds,
    count_kinds_by_stage,
    events_of,
    ops_in_call,
    ops_in_module,
    stage_names,
    stage_of_calls,
    stage_of_ops,
    tensor_offsets,
)
from llm_perf_opt.core.errors import PerfOptError
from tests.core.callgraph.made_graphs import finished, matmul, toy_graph

TOY = toy_graph()


def test_ops_of_a_call_include_its_children() -> None:
    assert ops_in_call(TOY, 0) == range(1, 5)
    assert ops_in_call(TOY, 1) == range(1, 3)
    assert ops_in_call(TOY, 2) == range(1, 2)


def test_ops_of_a_module_are_listed_once_even_if_it_calls_itself() -> None:
    assert ops_in_module(TOY, "vision.proj") == [range(1, 2), range(3, 4)]
    assert ops_in_module(TOY, "blocks.0") == [range(4, 5)]
    assert ops_in_module(TOY, "blocks") == []


def test_kinds_are_counted_among_rows_and_all_ops() -> None:
    mm, view, gelu = TOY.op_kinds
    assert count_kinds(TOY) == {mm: 3, view: 1, gelu: 1}
    assert count_kinds(TOY, range(1, 3)) == {mm: 1, view: 1}


def test_the_deepest_claim_wins_and_what_none_claims_is_its_callers() -> None:
    names = stage_names(TOY)
    assert names == ("tower", "head", "prefill")
    assert [names[stage] for stage in stage_of_calls(TOY)] == [
        "prefill", "tower", "head", "head", "head", "prefill", "prefill"
    ]  # fmt: skip
    assert [names[stage] for stage in stage_of_ops(TOY)] == ["prefill", "head", "tower", "head", "prefill"]


def test_a_shared_helper_counts_where_it_is_used() -> None:
    graph = replace(TOY, stages=(("tower", ("vision",)), ("head", ("head",)), ("stack", ("blocks",))))
    helper = replace(graph, paths=("", "vision", "shared", "head", "blocks.0"))
    names = stage_names(helper)
    assert [names[stage] for stage in stage_of_ops(helper)] == ["prefill", "tower", "tower", "head", "stack"]


def test_what_the_first_call_calls_counts_as_its_own() -> None:
    """A phase may begin with a part of the model: its first call is then no root."""
    graph = replace(TOY, stages=(("tower", ("vision",)),), paths=("vision", "shared", "helper", "other", "blocks.0"))
    assert {stage_names(graph)[stage] for stage in stage_of_calls(graph)[:4]} == {"tower"}


def test_a_name_that_merely_begins_alike_is_not_claimed() -> None:
    graph = replace(TOY, stages=(("tower", ("vis",)),))
    assert set(stage_of_ops(graph)) == {stage_names(graph).index("prefill")}


def test_the_root_path_claims_everything_and_a_stage_may_carry_the_name_of_the_phase() -> None:
    graph = replace(TOY, stages=(("prefill", ("head",)), ("all", ("",))))
    names = stage_names(graph)
    assert names == ("all", "prefill")
    assert [names[stage] for stage in stage_of_calls(graph)] == ["all", "all", "all", "prefill", "all", "all", "all"]


def test_stages_hold_every_op_once() -> None:
    mm, view, gelu = TOY.op_kinds
    assert count_kinds_by_stage(TOY) == {"tower": {view: 1}, "head": {mm: 2}, "prefill": {mm: 1, gelu: 1}}


def test_where_the_tensors_of_an_op_are() -> None:
    inputs, outputs = tensor_offsets(TOY)
    assert list(inputs) == [0, 2, 4, 5, 7, 8]
    assert list(outputs) == [0, 1, 2, 3, 4, 5]


def test_events_follow_the_nesting() -> None:
    builder = CallGraphBuilder()
    for path in ("a", "b"):
        builder.enter(path, ())
        builder.enter("c", ())
        builder.leave(())
        builder.leave(())
    assert [f"{event} {path}" for event, path in events_of(finished(builder))] == [
        "enter a", "enter c", "exit c", "exit a", "enter b", "enter c", "exit c", "exit b"
    ]  # fmt: skip


def test_ops_outside_any_module_belong_to_the_phase() -> None:
    builder = CallGraphBuilder()
    builder.op(matmul(builder, 2), (1, 2), (3,))
    graph = finished(builder)
    assert [stage_names(graph)[stage] for stage in stage_of_ops(graph)] == ["prefill"]


@pytest.mark.parametrize(("question", "what"), [(stage_of_calls, "module calls"), (count_kinds, "ops")])
def test_a_file_of_totals_says_what_it_lacks(question: object, what: str) -> None:
    with pytest.raises(PerfOptError, match=f"holds no {what}"):
        question(CallGraph())  # type: ignore[operator]

"""The curve of live memory: a run added up by hand, and what thinning it out for a plot must never lose."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.core.callgraph.builder import CallGraphBuilder
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.costs.memory.live_memory import alive_at, held_bytes, peak_of, step_points, timeline
from tests.costs.small_run import ACTIVATE, X_BYTES, X, finished, small_run

# The input all along; encoder and norm twice, the first result stays alive; a view; decoder and norm; one op outside.
LIVE = [2, 3, 3, 4, 3, 4, 5, 5]


def test_the_curve_of_the_small_run() -> None:
    curve = timeline(small_run())
    assert curve is not None
    assert [live // X_BYTES for live in curve.whole.live_bytes] == LIVE
    assert (curve.whole.peak_op, curve.whole.peak_bytes) == (6, 5 * X_BYTES)


def test_each_stage_has_its_own_ops_and_peak() -> None:
    curve = timeline(small_run())
    assert curve is not None
    by_stage = {stage.stage: stage for stage in curve.stages}
    assert list(by_stage["vision"].ops) == [0, 1, 2, 3]
    assert list(by_stage["prefill"].ops) == [4, 5, 6, 7]
    assert (by_stage["vision"].peak_op, by_stage["vision"].peak_bytes) == (3, 4 * X_BYTES)


def test_what_was_held_before_an_op_leaves_out_what_it_makes() -> None:
    graph = small_run()
    assert graph.storages is not None
    assert [held // X_BYTES for held in held_bytes(graph.storages, len(LIVE))] == [1, 2, 2, 3, 3, 3, 4, 4]


@pytest.mark.parametrize("missing", ["ops", "storages"])
def test_a_trace_that_follows_no_memory_has_no_curve(missing: str) -> None:
    assert timeline(replace(small_run(), **{missing: None})) is None


def with_scratch() -> CallGraph:
    run = CallGraphBuilder()
    run.module("", "Root", (), {})
    run.enter("", [(X, 1)])
    for token in (2, 3):
        run.allocate(token, X_BYTES)
        run.allocate(10 * token, 5 * X_BYTES, "scratch")
        run.op(ACTIVATE, [1], [token])
        run.free(10 * token)
    run.leave([(X, 3)])
    return finished(run, "prefill")


def test_scratch_is_alive_only_while_its_op_runs() -> None:
    graph = with_scratch()
    curve = timeline(graph)
    assert curve is not None
    assert list(curve.whole.live_bytes) == [6 * X_BYTES, 7 * X_BYTES]
    scratch, made = alive_at(graph, 1)
    assert (scratch.tensor, scratch.made_by, scratch.bytes, scratch.count) == (
        "(scratch)",
        "aten.relu.default",
        5 * X_BYTES,
        1,
    )
    assert (made.tensor, made.bytes, made.count) == ("float32[4, 8]", 2 * X_BYTES, 2)


def test_the_peak_names_what_is_alive_and_what_runs() -> None:
    graph = small_run()
    curve = timeline(graph)
    assert curve is not None
    peak = peak_of(graph, curve.whole)
    assert (peak.op, peak.path, peak.bytes) == ("aten.relu.default", "norm", 5 * X_BYTES)
    assert [(one.tensor, one.made_by, one.path, one.count) for one in peak.alive] == [
        ("float32[4, 8]", "aten.relu.default", "norm", 3),
        ("float32[4, 8]", "(given)", "(outside any module)", 1),
        ("float32[4, 8]", "aten.mm.default", "decoder", 1),
    ]


@pytest.mark.parametrize("op", range(len(LIVE)))
def test_what_is_alive_adds_up_to_the_curve(op: int) -> None:
    assert sum(one.bytes for one in alive_at(small_run(), op)) == LIVE[op] * X_BYTES


def test_layers_alike_are_one_group_with_their_range() -> None:
    run = CallGraphBuilder()
    run.module("", "Root", ("layers",), {})
    run.module("layers", "ModuleList", tuple(f"layers.{layer}" for layer in range(3)), {})
    for layer in range(3):
        run.module(f"layers.{layer}", "Layer", (), {})
    run.enter("", [(X, 1)])
    for layer in range(3):
        run.enter(f"layers.{layer}", [(X, 1)])
        run.allocate(10 + layer, X_BYTES)
        run.op(ACTIVATE, [1], [10 + layer])
        run.leave([(X, 10 + layer)])
    run.leave([(X, 12)])
    (group,) = alive_at(finished(run, "prefill"), 2)
    assert (group.path, group.count, group.bytes) == ("layers.[0-2]", 3, 3 * X_BYTES)


def test_a_short_curve_is_drawn_as_it_is() -> None:
    assert step_points([5, 5, 7, 7, 2]) == ((0, 5), (2, 7), (4, 2), (5, 2))
    assert step_points([]) == ()


@given(st.lists(st.integers(0, 50), min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_out_keeps_extremes_order_and_truth(live: list[int], limit: int) -> None:
    points = step_points(live, limit)
    assert len(points) <= limit + 1
    assert [x for x, _ in points] == sorted({x for x, _ in points})
    assert all(live[x] == y for x, y in points[:-1])
    assert points[-1] == (len(live), live[-1])
    assert max(y for _, y in points) == max(live)
    assert (live.index(max(live)), max(live)) in points

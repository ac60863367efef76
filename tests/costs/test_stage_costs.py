"""Stages and modules of a run that can be added up by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.core.callgraph.builder import CallGraphBuilder
from llm_perf_opt.costs.coverage import PriceCoverage, UnpricedOp, merged_unpriced, price_coverage
from llm_perf_opt.costs.stage_costs import StageCost, module_costs, stage_costs
from llm_perf_opt.ops.cost import OpCost
from llm_perf_opt.ops.unpriced import flops_bound
from tests.costs.small_run import (
    ACTIVATE_BYTES,
    FUSED,
    PROJECT_BYTES,
    PROJECT_FLOPS,
    X_BYTES,
    X,
    small_run,
)
from tests.costs.small_run import PROJECT as PROJECT_KIND

PROJECT = OpCost(flops=PROJECT_FLOPS, bytes_moved=PROJECT_BYTES)
ACTIVATE = OpCost(vector_flops=32, bytes_moved=ACTIVATE_BYTES)


def test_the_small_run_is_sound() -> None:
    assert small_run().problems() == []


def test_a_stage_holds_its_calls_and_those_it_makes() -> None:
    """The shared norm counts in the stage that called it."""
    vision, prefill = stage_costs(small_run()).stages
    assert vision == StageCost(
        name="vision",
        modules=2,
        calls=4,
        parameters=64,
        ops=4,
        flops=2 * PROJECT_FLOPS,
        vector_flops=2 * 32,
        bytes_moved=2 * (PROJECT_BYTES + ACTIVATE_BYTES),
        activation_bytes=4 * X_BYTES,
        peak_live_bytes=4 * X_BYTES,  # second norm: the input of the run, what came in, its projection, and the result
        collectives=0,
        collective_bytes=0,
        unpriced=(),
    )
    assert (prefill.name, prefill.modules, prefill.calls, prefill.ops) == ("prefill", 3, 3, 4)
    assert prefill.flops == PROJECT_FLOPS
    assert prefill.macs == PROJECT_FLOPS // 2


def test_the_stages_add_up_to_the_run() -> None:
    costs = stage_costs(small_run())
    assert costs.total.flops == 3 * PROJECT_FLOPS
    assert costs.total.calls == 7
    assert costs.total.modules == 4
    for field in ("calls", "parameters", "ops", "flops", "vector_flops", "bytes_moved", "activation_bytes"):
        assert sum(getattr(stage, field) for stage in costs.stages) == getattr(costs.total, field)


def test_a_tied_weight_counts_once_and_a_buffer_not_at_all() -> None:
    costs = stage_costs(small_run())
    assert [stage.parameters for stage in costs.stages] == [64, 128]
    assert costs.total.parameters == 3 * 64


def test_an_op_without_a_price_is_listed_with_its_bound_and_not_in_the_sum() -> None:
    graph = small_run(with_unpriced=True)
    costs = stage_costs(graph)
    hidden = UnpricedOp(name="vendor.fused.default", count=1, flops_bound=flops_bound(FUSED))
    assert costs.total.unpriced == (hidden,)
    assert [stage.unpriced_ops for stage in costs.stages] == [0, 1]
    assert costs.total.flops == 2 * PROJECT_FLOPS
    assert price_coverage(graph).unpriced == (hidden,)
    assert (price_coverage(graph).ops, price_coverage(graph).unpriced_ops) == (8, 1)
    assert hidden.flops_bound == PROJECT_FLOPS  # one matmul of these shapes


def test_a_stage_in_which_nothing_has_a_price_is_unknown_and_the_run_is_what_the_others_take() -> None:
    """The decoder's one matmul has no price; its stage holds two activations more, which are no matrix work."""
    costs = stage_costs(small_run(with_unpriced=True))
    vision, prefill = costs.stages
    assert (vision.flops, prefill.flops, costs.total.flops) == (2 * PROJECT_FLOPS, None, 2 * PROJECT_FLOPS)
    assert prefill.bytes_moved == 2 * ACTIVATE_BYTES  # a lower bound: what has a price moves something
    assert (prefill.macs, prefill.unpriced_ops) == (None, 1)


def test_one_op_without_a_bound_leaves_the_rest_without_one_and_is_told_first() -> None:
    bounded, unbounded = (UnpricedOp(name=name, count=2, flops_bound=bound) for name, bound in (("a", 5), ("b", None)))
    merged = merged_unpriced([bounded, unbounded, bounded])
    assert merged == (unbounded, UnpricedOp(name="a", count=4, flops_bound=10))
    assert PriceCoverage(ops=9, unpriced=merged).flops_bound is None
    assert PriceCoverage(ops=9, unpriced=(bounded, bounded)).flops_bound == 10
    assert PriceCoverage(ops=9, unpriced=()).flops_bound == 0
    assert [op.sentence for op in merged] == [
        "b has no price and is in no total: 2 ops, and nothing bounds what they hide.",
        "a has no price and is in no total: 4 ops, at most 10 FLOP.",
    ]


def test_without_ops_the_costs_are_unknown_and_the_calls_are_not() -> None:
    total = stage_costs(replace(small_run(), ops=None)).total
    assert (total.calls, total.modules, total.parameters) == (7, 4, 192)
    unknown = (total.ops, total.flops, total.macs, total.bytes_moved, total.activation_bytes, total.peak_live_bytes)
    assert unknown == (None,) * 6


def test_without_storages_only_the_memory_is_unknown() -> None:
    total = stage_costs(replace(small_run(), storages=None)).total
    assert total.flops == 3 * PROJECT_FLOPS
    assert (total.activation_bytes, total.peak_live_bytes) == (None, None)


def test_a_module_costs_its_own_ops_and_those_of_its_children() -> None:
    costs = module_costs(small_run())
    encoder, norm, root = (costs.by_path[path] for path in ("encoder", "norm", ""))
    assert (encoder.calls, encoder.own) == (2, PROJECT.times(2))
    assert encoder.inclusive == (PROJECT + ACTIVATE).times(2)
    assert norm.own == norm.inclusive == ACTIVATE.times(3)
    assert root.own == OpCost()
    assert root.inclusive == (PROJECT + ACTIVATE).times(3)
    assert costs.outside == ACTIVATE


def test_a_shared_module_is_split_by_caller() -> None:
    by_edge = module_costs(small_run()).by_edge
    assert by_edge["encoder", "norm"] == ACTIVATE.times(2)
    assert by_edge["decoder", "norm"] == ACTIVATE
    assert by_edge["", "encoder"] == (PROJECT + ACTIVATE).times(2)


def test_an_unpriced_op_is_counted_in_the_module_that_ran_it() -> None:
    by_path = module_costs(small_run(with_unpriced=True)).by_path
    assert {path: cost.unpriced_ops for path, cost in by_path.items() if cost.unpriced_ops} == {"decoder": 1}


@pytest.mark.parametrize("depth", [1, 3])
def test_a_module_that_calls_itself_is_counted_once(depth: int) -> None:
    run = CallGraphBuilder()
    run.module("", "Tree", ("tree",), {})
    run.module("tree", "Tree", (), {})
    for token in (1, 2, 3):
        run.allocate(token, X_BYTES)
    run.enter("", [(X, 1)])
    for _ in range(depth):
        run.enter("tree", [(X, 1)])
        run.op(PROJECT_KIND, [1, 2], [3])
    for _ in range(depth):
        run.leave([(X, 3)])
    run.leave([(X, 3)])
    graph = run.finish(
        model="tree", phase="run", tracer="hand", workload={}, stages=[], runtime={}, library_versions={}
    )
    costs = module_costs(graph)
    assert costs.by_path["tree"].inclusive == costs.by_path["tree"].own == PROJECT.times(depth)
    assert costs.by_edge["", "tree"] == PROJECT.times(depth)

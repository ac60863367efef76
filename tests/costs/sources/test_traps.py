"""One test per known failure of other tools: our count is the hand-worked one, and the failure is shown to be real."""

from __future__ import annotations

import pytest
import torch
from fvcore.nn import FlopCountAnalysis
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.coverage import price_coverage
from llm_perf_opt.costs.sources.fvcore_counter import FvcoreCounter
from llm_perf_opt.costs.sources.torch_counter import TorchCounter
from llm_perf_opt.costs.stage_costs import stage_costs
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from tests.costs.sources.one_module import OneModule, accounted
from tests.costs.sources.traps import (
    CUSTOM_ATTENTION,
    CUSTOM_OP,
    EXPERTS,
    GRID,
    IN,
    OUT,
    ROWS,
    TRAPS,
    WIDTH,
    Trap,
    attend,
)


def traced(adapter: OneModule) -> CallGraph:
    return WeightlessTracer().trace(adapter.target())


def flops_by_torch(adapter: OneModule) -> int:
    """What torch's counter says of a real run on this CPU."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        adapter.build()(*adapter.args(), **adapter.kwargs())
    return counter.get_total_flops()


def macs_by_fvcore(adapter: OneModule) -> FlopCountAnalysis:
    """fvcore on real tensors, as its own documentation uses it."""
    analysis = FlopCountAnalysis(adapter.build(), tuple(adapter.args()))
    return analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_the_count_is_the_hand_worked_one(trap: Trap) -> None:
    graph = traced(trap.adapter)
    assert stage_costs(graph).total.flops == trap.flops
    assert price_coverage(graph).unpriced == ()


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_the_torch_counter_with_its_blind_spots_is_the_hand_worked_count(trap: Trap) -> None:
    (figures,) = TorchCounter().figures(trap.adapter, Workload())
    assert accounted(figures) == trap.flops


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_fvcore_with_its_blind_spots_is_the_hand_worked_count(trap: Trap) -> None:
    (figures,) = FvcoreCounter().figures(trap.adapter, Workload())
    assert accounted(figures) == trap.flops


@pytest.mark.parametrize("name", ["SDPA on CPU", "SDPA with a mask", "causal SDPA"])
def test_fused_attention_is_nothing_to_the_others(name: str) -> None:
    trap = TRAPS[name]
    assert flops_by_torch(trap.adapter) == 0
    analysis = macs_by_fvcore(trap.adapter)
    assert analysis.total() == 0
    assert analysis.unsupported_ops() == {"aten::scaled_dot_product_attention": 1}
    (figures,) = FvcoreCounter().figures(trap.adapter, Workload())
    assert [(spot.cause, spot.flops) for spot in figures.blind_spots] == [("fused-attention-uncounted", trap.flops)]


@pytest.mark.parametrize(
    "name", ["SDPA on CPU", "SDPA with a mask", "causal SDPA", "grouped_mm", "windows with padding"]
)
def test_the_torch_counter_was_given_a_formula_for_what_torch_has_none_for(name: str) -> None:
    (figures,) = TorchCounter().figures(TRAPS[name].adapter, Workload())
    assert (figures.flops, figures.blind_spots) == (TRAPS[name].flops, ())
    assert any("torch's counter has no formula for" in note for note in figures.notes)


def test_a_grouped_matmul_is_nothing_to_the_others() -> None:
    trap = TRAPS["grouped_mm"]
    assert flops_by_torch(trap.adapter) == 0
    assert macs_by_fvcore(trap.adapter).total() == 0
    (figures,) = FvcoreCounter().figures(trap.adapter, Workload())
    assert [(spot.cause, spot.flops) for spot in figures.blind_spots] == [("grouped-matmul-uncounted", trap.flops)]


def test_gathered_experts_cost_what_their_rows_cost_not_what_their_weights_suggest() -> None:
    trap = TRAPS["batched_mm"]
    weights = sum(parameter.numel() for parameter in trap.adapter.build().parameters())
    assert 2 * ROWS * weights == EXPERTS * trap.flops  # the rule of thumb, two FLOPs per weight and row
    assert flops_by_torch(trap.adapter) == trap.flops


def test_an_einsum_is_rounded_by_fvcore() -> None:
    trap = TRAPS["einsum"]
    analysis = macs_by_fvcore(trap.adapter)
    assert 0 < abs(2 * analysis.total() - trap.flops) < trap.flops / 1000
    assert flops_by_torch(trap.adapter) == trap.flops


def test_a_count_from_the_unpadded_grid_is_too_low() -> None:
    trap = TRAPS["windows with padding"]
    tokens = GRID * GRID
    assert 2 * tokens * WIDTH * 3 * WIDTH + 2 * (2 * tokens * tokens * WIDTH) != trap.flops
    assert flops_by_torch(trap.adapter) < trap.flops  # it sees the padded projection, and no attention
    assert 2 * macs_by_fvcore(trap.adapter).total() == flops_by_torch(trap.adapter)


def test_a_shared_module_costs_twice_and_weighs_once() -> None:
    total = stage_costs(traced(TRAPS["shared module"].adapter)).total
    assert (total.flops, total.parameters) == (TRAPS["shared module"].flops, IN * IN)


def test_tied_weights_are_counted_once() -> None:
    total = stage_costs(traced(TRAPS["tied weights"].adapter)).total
    assert (total.flops, total.parameters) == (TRAPS["tied weights"].flops, IN * OUT)


def test_fvcore_alone_cannot_call_a_module_of_keywords() -> None:
    trap = TRAPS["keywords only"]
    rows = trap.adapter.kwargs()["rows"]
    with pytest.raises(TypeError, match="positional argument"):
        FlopCountAnalysis(trap.adapter.build(), (rows,)).total()


def test_experts_that_got_no_rows_cost_nothing_but_memory() -> None:
    total = stage_costs(traced(TRAPS["unused experts"].adapter)).total
    assert (total.flops, total.parameters) == (2 * ROWS * IN * OUT, EXPERTS * IN * OUT)
    assert len(macs_by_fvcore(TRAPS["unused experts"].adapter).uncalled_modules()) == EXPERTS - 2


def test_groups_divide_the_work_of_a_convolution() -> None:
    trap = TRAPS["conv with groups"]
    dense = OneModule(lambda: nn.Conv2d(16, 32, kernel_size=3, padding=1), trap.adapter.args)
    assert stage_costs(traced(dense)).total.flops == 8 * trap.flops
    assert flops_by_torch(trap.adapter) == 2 * macs_by_fvcore(trap.adapter).total() == trap.flops


def test_an_embedding_moves_bytes_and_multiplies_nothing() -> None:
    total = stage_costs(traced(TRAPS["embedding"].adapter)).total
    assert total.flops == 0
    assert total.bytes_moved is not None and total.bytes_moved >= ROWS * IN * 4
    assert total.parameters == IN * OUT  # two FLOPs per weight, the rule of thumb, would be wrong


def test_a_custom_op_without_a_formula_is_listed_with_an_upper_bound() -> None:
    (unpriced,) = price_coverage(traced(CUSTOM_OP.adapter)).unpriced
    assert (unpriced.name, unpriced.count) == ("llm_perf_opt_traps.mix.default", 1)
    assert unpriced.flops_bound >= CUSTOM_OP.flops
    assert flops_by_torch(CUSTOM_OP.adapter) == 0


def test_attention_under_a_name_of_its_own_stays_below_its_upper_bound() -> None:
    """Two matmuls, where the bound of one alone would be too low."""
    query, key, _ = CUSTOM_ATTENTION.adapter.args()
    assert 2 * (query.numel() * key.numel() * query.numel()) ** 0.5 < CUSTOM_ATTENTION.flops
    (unpriced,) = price_coverage(traced(CUSTOM_ATTENTION.adapter)).unpriced
    assert unpriced.name == "llm_perf_opt_traps.attend.default"
    assert unpriced.flops_bound is not None
    assert unpriced.flops_bound >= CUSTOM_ATTENTION.flops
    with torch.no_grad(), FlopCounterMode(display=False) as counter:  # what the op runs inside
        attend._init_fn(*CUSTOM_ATTENTION.adapter.args())
    assert counter.get_total_flops() == CUSTOM_ATTENTION.flops


def test_a_custom_op_is_a_blind_spot_of_the_torch_counter() -> None:
    (figures,) = TorchCounter().figures(CUSTOM_OP.adapter, Workload())
    (spot,) = figures.blind_spots
    assert (spot.cause, spot.operator, spot.calls, spot.flops) == (
        "op-without-formula",
        "llm_perf_opt_traps.mix",
        1,
        None,
    )

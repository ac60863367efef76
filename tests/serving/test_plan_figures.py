"""Plans of so many devices, the time over pipeline stages, and the order of plans, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.costs.memory.need import ReplicatedWeights, replicated_table
from llm_perf_opt.serving.plan_figures import PlanFigures, PlanTime, plan_figures, plans_of, ranked
from llm_perf_opt.serving.rank_figures import RankFigures, RankPhase, RankTime, balances
from llm_perf_opt.timing.rates import Band

CLUSTER = parse_cluster("4x h100-sxm")


def test_every_product_of_eight_devices_once() -> None:
    """8 = 2^3: three factors of two on four axes are C(6, 3) = 20 plans."""
    found = plans_of(8, with_experts=False)
    assert len(found) == len(set(found)) == 20
    assert {plan.ranks for plan in found} == {8}
    assert [plan.describe() for plan in found[:4]] == ["tp8", "dp8", "pp8", "fsdp8"]


def test_experts_are_spread_over_every_divisor_of_tp_times_fsdp() -> None:
    found = plans_of(4, with_experts=True)
    assert {plan.ep for plan in found if plan.tp == 4} == {1, 2, 4}
    assert {plan.ep for plan in found if plan.tp * plan.fsdp == 1} == {1}


def test_one_device_has_one_plan() -> None:
    assert plans_of(1, with_experts=True) == (ParallelPlan(),)


def phase(name: str, low_s: float, high_s: float, exposed_s: float, weights: int) -> RankPhase:
    return RankPhase(
        phase=name,
        weight_bytes=weights,
        cache_bytes=100,
        needed_bytes=weights + 100,
        flops=weights,
        bytes_moved=weights,
        launches=1,
        collectives=(),
        time=RankTime(
            lower_bound_s=low_s / 2,
            low_s=low_s,
            high_s=high_s,
            communication=Band(0.0, exposed_s),
            exposed=Band(0.0, exposed_s),
            weights_s=low_s / 4,
        ),
    )


def kind(rank: int, ranks: int, low_s: float, high_s: float, weights: int = 1000) -> RankFigures:
    return RankFigures(
        rank=rank,
        ranks=ranks,
        stage=rank,
        phases=tuple(phase(name, low_s, high_s, high_s / 10, weights) for name in ("prefill", "decode")),
        replicated=None,
        serving=None,
    )


def test_a_decode_step_passes_every_stage_and_a_prefill_can_fill_them_all() -> None:
    """pp4: stages of 1 s, two of 2 s, and 3 s at the low edge, twice that at the high one."""
    kinds = [kind(0, 1, 1.0, 2.0), kind(1, 2, 2.0, 4.0), kind(3, 1, 3.0, 6.0)]
    found = plan_figures(ParallelPlan(pp=4), kinds, CLUSTER, batch=8)
    assert found.decode is not None
    assert found.prefill is not None
    assert (found.decode.low_s, found.decode.high_s) == (8.0, 16.0)
    assert (found.prefill.low_s, found.prefill.high_s) == (3.0, 16.0)
    assert found.decode.lower_bound_s == 2.0  # weights of all stages, 8 / 4 s, more than 3 / 2 s of the slowest
    assert found.decode.communication_share == pytest.approx(0.1)
    assert found.tokens_per_s_per_device == pytest.approx(8 / (8 * 16) ** 0.5 / 4)


def test_replicas_and_fully_sharded_ranks_share_the_batch() -> None:
    found = plan_figures(ParallelPlan(dp=2, fsdp=2), [kind(0, 4, 1.0, 4.0)], CLUSTER, batch=3)
    assert found.tokens_per_s_per_device == pytest.approx(3 * 4 / 2.0 / 4)


def test_the_fullest_rank_decides_what_is_left() -> None:
    kinds = [kind(0, 2, 1.0, 1.0, weights=50), kind(2, 2, 1.0, 1.0, weights=5000)]
    found = plan_figures(ParallelPlan(pp=2, tp=2), kinds, CLUSTER, batch=1)
    assert found.memory_left_bytes == CLUSTER.device.memory_bytes - 5100
    assert found.needed_bytes == 5100
    assert found.weight_bytes == 5000


def test_plans_that_fit_come_first_then_the_fastest_then_the_emptiest() -> None:
    base = plan_figures(ParallelPlan(tp=4), [kind(0, 4, 1.0, 4.0)], CLUSTER, batch=1)

    def of(name: str, *, fits: bool, middle_s: float, left: int) -> PlanFigures:
        time = PlanTime(lower_bound_s=None, low_s=middle_s, high_s=middle_s, communication_share=None)
        sizes = {"tp": 1, "pp": 1, "fsdp": 1, "dp": 1, name: 4}
        return replace(base, plan=ParallelPlan(**sizes), fits=fits, decode=time, memory_left_bytes=left)

    plans = [
        of("tp", fits=False, middle_s=1.0, left=-5),
        of("pp", fits=True, middle_s=3.0, left=10),
        of("fsdp", fits=True, middle_s=2.0, left=1),
        of("dp", fits=True, middle_s=2.0, left=9),
    ]
    assert [plan.name for plan in ranked(plans)] == ["dp4", "fsdp4", "pp4", "tp4"]


def test_the_balance_weighs_each_kind_by_its_ranks() -> None:
    """Weights 100 on one rank and 200 on three: the mean is 175, the largest over it 8 / 7."""
    found = balances([kind(0, 1, 1.0, 1.0, weights=100), kind(1, 3, 1.0, 1.0, weights=200)])
    weights = next(one for one in found if (one.figure, one.phase) == ("weight bytes", "decode"))
    assert (weights.least, weights.mean, weights.most) == (100, 175.0, 200)
    assert weights.imbalance == pytest.approx(8 / 7)
    assert balances([kind(0, 4, 1.0, 1.0)]) == ()


@pytest.mark.parametrize("names", [3, 9, 20])
def test_every_replicated_weight_is_in_a_row(names: int) -> None:
    found = [ReplicatedWeights(name=f"part {number}", parameters=2, bytes=100 - number) for number in range(names)]
    table = replicated_table(found, 10_000)
    assert sum(row[1] for row in table.rows) == 2 * names  # type: ignore[misc]
    assert sum(row[2] for row in table.rows) == sum(one.bytes for one in found)  # type: ignore[misc]

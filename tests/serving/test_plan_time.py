"""The time of a plan over its pipeline stages, and the balance of its ranks, by hand."""

from __future__ import annotations

import pytest

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.costs.memory.need import ReplicatedWeights, replicated_table
from llm_perf_opt.serving.plan_time import plan_times
from llm_perf_opt.serving.rank_figures import RankFigures, RankPhase, RankTime, balances
from llm_perf_opt.timing.rates import Band


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
    found = plan_times(ParallelPlan(pp=4), kinds)
    decode, prefill = found["decode"], found["prefill"]
    assert decode is not None
    assert prefill is not None
    assert (decode.low_s, decode.high_s) == (8.0, 16.0)
    assert (prefill.low_s, prefill.high_s) == (3.0, 16.0)
    assert decode.lower_bound_s == 2.0  # weights of all stages, 8 / 4 s, more than 3 / 2 s of the slowest


def test_without_a_pipeline_the_slowest_kind_of_rank_takes_the_time() -> None:
    found = plan_times(ParallelPlan(tp=4), [kind(0, 2, 1.0, 4.0), kind(2, 2, 2.0, 3.0)])["decode"]
    assert found is not None
    assert (found.lower_bound_s, found.low_s, found.high_s, found.expected_s) == (1.0, 2.0, 4.0, None)


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

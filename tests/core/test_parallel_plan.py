from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.parallel_plan import HEADER_KEY, ParallelPlan, plan_in

SIZES = st.integers(1, 6)


def test_ranks_of_a_replica_and_of_all() -> None:
    plan = ParallelPlan(tp=8, fsdp=2, pp=4, dp=3)
    assert (plan.replica_ranks, plan.ranks, plan.is_spread) == (64, 192, True)
    assert [plan.stage_of(rank) for rank in (0, 15, 16, 63, 64)] == [0, 0, 1, 3, 0]


@pytest.mark.parametrize(
    ("sizes", "kinds"),
    [
        ({"tp": 8}, (0,)),
        ({"tp": 4, "pp": 2}, (0, 4)),
        ({"tp": 2, "fsdp": 2, "pp": 4}, (0, 4, 12)),
        ({"tp": 2, "pp": 4, "rank": 5}, (5,)),
    ],
)
def test_one_of_each_kind_of_rank(sizes: dict[str, int], kinds: tuple[int, ...]) -> None:
    assert ParallelPlan(**sizes).kinds_of_rank() == kinds  # type: ignore[arg-type]


@given(SIZES, SIZES, SIZES, SIZES)
def test_a_header_tells_the_plan_again(tp: int, pp: int, fsdp: int, dp: int) -> None:
    plan = ParallelPlan(tp=tp, pp=pp, fsdp=fsdp, dp=dp, rank=tp * pp * fsdp * dp - 1)
    assert plan_in({HEADER_KEY: plan.header()}) == plan


def test_a_trace_of_one_device_has_no_plan() -> None:
    assert plan_in({}) is None
    assert plan_in({HEADER_KEY: "tp8"}) is None


@pytest.mark.parametrize(
    ("sizes", "what"),
    [
        ({"tp": 4, "ep": 8}, "8 ranks cannot share the experts"),
        ({"tp": 2, "rank": 2}, "There is no rank 2"),
        ({"tp": 512, "fsdp": 512}, "262,144 ranks is too large"),
        ({"tp": 0}, "tp cannot be 0"),
        ({"dp": 2, "plan": "rules.toml"}, "rules.toml would change nothing"),
    ],
)
def test_what_cannot_be_is_refused(sizes: dict[str, int], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        ParallelPlan(**sizes)  # type: ignore[arg-type]


def test_experts_are_spread_over_tensor_and_fully_sharded_ranks() -> None:
    assert ParallelPlan(tp=8, fsdp=4, ep=16).ranks == 32


def test_as_people_write_it() -> None:
    assert ParallelPlan(tp=8, ep=8).describe() == "tp8 ep8"
    assert ParallelPlan().describe() == "one device"


def test_no_groups_are_no_plan() -> None:
    with pytest.raises(UsageError, match="attention-dp cannot be 0"):
        ParallelPlan(attention_dp=0)

"""Fleets for a demand: the fewest replicas that meet an SLO, and sums that have to come out."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.capacity.fleets import Considered, Deadline
from llm_perf_opt.serving.capacity.outcome import Slo
from llm_perf_opt.serving.capacity.search import PlanCandidate, taken_plan
from llm_perf_opt.serving.capacity.sizing import (
    Demand,
    GpuChoice,
    SizedFleet,
    best_of_each,
    ranked,
    search_cluster,
    sized,
    sized_fleets,
)
from llm_perf_opt.serving.capacity.sizing_report import (
    answer_lines,
    bands_table,
    choices_table,
    frontier_chart,
    plans_table,
)
from llm_perf_opt.serving.capacity.steady_state import MeanRequest, SteadyReplica, most_requests
from llm_perf_opt.serving.served_model import Replica
from llm_perf_opt.timing.step.request_time import first_token_shares
from llm_perf_opt.timing.step.step_table import UntimedKernels
from tests.serving.capacity.test_steady_state import LIMITS, TABLE

MEAN = MeanRequest(prompt_tokens=1000, output_tokens=100)
SLO = Slo(ttft_s=1.0, tpot_s=0.015)


def fleet_for(
    demand: Demand, *, plan: ParallelPlan | None = None, count: int | None = None, device: str = "h100-sxm"
) -> SizedFleet:
    """One replica on one device, with a table made by hand."""
    plan = plan or ParallelPlan()
    client = first_token_shares("vllm", has_drawn_lengths=False)
    table = replace(TABLE, low=0.8, high=1.3)
    steady = SteadyReplica(table=table, mean=demand.mean, limits=LIMITS, is_closed=demand.is_closed, client=client)
    states = tuple(steady.states())
    considered = Considered(
        device=device,
        plan=plan,
        weights=None,
        cache_tokens=LIMITS.cache_tokens,
        max_sequences=LIMITS.sequences,
        max_batched_tokens=LIMITS.batched_tokens,
        states=states,
        best=most_requests(states, demand.slo),
    )
    fit: Any = SimpleNamespace(largest_context=4096, weights_bytes=1)
    cluster = parse_cluster(f"8x {device}")
    candidate = PlanCandidate(
        cluster=cluster,
        served=cast("Any", SimpleNamespace(engine="vllm", is_measured=lambda _: True)),
        replica=Replica(considered=considered, steady=steady, fit=fit),
        replicas=count or 1,
    )
    return replace(sized(candidate, GpuChoice(cluster=cluster, count=count), demand), price_per_hour=3.0)


def random_demand(random: Random) -> Demand:
    mean = MeanRequest(prompt_tokens=random.randint(1, 4000), output_tokens=random.randint(2, 800))
    kind = random.choice(("users", "rate", "pages", "none"))
    deadline = Deadline(pages=random.randint(1, 10**7), seconds=random.uniform(60, 10**6))
    return Demand(
        mean=mean,
        users=random.randint(1, 400) if kind == "users" else None,
        requests_per_s=random.uniform(0.05, 40.0) if kind == "rate" else None,
        deadline=deadline if kind == "pages" else None,
        slo=random.choice((None, SLO, Slo(tpot_s=0.05), Slo(ttft_s=0.5, share=0.95))),
    )


def test_sums_come_out_for_five_hundred_random_demands() -> None:
    random = Random(35)
    kept = 0
    for _ in range(500):
        demand = random_demand(random)
        fleet = fleet_for(demand, plan=ParallelPlan(tp=random.choice((1, 2, 8))))
        latency_s = fleet.ttft.expected_s + fleet.tpot.expected_s * (demand.mean.output_tokens - 1)
        assert fleet.users == pytest.approx(fleet.requests_per_s * latency_s)  # Little's law
        if demand.users is not None:
            assert fleet.users == pytest.approx(demand.users)
        assert fleet.ttft.at_share_s >= fleet.ttft.expected_s
        assert fleet.tpot.band.low <= fleet.tpot.expected_s <= fleet.tpot.band.high
        if fleet.broken is not None:
            assert fleet.cost_per_million_output is None, "what breaks a limit has no price"
            continue
        kept += 1
        assert fleet.cost_per_hour == fleet.gpus * 3.0
        read = (fleet.cost_per_million_input or 0.0) * fleet.requests_per_s * demand.mean.prompt_tokens
        made = (fleet.cost_per_million_output or 0.0) * fleet.output_tokens_per_s
        assert (read + made) / 1e6 * 3600 == pytest.approx(fleet.cost_per_hour)  # tokens x price = bill
        if demand.deadline is not None:
            assert fleet.hours is not None
            assert fleet.hours * 3600 <= demand.deadline.seconds * (1 + 1e-9)
            whole = (fleet.cost_per_million_requests or 0.0) * demand.deadline.pages / 1e6
            assert fleet.job_cost == pytest.approx(whole)
    assert kept > 200


@pytest.mark.parametrize("users", [1, 7, 33, 150, 1000])
def test_the_fewest_replicas_that_meet_the_slo_are_taken(users: int) -> None:
    demand = Demand(mean=MEAN, users=users, slo=SLO)
    fleet = fleet_for(demand)
    assert fleet.broken is None
    assert fleet.tpot.at_share_s <= 0.015
    assert fleet.replicas * fleet.state.sequences >= users
    if fleet.replicas > 1:
        fewer = fleet_for(demand, count=fleet.replicas - 1)
        assert fewer.broken in ("TPOT", "TTFT", "cache")


@pytest.mark.parametrize("rate", [0.5, 12.0, 55.0, 300.0])
def test_a_rate_is_answered_by_the_fewest_replicas(rate: float) -> None:
    fleet = fleet_for(Demand(mean=MEAN, requests_per_s=rate, slo=SLO))
    assert fleet.broken is None
    assert fleet.requests_per_s == pytest.approx(rate)
    if fleet.replicas > 2:
        fewer = fleet.candidate.replica.steady.at_rate(rate / (fleet.replicas - 1))
        assert fewer is None or not fewer.keeps(SLO)
    assert fleet.state.keeps(SLO)


def test_what_no_number_keeps_is_said() -> None:
    fleet = fleet_for(Demand(mean=MEAN, users=4, slo=Slo(tpot_s=0.001)))
    assert fleet.broken == "TPOT"
    lines = answer_lines([fleet], fleet.demand, None)
    assert lines[0] == "No plan meets the demand: h100-sxm (TPOT above the SLO)."
    assert lines[1].startswith("The nearest is 1 x h100-sxm")


def test_more_gpus_than_allowed_break_it() -> None:
    fleet = fleet_for(Demand(mean=MEAN, requests_per_s=2000.0, slo=SLO, max_gpus=16))
    assert fleet.broken == "16 GPUs"


def test_a_runner_up_that_costs_more_per_hour_and_less_per_token_says_both() -> None:
    demand = Demand(mean=MEAN, users=32, slo=SLO)
    best = replace(fleet_for(demand, device="l40s"), price_per_hour=1.0)
    busier = fleet_for(replace(demand, users=64), device="h200-sxm")
    other = replace(busier, price_per_hour=1.2 / busier.gpus)
    more = busier.requests_per_s / best.requests_per_s
    assert more > 1.2
    third = answer_lines([best, other], demand, None)[2]
    assert third.endswith(f", costs 20 % more per hour, {100 * (1 - 1.2 / more):.0f} % less per output token.")


def test_the_cheapest_that_does_it_comes_first_and_one_without_a_price_last() -> None:
    demand = Demand(mean=MEAN, users=32, slo=SLO)
    dear = replace(fleet_for(demand, device="h200-sxm"), price_per_hour=9.0)
    cheap = replace(fleet_for(demand, device="l40s"), price_per_hour=1.0)
    unknown = replace(fleet_for(demand, device="a100-sxm-80g"), price_per_hour=None)
    broken = fleet_for(replace(demand, slo=Slo(tpot_s=0.001)), device="l4")
    order = ranked([broken, unknown, dear, cheap])
    assert [fleet.device for fleet in order] == ["l40s", "h200-sxm", "a100-sxm-80g", "l4"]
    assert best_of_each([*order, cheap]) == order
    first, second, third = answer_lines(order, demand, None)
    assert first.startswith("1 x l40s (one device, vLLM) serves 32 users: TTFT ")
    assert "It costs $1.00 per hour" in second
    assert third == (
        "The runner-up, 1 x h200-sxm (one device, vLLM), costs 800 % more. Ruled out: l4 (TPOT above the SLO)."
    )
    rows = choices_table(order, demand).rows
    assert [row[0] for row in rows] == ["l40s", "h200-sxm", "a100-sxm-80g", "l4"]
    assert len(plans_table(order).rows) == 4
    chart = frontier_chart(order, order[0])
    assert chart is not None


def test_a_deadline_is_met_and_costs_its_hours() -> None:
    demand = Demand(mean=MEAN, deadline=Deadline(pages=1_000_000, seconds=3600.0))
    fleet = fleet_for(demand)
    assert fleet.hours is not None
    assert fleet.hours <= 1.0
    assert f"reads 1,000,000 pages in {fleet.hours:,.1f} h" in answer_lines([fleet], demand, None)[0]


def test_one_replica_may_take_whole_nodes() -> None:
    assert str(search_cluster("h100-sxm", 512)) == "8x8 h100-sxm"
    assert str(search_cluster("h100-sxm", 12)) == "8x h100-sxm"
    assert str(search_cluster("h100-sxm", 3)) == "3x h100-sxm"


def test_an_answer_of_one_token_has_no_tpot_anywhere() -> None:
    demand = Demand(mean=MeanRequest(prompt_tokens=1000, output_tokens=1), users=8)
    fleet = fleet_for(demand)
    tables = (choices_table([fleet], demand), plans_table([fleet]), bands_table(fleet, demand))
    assert "TPOT" not in " ".join(answer_lines([fleet], demand, None))
    assert [column.name for table in tables for column in table.columns if "TPOT" in column.name] == []
    assert [row[0] for row in tables[2].rows] == ["TTFT", "TTFT", "decode step", "prefill of one prompt"]
    assert frontier_chart([fleet], fleet) is None


def test_without_a_demand_all_replicas_say_how_many_requests_they_hold() -> None:
    fleet = fleet_for(Demand(mean=MEAN), count=2)
    assert fleet.replicas == 2
    (first, *_) = answer_lines([fleet], fleet.demand, None)
    assert f" holds {2 * fleet.state.sequences} requests at once (longest context 4,096 tokens)" in first


def test_a_gpu_without_times_is_left_out_unless_it_is_the_only_one(caplog: pytest.LogCaptureFixture) -> None:
    timed, untimed = (GpuChoice(cluster=parse_cluster(f"1x {name}"), count=1) for name in ("h100-sxm", "tpu-v5e"))
    known = fleet_for(Demand(mean=MEAN), count=1).candidate.replica

    def replica(device: Device, *_: object, **__: object) -> Replica:
        if device.id == "tpu-v5e":
            raise UntimedKernels("No measured table answers 73 kernels of a step.", why="", fix="")
        return known

    served: Any = SimpleNamespace(engine="vllm", heads=8, has_experts=False, replica=replica)
    space = taken_plan({}, None, is_alone=False)
    fleets = list(sized_fleets([served], [untimed, timed], Demand(mean=MEAN), space, []))
    assert {fleet.device for fleet in fleets} == {"h100-sxm"}
    assert "tpu-v5e is left out." in caplog.text
    with pytest.raises(UntimedKernels):
        list(sized_fleets([served], [untimed], Demand(mean=MEAN), space, []))

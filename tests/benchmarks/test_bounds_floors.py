"""The bounds of a run by hand-worked numbers, on a device and a model with round figures."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from benchmarks.bounds.evaluation import Checked
from benchmarks.bounds.floors import (
    FEWEST,
    UNIFORM,
    PlanLinks,
    batch_that_fits,
    cycle_s,
    floors,
    link_token_s,
    peak,
    prefill_s,
    request_s,
    running_on_average,
    sequences_that_fit,
    shared_blocks,
    step_s,
    token_s,
)
from benchmarks.records import MeasuredRun, ServedPlan
from llm_perf_opt.core.hardware import Device

DEVICE = Device(
    id="round",
    name="Round",
    vendor="none",
    arch="none",
    peak_flops_per_s={"bf16": 1000, "fp8": 2000},
    bandwidth_bytes_per_s=100,
    memory_bytes=1000,
)


@dataclass(frozen=True)
class RoundWork:
    flops: int
    weight_bytes: int
    cache_bytes: int


class RoundNeeds:
    """A token takes 50 FLOPs, 100 bytes of weights are read, an expert has 10, a cached token 2."""

    def step(self, *, batch: int, context: int, routing: str) -> RoundWork:
        experts = 1 if routing == FEWEST else min(batch, 8)
        return RoundWork(flops=50 * batch, weight_bytes=100 + 10 * experts, cache_bytes=2 * batch * context)

    def prefill(self, *, batch: int, prompt: int, routing: str) -> RoundWork:
        experts = 1 if routing == FEWEST else min(prompt, 8)
        return RoundWork(flops=50 * batch * prompt, weight_bytes=100 + 10 * experts, cache_bytes=0)


NEEDS = RoundNeeds()
RUN = MeasuredRun(
    name="round",
    source="none",
    model="none",
    device="round",
    engine="none",
    precision="bf16",
    prompt_tokens=40,
    output_tokens=20,
    prefill_gpus=1,
    decode_gpus=2,
    in_flight=4,
    ttft_s=20.0,
    tpot_s=3.0,
)


def test_a_request_is_its_first_token_and_a_step_for_each_token() -> None:
    assert RUN.e2e_s == 20 + 20 * 3
    assert RUN.mean_context == 40 + 10 + 1


def test_a_step_reads_weights_once_and_every_cache() -> None:
    """(100 + 10 + 2 x 4 x 51) / (2 x 100) beats 200 / (2 x 1000)."""
    assert step_s(RUN, NEEDS, DEVICE, 4, FEWEST) == pytest.approx(518 / 200)
    assert step_s(RUN, NEEDS, DEVICE, 4, UNIFORM) == pytest.approx(548 / 200)


def test_matmuls_may_hold_a_step_back() -> None:
    slow = replace(DEVICE, peak_flops_per_s={"bf16": 10})
    assert step_s(RUN, NEEDS, slow, 4, FEWEST) == pytest.approx(50 * 4 / (2 * 10))


def test_each_device_may_hold_a_cache_full_of_bytes_already() -> None:
    cached = replace(DEVICE, l2_bytes=9)
    assert step_s(RUN, NEEDS, cached, 4, FEWEST) == pytest.approx((518 - 2 * 9) / 200)


def test_drafts_share_bytes_but_not_matmuls() -> None:
    drafted = replace(RUN, drafts=1)
    assert step_s(drafted, NEEDS, DEVICE, 4, FEWEST) == pytest.approx(518 / 2 / 200)
    assert step_s(drafted, NEEDS, DEVICE, 4, UNIFORM) == pytest.approx((100 + 10 * 8 + 408) / 2 / 200)
    slow = replace(DEVICE, peak_flops_per_s={"bf16": 10})
    assert step_s(drafted, NEEDS, slow, 4, FEWEST) == pytest.approx(10)


def test_a_prompt_runs_on_the_gpus_that_work_on_prompts() -> None:
    assert prefill_s(RUN, NEEDS, DEVICE, FEWEST) == pytest.approx(50 * 40 / 1000)
    assert prefill_s(replace(RUN, prompt_tokens=1), NEEDS, DEVICE, FEWEST) == pytest.approx(110 / 100)


def test_a_request_takes_its_prompt_and_steps_of_everything_in_flight() -> None:
    assert request_s(RUN, NEEDS, DEVICE) == pytest.approx(2 + 20 * 548 / 200)


def test_all_in_flight_pass_while_one_request_passes() -> None:
    assert cycle_s(RUN, NEEDS, DEVICE) == pytest.approx(4 * (50 * 40 + 20 * 50) / (2 * 1000))


def test_a_token_at_full_load_takes_its_share_of_a_step_and_of_a_prompt() -> None:
    """At 10 sequences (100 + 10 + 2 x 10 x 51) / 10 bytes; 50 + 50 x 40 / 20 FLOPs."""
    assert token_s(RUN, NEEDS, DEVICE, 10, FEWEST) == pytest.approx(113 / 100)
    slow = replace(DEVICE, peak_flops_per_s={"bf16": 10})
    assert token_s(RUN, NEEDS, slow, 10, FEWEST) == pytest.approx(150 / 10)


def test_waiting_requests_are_not_in_a_step() -> None:
    assert running_on_average(RUN) == 3  # 4 x 60 / 80
    assert running_on_average(replace(RUN, ttft_s=0.0)) == 4
    assert running_on_average(replace(RUN, ttft_s=1e6)) == 1
    assert running_on_average(replace(RUN, ttft_s=None)) == 4


def test_memory_limits_a_full_load() -> None:
    """Two devices of 1,000 bytes less 180 of weights, caches of 102."""
    assert sequences_that_fit(RUN, NEEDS, 102, DEVICE) == 1820 // 102 == 17
    assert batch_that_fits(replace(RUN, in_flight=None), 17) == 17
    assert batch_that_fits(RUN, 17) == 4
    assert batch_that_fits(RUN, 0) == 1


def test_the_fastest_matmuls_that_a_precision_allows_count() -> None:
    assert peak(RUN, DEVICE) == 1000
    assert peak(replace(RUN, precision="fp8"), DEVICE) == 2000
    assert peak(replace(RUN, precision="fp4"), DEVICE) == 2000  # the device has no fp4
    assert peak(replace(RUN, precision="int4"), DEVICE) == 1000  # weights alone


def test_a_run_that_is_too_fast_is_found() -> None:
    honest = Checked(run=RUN, floors=floors(RUN, NEEDS, DEVICE, 17))
    assert honest.floors.batch == 3
    assert set(honest.floors.touched) == {"running_on_average"}
    assert min(honest.ratios().values()) > 1
    too_fast = replace(RUN, tpot_s=1.0)
    ratios = Checked(run=too_fast, floors=floors(too_fast, NEEDS, DEVICE, 17)).ratios()
    assert ratios["strict: TPOT"] < 1
    assert ratios["expected: TTFT + output x TPOT"] < 1


def test_what_is_not_recorded_is_not_checked() -> None:
    rate_only = replace(RUN, ttft_s=None, tpot_s=None, tokens_per_s_per_gpu=0.5, in_flight=None)
    checked = Checked(run=rate_only, floors=floors(rate_only, NEEDS, DEVICE, 10))
    assert checked.ratios().keys() == {"strict: output at full load", "expected: output at full load"}
    assert checked.ratios()["strict: output at full load"] == pytest.approx(2 / 1.13)
    assert checked.to_win is None


def test_links_bound_a_run_whose_work_is_shorter() -> None:
    """0.9 s of links for each of 3 running sequences, 0.25 s for each of 40 prompt tokens; 4 in flight."""
    links = PlanLinks(prompt_token_s=0.25, step_token_s=0.9)
    found = floors(RUN, NEEDS, DEVICE, 17, links=links)
    alone = floors(RUN, NEEDS, DEVICE, 17)
    assert (found.step_links_s, found.prompt_links_s) == (pytest.approx(2.7), 10)
    assert found.tpot_s == pytest.approx(2.7)
    assert alone.tpot_s is not None
    assert alone.tpot_s < 2.7
    assert found.ttft_s == 10
    assert found.e2e_s == pytest.approx(10 + 20 * 4 * 0.9)
    assert found.cycle_s == pytest.approx(4 * (10 + 20 * 0.9))


def test_links_bound_a_token_at_full_load() -> None:
    """Of 20 output tokens each takes a twentieth of the prompt's 10 s and 0.9 s of its own, on 2 GPUs."""
    rate_only = replace(RUN, ttft_s=None, tpot_s=None, tokens_per_s_per_gpu=0.5, in_flight=None)
    links = PlanLinks(prompt_token_s=0.25, step_token_s=0.9)
    assert floors(rate_only, NEEDS, DEVICE, 10, links=links).token_s == pytest.approx(2 * (10 / 20 + 0.9))
    assert floors(rate_only, NEEDS, DEVICE, 10).token_s == pytest.approx(1.13)


def test_a_plan_reduces_what_its_ranks_share() -> None:
    """Llama 70B: 80 attentions and 80 MLPs; DeepSeek-R1: 3 dense layers, 58 with experts, attention is latent."""
    assert shared_blocks("llama-3.1-70b", is_alone=True, experts_split=True) == (160, 8192)
    assert shared_blocks("llama-3.1-70b", is_alone=False, experts_split=True) == (80, 8192)
    assert shared_blocks("deepseek-r1", is_alone=True, experts_split=True) == (61, 7168)
    assert shared_blocks("deepseek-r1", is_alone=True, experts_split=False) == (3, 7168)
    on_eight = link_token_s("llama-3.1-70b", "h100-sxm", ServedPlan(tensor=8), 8)
    assert on_eight == pytest.approx(160 * 8192 * 2 / 450e9)  # the switch adds: each value leaves a GPU once
    in_two = link_token_s("llama-3.1-70b", "h100-sxm", ServedPlan(tensor=4), 8)
    assert in_two == pytest.approx(80 * 8192 * 2 / 450e9 / 2)  # two attentions, each with half of the tokens
    assert link_token_s("llama-3.1-70b", "h100-sxm", ServedPlan(), 8) == 0


def test_a_plan_is_written_as_engines_write_it() -> None:
    assert ServedPlan(tensor=8, experts=8).describe(8) == "tp8 ep8"
    assert ServedPlan(experts=8).describe(8) == "dp8 ep8"
    assert ServedPlan(tensor=2).describe(4) == "tp2 dp2"
    assert ServedPlan().describe(8) == "8 GPUs"

"""Pairs of measured plans by hand, figures that hold at full depth, and a sample of the order that the page reports."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bounds.evaluation import check
from benchmarks.plans import page
from benchmarks.plans.ordering import Judged, Pair, judge, measured_pairs, pairs_of, summary
from benchmarks.plans.plan_estimates import (
    as_engines_shard,
    as_the_model_shards,
    engine_exchanges,
    rank_floor,
    share_of,
)
from benchmarks.plans.rank_step import (
    BATCH,
    PROMPT,
    DecodeFigures,
    Load,
    Share,
    decode_graph,
    figures_of,
    period,
    step_band,
    two_depths,
)
from benchmarks.records import MeasuredRun, ServedPlan
from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.ops.op import KernelKind
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.timing.predict import predict, total_wall
from llm_perf_opt.timing.rates import Band

DOCS = Path(__file__).parents[2] / "docs"
DATA: dict[str, Any] = json.loads((DOCS / "data" / "plan_order.json").read_text(encoding="utf-8"))
RUN = MeasuredRun(
    name="tp8",
    source="none",
    model="llama-3.1-70b",
    device="h100-sxm",
    engine="vllm",
    precision="fp8",
    prompt_tokens=1000,
    output_tokens=1000,
    prefill_gpus=8,
    decode_gpus=8,
    in_flight=16,
    decode_plan=ServedPlan(tensor=8),
    ttft_s=0.1,
    tpot_s=0.010,
)
SLOWER = replace(RUN, name="tp4", decode_gpus=4, decode_plan=ServedPlan(tensor=4), tpot_s=0.016)


def pairs(*runs: MeasuredRun) -> tuple[list[Pair], Counter[str]]:
    left_out: Counter[str] = Counter()
    return list(pairs_of(list(runs), left_out)), left_out


def test_two_plans_of_one_configuration_are_a_pair_the_faster_first() -> None:
    (pair,), left_out = pairs(SLOWER, RUN)
    assert (pair.faster, pair.slower, pair.kind) == (RUN, SLOWER, "number of GPUs")
    assert not left_out
    assert pairs(RUN, replace(SLOWER, in_flight=32))[0] == []
    assert pairs(RUN, replace(SLOWER, precision="bf16"))[0] == []


def test_what_is_no_pair_is_counted_by_reason() -> None:
    near = replace(SLOWER, tpot_s=0.0102)
    again = replace(RUN, name="again", in_flight=3, ttft_s=0.1000004)
    waiting = replace(SLOWER, name="waiting", ttft_s=20.0)
    drafted = replace(SLOWER, name="drafted", drafts=3, ttft_s=0.2)
    found, left_out = pairs(RUN, near, again, waiting, drafted)
    assert found == []
    assert set(left_out) == {
        "pairs within 3 %",
        "the same measurement again",
        "mostly waiting",
        "drafted tokens, by a rule",
    }
    assert set(left_out.values()) == {1}


def test_pairs_say_in_what_their_plans_differ() -> None:
    whole = replace(SLOWER, decode_gpus=8, decode_plan=ServedPlan(tensor=8, experts=8))
    apart = replace(SLOWER, decode_gpus=8, decode_plan=ServedPlan(experts=8))
    assert pairs(RUN, whole)[0][0].kind == "experts whole or split"
    assert pairs(RUN, apart)[0][0].kind == "attention data parallel"


def test_an_order_is_judged_by_the_middles_of_bands() -> None:
    """sqrt(4 x 9) = 6 before sqrt(8 x 18) = 12: twice as fast, where 1.6 times was measured."""
    pair = Pair(faster=RUN, slower=SLOWER)
    right = Judged(pair=pair, faster=Band(4, 9), slower=Band(8, 18))
    assert right.is_right
    assert right.speed_up_error == pytest.approx(2 / 1.6 - 1)
    assert not Judged(pair=pair, faster=Band(8, 18), slower=Band(4, 9)).is_right
    # 8 x 10 ms are more than 4 x 16 ms: the slower plan gives more tokens per GPU, and 8 x 6 is not below 4 x 12.
    assert right.is_right_per_gpu
    assert not Judged(pair=pair, faster=Band(4, 4), slower=Band(12, 12)).is_right_per_gpu


def test_engines_reduce_twice_in_a_layer_and_split_what_can_be_split() -> None:
    (one,) = engine_exchanges(RUN).items()
    assert (str(one[0].kind), one[0].payload_bytes, one[0].group.size, one[1]) == ("all-reduce", 16 * 8192 * 2, 8, 160)
    assert share_of(RUN) == Share(weights=8, heads=8, cache=8, experts=8)
    latent = replace(RUN, model="deepseek-r1", decode_plan=ServedPlan(tensor=8, experts=8))
    assert share_of(latent) == Share(weights=8, heads=8, cache=1, experts=8, whole_experts=8)
    apart = replace(latent, decode_plan=ServedPlan(experts=8))
    assert share_of(apart) == Share(batch=8, cache=1, experts=8, whole_experts=8)
    (sent,) = engine_exchanges(apart).items()  # 16 sequences choose 8 experts: 16 rows from each of 8 ranks, and back
    assert (str(sent[0].kind), sent[0].payload_bytes, sent[1]) == ("all-to-all", 16 * 7168 * 2, 122)
    few_keys = replace(RUN, model="qwen3-235b-a22b")
    assert share_of(few_keys).cache == 4


def test_layers_repeat_with_a_period() -> None:
    assert period("llama-3.1-70b") == (0, 1)
    assert period("deepseek-r1") == (3, 1)
    assert period("gpt-oss-120b") == (0, 2)
    assert period("qwen3.5-397b-a17b") == (0, 4)


@pytest.mark.slow
def test_figures_of_two_depths_give_those_of_all_layers() -> None:
    depths, whole = two_depths("llama-3.1-8b", "bf16", tp=2), figures_of("llama-3.1-8b", 32, "bf16", tp=2)
    assert depths is not None
    assert depths.layers == 32

    def carried(figure: Any) -> float:
        return depths.of_all_layers(figure(depths.shallow), figure(depths.deep))

    def macs(one: DecodeFigures) -> int:
        return sum(product.macs for product in one.needs.products)

    assert carried(lambda one: one.needs.weight_bytes) == whole.needs.weight_bytes
    assert carried(macs) == macs(whole)
    assert carried(lambda one: one.vector_bytes) == whole.vector_bytes
    for kind in KernelKind:
        assert carried(lambda one, kind=kind: one.kernels[kind]) == whole.kernels[kind]
    for collective, count in whole.collectives.items():
        assert carried(lambda one, asked=collective: one.collectives[asked]) == count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "plan"),
    [("llama-3.1-8b", {"tp": 4}), ("minimax-m2.5", {"tp": 4}), ("qwen3-235b-a22b", {"tp": 4, "ep": 4})],
)
def test_the_estimate_is_that_of_a_prediction(model: str, plan: dict[str, int]) -> None:
    """Equal kernels of each kind, against every kernel of the same trace by itself."""
    depths, cluster = two_depths(model, "bf16", **plan), parse_cluster("8x h100-sxm")
    assert depths is not None
    cut = replace(depths, layers=depths.deep.layers)
    load = Load(batch=BATCH, context=PROMPT + 1, precision="bf16", cluster=cluster)
    band = step_band(cut, load, Share(), {**depths.deep.collectives})
    rates = DataSheetRates(cluster.device, Execution.FUSED, cluster=cluster)
    assert band.middle == pytest.approx(
        total_wall(predict(decode_graph(model, cut.layers, **plan), rates)).middle, rel=0.02
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama-3.1-8b", "minimax-m2.5"])
def test_the_faster_of_two_measured_plans_comes_first(model: str) -> None:
    of_model = [pair for pair in measured_pairs()[0] if pair.faster.model == model]
    judged = judge(of_model, as_engines_shard)
    assert len(judged) == len(of_model) > 200
    assert sum(one.is_right for one in judged) >= 0.85 * len(judged)
    (today,) = summary(of_model, judged)["models"]
    (then,) = (row for row in DATA["engines"]["models"] if row["model"] == model)
    assert today["right"] == pytest.approx(then["right"], abs=3)
    assert today["median"] == pytest.approx(then["median"], rel=0.02)


@pytest.mark.slow
def test_so_it_does_by_the_own_plan_of_a_model() -> None:
    of_model = [pair for pair in measured_pairs()[0] if pair.faster.model == "llama-3.1-8b"]
    judged = judge(of_model, as_the_model_shards)
    assert len(judged) == len(of_model)
    assert sum(one.is_right for one in judged) >= 0.85 * len(judged)


@pytest.mark.slow
def test_a_traced_rank_and_a_share_of_the_whole_have_one_bound() -> None:
    """Traced at two depths on one rank, and at full depth on one device: the same strict bound within 1 %."""
    of_model = {run: None for pair in measured_pairs()[0] for run in pair.runs if run.model == "llama-3.1-8b"}
    shared = [run for run in of_model if run.decode_gpus > 1]
    for run in shared[:: len(shared) // 12]:
        bound, other = rank_floor(run), check(run).floors
        assert bound is not None
        assert bound.seconds == pytest.approx(other.tpot_s, rel=0.01)
        assert bound.communication_s == pytest.approx(other.step_links_s, rel=0.01)
        assert (run.tpot_s or 0) > bound.seconds


def test_the_record_keeps_what_was_asked_for() -> None:
    for estimate in ("engines", "own"):
        row = DATA[estimate]["all"]
        assert row["right"] >= 0.85 * row["covered"]
        assert row["covered"] <= row["pairs"]
    assert [row["model"] for row in DATA["floors"] if row["violations"] or row["lowest"] < 1] == []
    assert math.isclose(sum(row["pairs"] for row in DATA["engines"]["kinds"]), DATA["engines"]["all"]["pairs"])


def test_the_page_is_its_record() -> None:
    text = (DOCS / "plan-order.md").read_text(encoding="utf-8")
    written = dict(re.findall(r"<!-- begin ([\w-]+) -->\n\n(.*?)\n\n<!-- end \1 -->", text, re.DOTALL))
    assert written == {name: section.strip() for name, section in page.sections(DATA).items()}

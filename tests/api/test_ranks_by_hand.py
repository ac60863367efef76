"""Ranks of tiny models that nobody else uses: figures worked out by hand, refusals with their reasons."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.collectives import CollectiveKind
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.costs.run_description import plan_notes

HIDDEN, INNER, LAYERS, WORDS = 96, 160, 2, 320
HEADS, KEY_HEADS, WIDTH = 8, 4, 12
LAYER = HIDDEN * (2 * HEADS + 2 * KEY_HEADS) * WIDTH + 3 * HIDDEN * INNER
NORMS = (2 * LAYERS + 1) * HIDDEN
TOKENS = 20


def folder(path: Path, **changed: Any) -> Path:
    fields = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": WIDTH,
        "vocab_size": WORDS,
        "tie_word_embeddings": False,
    }
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**fields, **changed}))
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("plans") / "tiny-plans")


@pytest.fixture(scope="module")
def two_ranks(llama: Path) -> lpo.Trace:
    return lpo.trace(llama, tp=2, prompt_tokens=TOKENS, batch=3)


def test_one_of_two_ranks_by_hand(two_ranks: lpo.Trace) -> None:
    """Half of every matrix, all norms; one all-reduce after the look-up, two per layer, one gathering of logits."""
    answer = two_ranks.per_rank("8x h100-sxm")
    assert answer is not None
    (kind,) = answer.kinds
    prefill, decode = kind.phases
    assert (kind.rank, kind.ranks, answer.fits) == (0, 2, True)
    assert kind.weight_bytes == 2 * ((LAYERS * LAYER + 2 * WORDS * HIDDEN) // 2 + NORMS)
    assert kind.replicated_bytes == 2 * NORMS
    assert decode.cache_bytes == 2 * LAYERS * 3 * TOKENS * (KEY_HEADS // 2) * WIDTH * 2
    reduced, gathered = prefill.collectives
    assert (reduced.kind, reduced.count) == (CollectiveKind.ALL_REDUCE, 1 + 2 * LAYERS)
    assert reduced.payload_bytes == reduced.count * 3 * TOKENS * HIDDEN * 2
    assert (gathered.kind, gathered.count, gathered.payload_bytes) == (CollectiveKind.ALL_GATHER, 1, 3 * WORDS * 2)
    assert prefill.sent_bytes == reduced.payload_bytes + 3 * WORDS  # 2 (g - 1) / g is 1, (g - 1) / g a half


def test_the_stages_print_the_ranks(two_ranks: lpo.Trace) -> None:
    text = repr(two_ranks)
    assert "Ranks\n" in text
    assert "5 all-reduce of" in text
    assert "Weights that are replicated on every rank" in text


def test_a_model_on_one_device_has_no_ranks(llama: Path) -> None:
    trace = lpo.trace(llama, prompt_tokens=TOKENS, decode_steps=0)
    assert trace.per_rank("h100-sxm") is None
    assert "Ranks\n" not in repr(trace)


def test_bound_and_band_with_communication(two_ranks: lpo.Trace) -> None:
    cluster, alone = two_ranks.predict("8x h100-sxm", execution="fused"), two_ranks.predict("h100-sxm")
    for stage in cluster.stages:
        assert stage.lower_bound_s is not None
        assert stage.communication_low_s is not None
        assert stage.communication_high_s is not None
        assert stage.lower_bound_s <= stage.low_s
        assert stage.low_s >= stage.communication_low_s
        assert stage.high_s > stage.communication_high_s
        assert stage.exposed_share == pytest.approx(stage.communication_high_s / stage.high_s)
    assert [stage.communication_low_s for stage in alone.stages] == [None, None]
    assert any("12 collectives have no known time" in note.text for note in alone.report().notes)


def test_a_function_of_the_workload_times_ranks_as_a_prediction_does(two_ranks: lpo.Trace) -> None:
    function = two_ranks.over(batch=(1, 4), context=(16, 64))
    sweep = function.sweep(batch=[3], context=[TOKENS], gpus="2x h100-sxm", execution="fused")
    stages = two_ranks.predict("2x h100-sxm", execution="fused").stages
    for point, stage in zip(sweep.points, stages, strict=True):
        assert point.phase == stage.phase
        assert point.lower_bound_s == pytest.approx(stage.lower_bound_s)
        assert (point.low_s, point.high_s) == pytest.approx((stage.low_s, stage.high_s))


def test_a_cluster_that_is_too_small_is_refused(two_ranks: lpo.Trace, llama: Path) -> None:
    one_of_a_kind = replace(parse_cluster("2x h100-sxm"), per_node=1)
    with pytest.raises(UsageError, match="2 ranks of tp2 do not fit on 1x h100-sxm"):
        two_ranks.predict(one_of_a_kind)
    with pytest.raises(UsageError, match="4 ranks of tp4 do not fit on 2x h100-sxm"):
        lpo.trace(llama, tp=4, device="2x h100-sxm")


def test_stages_of_a_pipeline_differ_by_their_tables(llama: Path) -> None:
    answer = lpo.trace(llama, pp=2, prompt_tokens=TOKENS, decode_steps=0).per_rank()
    assert answer is not None
    first, last = answer.kinds
    assert [(kind.rank, kind.ranks, kind.replicated_bytes) for kind in answer.kinds] == [(0, 1, 0), (1, 1, 0)]
    one_layer = 2 * (LAYER + 2 * HIDDEN + WORDS * HIDDEN)
    assert (first.weight_bytes, last.weight_bytes) == (one_layer, one_layer + 2 * HIDDEN)
    weights = next(one for one in answer.balances if one.figure == "weight bytes")
    assert weights.imbalance == pytest.approx((one_layer + 2 * HIDDEN) / (one_layer + HIDDEN))


def test_an_engine_copies_key_heads_where_its_ranks_outnumber_them(llama: Path) -> None:
    """Four key heads on eight ranks: a rank holds one of width 12, as it does on four, and one of the eight heads."""
    four, eight = (lpo.trace(llama, tp=tp, prompt_tokens=TOKENS, copies_key_heads=True).graphs[0] for tp in (4, 8))
    assert [held(graph, "k_proj") for graph in (four, eight)] == [WIDTH * HIDDEN] * 2
    assert [held(graph, "q_proj") for graph in (four, eight)] == [2 * WIDTH * HIDDEN, WIDTH * HIDDEN]
    assert "4 key heads on 8 ranks: each is held by 2 of them, as engines do (vLLM)." in eight.notes
    assert not any("key heads" in note for note in four.notes)


def test_the_model_s_own_code_refuses_that_and_says_whose_rule_it_is(llama: Path) -> None:
    with pytest.raises(
        UsageError, match="4 key heads cannot be split by 8: this is transformers' code, which copies no heads"
    ):
        lpo.trace(llama, tp=8, prompt_tokens=TOKENS)


def held(graph: CallGraph, name: str) -> int:
    """Numbers of the weight of that name in the first layer on this rank."""
    return next(prod(one.meta.shape) for one in graph.parameters if f"layers.0.self_attn.{name}.weight" in one.name)


def test_the_batch_is_that_of_a_rank_and_the_answer_says_how_many_that_are_in_all(llama: Path) -> None:
    traced = lpo.trace(llama, fsdp=2, prompt_tokens=TOKENS, batch=2)
    (note,) = plan_notes(traced.graphs)
    assert note.text.endswith("Its batch of 2 is its own: 4 sequences in all.")
    assert f"4 x {TOKENS} tokens in all (2 per rank)" in traced.predict("2x h100-sxm").answer[0]


def test_the_bound_of_fully_sharded_ranks_is_not_below_that_of_replicas(llama: Path) -> None:
    """Both compute all layers for half of the sequences; fully sharded ranks gather weights besides."""
    bounds = {}
    for plan in ({"fsdp": 2}, {"dp": 2}):
        traced = lpo.trace(llama, **plan, prompt_tokens=TOKENS, batch=2)
        bounds[next(iter(plan))] = traced.predict("2x h100-sxm").stages[0].lower_bound_s
    assert bounds["fsdp"] is not None
    assert bounds["dp"] is not None
    assert bounds["fsdp"] >= bounds["dp"] > 0

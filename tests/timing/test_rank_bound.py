"""The collectives that every engine which runs a plan needs, by hand-worked numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.collectives import Collective, CollectiveKind, GroupRanks
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import Cluster, Link, LinkKind
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.costs.necessary.anatomy import anatomy_of
from llm_perf_opt.costs.necessary.decoder_needs import decoder_needs
from llm_perf_opt.costs.necessary.stage_needs import Reason, necessary_by_stage
from llm_perf_opt.costs.parameters import active_parameters
from llm_perf_opt.timing.rank_bound import communication_s, is_of_weights, least_collectives

LAYERS, HIDDEN, BATCH, PROMPT = 3, 64, 8, 5
DECODER = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 160,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
}
LLAMA = {**DECODER, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
MOE = {
    **DECODER,
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
}
FAST = Link(id="round", name="Round", kind=LinkKind.NVLINK, bytes_per_s=1000, latency_ns=1000, reduces_in_network=False)
DEVICE = Device(
    id="round",
    name="Round",
    vendor="none",
    arch="none",
    peak_flops_per_s={"bf16": 1000},
    bandwidth_bytes_per_s=100,
    memory_bytes=1000,
)
CLUSTER = Cluster(device=DEVICE, per_node=8, inside=FAST)


def traced(folder: Path, configuration: dict[str, Any], **plan: int) -> dict[str, CallGraph]:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(configuration), encoding="utf-8")
    trace = lpo.trace(folder, batch=BATCH, prompt_tokens=PROMPT, **plan)
    return {graph.phase: graph for graph in trace.graphs}


def kinds(graph: CallGraph) -> dict[tuple[str, int], int]:
    (stage,) = least_collectives(graph).values()
    return {(str(one.kind), one.payload_bytes): count for one, count in stage.items()}


def test_partial_sums_of_a_block_are_added_up_once(tmp_path: Path) -> None:
    """Two blocks in each layer, 16-bit values. Reducing embeddings and gathering logits have ways around them."""
    graphs = traced(tmp_path / "llama", LLAMA, tp=2)
    assert kinds(graphs["decode"]) == {("all-reduce", BATCH * HIDDEN * 2): 2 * LAYERS}
    assert kinds(graphs["prefill"]) == {("all-reduce", BATCH * PROMPT * HIDDEN * 2): 2 * LAYERS}


def test_weights_that_are_fully_sharded_must_be_gathered(tmp_path: Path) -> None:
    """Each layer once, and the table; torch keeps the last group, norm and head, from the prefill."""
    graphs = traced(tmp_path / "llama", LLAMA, fsdp=2)
    layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * 96 + 2 * HIDDEN
    assert kinds(graphs["decode"]) == {("all-gather", 2 * layer): LAYERS, ("all-gather", 2 * 160 * HIDDEN): 1}


def test_tokens_may_choose_experts_on_their_own_rank(tmp_path: Path) -> None:
    """Attention is reduced; what goes to experts of other ranks depends on the routing, and none has to."""
    graphs = traced(tmp_path / "moe", MOE, tp=2, ep=2)
    assert kinds(graphs["decode"]) == {("all-reduce", BATCH * HIDDEN * 2): LAYERS}


@pytest.mark.parametrize(("plan", "tokens"), [({"tp": 2, "ep": 2}, BATCH), ({"fsdp": 2, "ep": 2}, 2 * BATCH)])
def test_the_experts_that_ranks_are_expected_to_read_add_up_to_the_models(
    tmp_path: Path, plan: dict[str, int], tokens: int
) -> None:
    """Each of 8 tokens takes 4 of 16 experts, of which a rank holds 8; ranks of fsdp have tokens of their own."""
    whole = decoder_needs(traced(tmp_path / "moe", MOE)["decode"])
    rank = decoder_needs(traced(tmp_path / "moe", MOE, **plan)["decode"])
    expert = 3 * HIDDEN * 32 * 2
    assert sum(block.layers for block in rank.experts) == LAYERS
    assert {(block.experts, block.chosen, block.bytes_each, block.ranks) for block in rank.experts} == {
        (8, 4, expert, 2)
    }
    of_rank = rank.step(batch=BATCH, context=PROMPT + 1)
    of_whole = whole.step(batch=tokens, context=PROMPT + 1)
    assert of_whole.expert_bytes == round(LAYERS * 16 * (1 - (12 / 16) ** tokens) * expert)
    assert of_rank.expert_bytes == pytest.approx(of_whole.expert_bytes / 2, abs=1)
    assert of_rank.fewest_expert_bytes == 0  # every token may choose experts of the other rank alone
    assert of_whole.fewest_expert_bytes == LAYERS * 4 * expert


def test_the_rows_of_all_ranks_add_up_to_the_models(tmp_path: Path) -> None:
    """3 x 2 x 8 tokens x 4 experts x their matrices; half of it on each of two ranks."""
    graph = traced(tmp_path / "moe", MOE, tp=2, ep=2)["decode"]
    routed = sum(block.necessary_flops for block in anatomy_of(graph).experts)
    assert routed == LAYERS * 2 * BATCH * 4 * 3 * HIDDEN * 32 // 2


def test_fully_sharded_a_rank_computes_and_reads_what_one_device_does(tmp_path: Path) -> None:
    """The rank gathers every weight: with the same batch its work and its weights are those of one device."""
    alone, rank = (traced(tmp_path / "llama", LLAMA, **plan) for plan in ({}, {"fsdp": 4}))
    layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * 96
    for phase, tokens in (("prefill", PROMPT), ("decode", 1)):
        (one,), (other,) = (necessary_by_stage(graphs[phase]).values() for graphs in (alone, rank))
        assert other.flops_by_dtype == one.flops_by_dtype
        assert (other.weight_bytes, other.cache_bytes) == (one.weight_bytes, one.cache_bytes)
        assert other.active_matrix_parameters == LAYERS * layer + 160 * HIDDEN
        assert other.flops > 2 * BATCH * tokens * (LAYERS - 1) * layer
        assert Reason.BETWEEN_ACTIVATIONS not in other.saved  # no gathered weight is taken for an activation
        assert active_parameters(rank[phase]) == active_parameters(alone[phase])


def all_reduce(payload: int, ranks: int) -> Collective:
    return Collective(
        kind=CollectiveKind.ALL_REDUCE, payload_bytes=payload, group=GroupRanks(ranks, 0, ranks - 1, 1), axis="tp"
    )


def test_collectives_run_one_after_the_other_on_the_links() -> None:
    """An all-reduce of 2,000 bytes between 4 ranks sends 2 x 3/4 of them at 1,000 bytes/s: 3 s, and there are two."""
    assert communication_s({all_reduce(2000, 4): 2}, CLUSTER) == pytest.approx(2 * 3)


def test_a_link_that_is_not_known_adds_nothing_to_a_bound() -> None:
    assert communication_s({all_reduce(2000, 4): 1}, Cluster(device=DEVICE, per_node=8)) == 0


def test_gathered_weights_are_found_by_axis_or_by_ranks() -> None:
    plan = ParallelPlan(tp=2, fsdp=4)
    gather = Collective(kind=CollectiveKind.ALL_GATHER, payload_bytes=1, group=GroupRanks(4, 0, 6, 2))
    assert is_of_weights(gather, plan)
    assert not is_of_weights(gather, ParallelPlan(tp=8))
    logits = Collective(kind=CollectiveKind.ALL_GATHER, payload_bytes=1, group=GroupRanks(2, 0, 1, 1))
    assert not is_of_weights(logits, plan)
    assert not is_of_weights(all_reduce(1, 4), plan)

"""The blocks that an engine runs, read from a traced step, against the configuration and the model's own figures."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.costs.necessary.decoder_needs import decoder_needs
from llm_perf_opt.timing.step.engine_blocks import DecoderPart, EngineBlocks, EngineMatmul, Split, engine_blocks
from tests.kept_traces import kept_graph

CONFIGS = Path(__file__).parents[2] / "facts" / "serving" / "configs"


@cache
def decode_step(model: str) -> CallGraph:
    def decode() -> CallGraph:
        trace = lpo.trace(str(CONFIGS / model), batch=4, prompt_tokens=16)
        return next(graph for graph in trace.graphs if graph.phase == "decode")

    config = (CONFIGS / model / "config.json").read_text("utf-8")
    return kept_graph(f"decode of {config}, batch 4, 16 tokens", decode)


def blocks_of(model: str) -> EngineBlocks:
    return engine_blocks(decode_step(model))


def matrix_parameters(graph: CallGraph) -> int:
    """What a token is multiplied by, as the account of necessary work has it."""
    return decoder_needs(graph).active_matrix_parameters


@pytest.fixture(scope="module")
def dense() -> EngineBlocks:
    return blocks_of("qwen2-0.5b")


@pytest.fixture(scope="module")
def routed() -> EngineBlocks:
    return blocks_of("qwen3-30b-a3b")


def only(blocks: EngineBlocks, part: DecoderPart, split: Split) -> EngineMatmul:
    (found,) = [one for one in blocks.matmuls if one.part is part and one.split is split]
    return found


def test_matmuls_of_one_input_are_one_matmul(dense: EngineBlocks) -> None:
    together = only(dense, DecoderPart.ATTENTION, Split.COLUMNS)
    assert (together.columns, together.depth, together.layers) == (14 * 64 + 2 * 2 * 64, 896, 24)
    assert (together.key_columns, together.key_heads) == (2 * 2 * 64, 2)
    up = only(dense, DecoderPart.MLP, Split.COLUMNS)
    assert (up.columns, up.depth) == (2 * 4864, 896)


def test_the_last_matmul_of_a_block_is_split_by_rows(dense: EngineBlocks) -> None:
    assert only(dense, DecoderPart.ATTENTION, Split.ROWS).depth == 14 * 64
    assert only(dense, DecoderPart.MLP, Split.ROWS).depth == 4864
    assert only(dense, DecoderPart.HEAD, Split.COLUMNS).columns == 151936


def test_blocks_have_the_multiplications_of_the_model() -> None:
    for graph in map(decode_step, ("qwen2-0.5b", "qwen3-30b-a3b")):
        assert engine_blocks(graph).macs_per_token == matrix_parameters(graph)


def test_experts_and_their_router(routed: EngineBlocks) -> None:
    (experts,) = routed.experts
    assert (experts.hidden, experts.inner, experts.experts, experts.chosen) == (2048, 768, 128, 8)
    assert experts.layers == routed.layers == 48
    assert only(routed, DecoderPart.ROUTER, Split.REPLICATED).columns == 128


def test_ranks_that_outnumber_key_heads_repeat_them(routed: EngineBlocks) -> None:
    together = only(routed, DecoderPart.ATTENTION, Split.COLUMNS)
    assert (together.columns, together.key_heads) == (32 * 128 + 2 * 4 * 128, 4)
    assert together.shared_by(4) == (together.columns // 4, 2048)
    assert together.shared_by(8) == (32 * 128 // 8 + 2 * 128, 2048)


@pytest.mark.slow
def test_a_latent_projection_is_replicated_on_every_rank() -> None:
    blocks = blocks_of("deepseek-r1")
    latent = {one.columns: one for one in blocks.matmuls if one.part is DecoderPart.LATENT}
    assert latent[1536 + 576].split is Split.REPLICATED
    assert latent[128 * 192].split is Split.COLUMNS
    assert latent[128 * 256].is_expansion
    assert blocks.layers == 61
    assert blocks.macs_per_token == matrix_parameters(decode_step("deepseek-r1"))


def test_experts_without_a_gate_have_two_matrices(tmp_path: Path) -> None:
    catalogue = Path(lpo.__file__).parent / "models/huggingface/catalogue"
    config = json.loads((catalogue / "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16/config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"hybrid_override_pattern": "ME*", "num_hidden_layers": 3})
    )
    trace = lpo.trace(str(tmp_path), batch=4, prompt_tokens=16)
    (decode,) = (graph for graph in trace.graphs if graph.phase == "decode")
    blocks = engine_blocks(decode)
    (experts,) = blocks.experts
    assert (experts.hidden, experts.inner, experts.experts, experts.chosen) == (2688, 1856, 128, 6)
    assert not experts.is_gated
    assert experts.matrix_elements_each == 2 * 2688 * 1856
    taps = 4 * (64 * 64 + 2 * 8 * 128)  # of the short convolution, which is a vector kernel
    assert blocks.macs_per_token == matrix_parameters(decode) - taps


SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL |= {"vocab_size": 128}
PARTS = "MEM*-M"  # of NemotronH: mixers with a state, experts, attention, MLP
TINY: dict[str, dict[str, Any]] = {
    "nemotron_h": {
        "num_hidden_layers": len(PARTS),
        "hybrid_override_pattern": PARTS,
        "head_dim": 16,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 1,
        "ssm_state_size": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 48,
    },
    "jamba": {
        "num_hidden_layers": 4,
        "attn_layer_period": 4,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "gemma2": {"num_hidden_layers": 3, "head_dim": 16},
    "cohere": {"num_hidden_layers": 3, "eos_token_id": 1},
    "olmo2": {"num_hidden_layers": 3},
    "llama4_text": {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "intermediate_size_mlp": 96,
        "num_local_experts": 2,
        "no_rope_layers": [1, 1, 1, 0],
    },
    "qwen2_moe": {
        "num_hidden_layers": 3,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
    },
    "qwen3_next": {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
    },
}


def tiny_blocks(model_type: str, folder: Path) -> EngineBlocks:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **SMALL, **TINY[model_type]}))
    graphs = lpo.trace(str(folder), prompt_tokens=8, dtype="bfloat16").graphs
    return engine_blocks(next(graph for graph in graphs if graph.phase == "decode"))


@pytest.mark.parametrize(
    ("model_type", "layers", "sums", "norms", "with_states"),
    [
        ("nemotron_h", 6, 6, 6 + 1, 3),  # each layer is one part behind one norm
        ("jamba", 4, 2 * 4, 2 * 4 + 1, 3),  # a mixer or attention, then an MLP or experts
        ("gemma2", 3, 2 * 3, 4 * 3 + 1, 0),  # a norm before and behind each part
        ("cohere", 3, 3, 3 + 1, 0),  # attention and MLP read the same norm, and are added before ranks add up
    ],
)
def test_sums_norms_and_states_of_layers_are_those_of_the_architecture(
    model_type: str, layers: int, sums: int, norms: int, with_states: int, tmp_path: Path
) -> None:
    """Ranks add up each part once: shared and routed experts of a layer are one."""
    blocks = tiny_blocks(model_type, tmp_path)
    assert (blocks.layers, blocks.reduced, blocks.layer_norms) == (layers, sums, norms)
    assert (0 if blocks.states is None else blocks.states.layers) == with_states


def columns_of(blocks: EngineBlocks, columns: int) -> list[EngineMatmul]:
    return [matmul for matmul in blocks.matmuls if matmul.columns == columns]


def test_scores_of_experts_and_the_gate_of_a_shared_one_are_two_matmuls(tmp_path: Path) -> None:
    blocks = tiny_blocks("qwen2_moe", tmp_path)
    scores, gate = (columns_of(blocks, columns) for columns in (6, 1))
    assert [(one.depth, one.split, one.layers) for one in (*scores, *gate)] == 2 * [(64, Split.REPLICATED, 3)]


def test_a_delta_rule_keeps_its_decays_out_of_the_wide_matmul(tmp_path: Path) -> None:
    """Three mixers: queries, keys, values and gates of 2 + 2 + 4 + 4 heads of 128; two numbers for each of 4 heads."""
    blocks = tiny_blocks("qwen3_next", tmp_path)
    wide, narrow = (columns_of(blocks, columns) for columns in ((2 + 2 + 4 + 4) * 128, 2 * 4))
    assert [(one.split, one.layers) for one in (*wide, *narrow)] == 2 * [(Split.COLUMNS, 3)]


def test_a_vocabulary_is_padded_before_ranks_share_it() -> None:
    """49,159 tokens of granite-3.3 are 769 times 64: 49,216, of which each of eight ranks has 6,152."""
    head = EngineMatmul(
        columns=49159,
        depth=4096,
        weight_format="bfloat16",
        dtype="bfloat16",
        split=Split.COLUMNS,
        part=DecoderPart.HEAD,
    )
    assert [head.shared_by(ranks)[0] for ranks in (1, 2, 8)] == [49216, 24608, 6152]
    assert replace(head, part=DecoderPart.MLP).shared_by(1)[0] == 49159

"""The blocks that an engine runs, read from a traced step, against the configuration and the model's own figures."""

import json
from functools import cache
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.timing.step.engine_blocks import DecoderPart, EngineBlocks, EngineProduct, Split, engine_blocks
from tests.kept_traces import kept_graph

CONFIGS = Path(__file__).parents[2] / "facts" / "serving" / "configs"


@cache
def blocks_of(model: str) -> EngineBlocks:
    def decode() -> CallGraph:
        trace = lpo.trace(str(CONFIGS / model), batch=4, prompt_tokens=16)
        return next(graph for graph in trace.graphs if graph.phase == "decode")

    config = (CONFIGS / model / "config.json").read_text("utf-8")
    return engine_blocks(kept_graph(f"decode of {config}, batch 4, 16 tokens", decode))


@pytest.fixture(scope="module")
def dense() -> EngineBlocks:
    return blocks_of("qwen2-0.5b")


@pytest.fixture(scope="module")
def routed() -> EngineBlocks:
    return blocks_of("qwen3-30b-a3b")


def only(blocks: EngineBlocks, part: DecoderPart, split: Split) -> EngineProduct:
    (found,) = [one for one in blocks.products if one.part is part and one.split is split]
    return found


def test_products_of_one_input_are_one_product(dense: EngineBlocks) -> None:
    together = only(dense, DecoderPart.ATTENTION, Split.COLUMNS)
    assert (together.columns, together.depth, together.layers) == (14 * 64 + 2 * 2 * 64, 896, 24)
    assert (together.key_columns, together.key_heads) == (2 * 2 * 64, 2)
    up = only(dense, DecoderPart.MLP, Split.COLUMNS)
    assert (up.columns, up.depth) == (2 * 4864, 896)


def test_the_last_product_of_a_block_is_split_by_rows(dense: EngineBlocks) -> None:
    assert only(dense, DecoderPart.ATTENTION, Split.ROWS).depth == 14 * 64
    assert only(dense, DecoderPart.MLP, Split.ROWS).depth == 4864
    assert only(dense, DecoderPart.HEAD, Split.COLUMNS).columns == 151936


def test_blocks_have_the_multiplications_of_the_model(dense: EngineBlocks, routed: EngineBlocks) -> None:
    for blocks in (dense, routed):
        assert blocks.macs_per_token == blocks.needs.active_matrix_parameters


def test_experts_and_their_router(routed: EngineBlocks) -> None:
    (experts,) = routed.experts
    assert (experts.hidden, experts.inner, experts.experts, experts.chosen) == (2048, 768, 128, 8)
    assert experts.layers == routed.layers == 48
    assert only(routed, DecoderPart.ROUTER, Split.WHOLE).columns == 128


def test_ranks_that_outnumber_key_heads_repeat_them(routed: EngineBlocks) -> None:
    together = only(routed, DecoderPart.ATTENTION, Split.COLUMNS)
    assert (together.columns, together.key_heads) == (32 * 128 + 2 * 4 * 128, 4)
    assert together.shared_by(4) == (together.columns // 4, 2048)
    assert together.shared_by(8) == (32 * 128 // 8 + 2 * 128, 2048)


@pytest.mark.slow
def test_a_latent_projection_is_whole_on_every_rank() -> None:
    blocks = blocks_of("deepseek-r1")
    latent = {one.columns: one for one in blocks.products if one.part is DecoderPart.LATENT}
    assert latent[1536 + 576].split is Split.WHOLE
    assert latent[128 * 192].split is Split.COLUMNS
    assert latent[128 * 256].is_expansion
    assert blocks.layers == 61
    assert blocks.macs_per_token == blocks.needs.active_matrix_parameters


def test_experts_without_a_gate_have_two_matrices(tmp_path: Path) -> None:
    catalogue = Path(lpo.__file__).parent / "models/huggingface/catalogue"
    config = json.loads((catalogue / "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16/config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"hybrid_override_pattern": "ME*", "num_hidden_layers": 3})
    )
    trace = lpo.trace(str(tmp_path), batch=4, prompt_tokens=16)
    blocks = engine_blocks(next(graph for graph in trace.graphs if graph.phase == "decode"))
    (experts,) = blocks.experts
    assert (experts.hidden, experts.inner, experts.experts, experts.chosen) == (2688, 1856, 128, 6)
    assert not experts.is_gated
    assert experts.matrix_elements_each == 2 * 2688 * 1856
    taps = 4 * (64 * 64 + 2 * 8 * 128)  # of the short convolution, which is a vector kernel
    assert blocks.macs_per_token == blocks.needs.active_matrix_parameters - taps

"""What is read from a trace: widths, weights and cache of one device, with figures from the configurations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.engines import VLLM_0_11_0, VLLM_0_12, total_bytes
from llm_perf_opt.serving.fit import fit_of, rank_memory, serving_notes
from llm_perf_opt.serving.held_memory import cache_per_sequence, engine_weights, trained_context
from llm_perf_opt.serving.working_memory import ForwardWidths, forward_widths
from tests.serving.traced_models import decode_step

pytestmark = pytest.mark.slow
ONE = ParallelPlan()
H100 = find_device("h100-sxm")


def test_matmuls_of_one_input_are_one_matmul_and_the_last_is_the_head() -> None:
    # gate and up of 14,336 each, then the activated 14,336; queries, keys and values with 4,096 are narrower
    widths = ForwardWidths(hidden=4096, vocabulary=128_256, between_matmuls=3 * 14_336)
    assert forward_widths(decode_step("llama31-8b"), plan=ONE) == widths
    # two ranks halve what is not the residual stream
    assert forward_widths(decode_step("llama31-8b"), plan=ParallelPlan(tp=2)) == replace(
        widths, between_matmuls=3 * 7168
    )


def test_experts_are_as_wide_as_those_that_a_token_takes() -> None:
    widths = forward_widths(decode_step("mixtral-8x7b"), plan=ONE)
    assert widths is not None
    assert widths.routed == 2 * (2 * 14_336 + 14_336)
    halved = forward_widths(decode_step("mixtral-8x7b"), plan=ParallelPlan(tp=4))
    assert halved is not None
    assert halved.routed == 2 * (2 * 3584 + 4096)  # 14,336 / 4 is below the hidden size of 4,096


def test_key_value_heads_are_dealt_out_and_a_latent_cache_is_not() -> None:
    llama = decode_step("llama31-8b")  # 32 layers, keys and values of 8 heads of 128 in bfloat16
    assert _cache_bytes(llama, ranks=1) == 1600 * 32 * 2 * 8 * 128 * 2
    assert _cache_bytes(llama, ranks=4) == 1600 * 32 * 2 * 2 * 128 * 2
    assert _cache_bytes(llama, ranks=16) == 1600 * 32 * 2 * 128 * 2  # two ranks hold each head
    latent = decode_step("deepseek-v3")  # 61 layers of 512 + 64 numbers
    assert _cache_bytes(latent, ranks=1) == _cache_bytes(latent, ranks=8) == 1600 * 61 * 576 * 2


def test_every_second_layer_of_gpt_oss_keeps_a_window_of_128() -> None:
    per_layer = 2 * 8 * 64 * 2
    assert _cache_bytes(decode_step("gpt-oss-20b-mxfp4"), ranks=1) == per_layer * 12 * (1600 + 128)


def test_keys_of_an_encoder_do_not_grow_with_the_decoder() -> None:
    cache = cache_per_sequence(
        decode_step("whisper-large-v3"), plan=ONE
    )  # 32 layers of 1,280; 1,500 frames are encoded
    assert cache is not None
    assert cache.bytes_at(160) - cache.bytes_at(16) == 144 * 32 * 2 * 1280 * 2
    assert cache.state_bytes == pytest.approx(1500 * 32 * 2 * 1280 * 2, rel=0.001)


def _cache_bytes(graph: CallGraph, *, ranks: int) -> int:
    cache = cache_per_sequence(graph, plan=ParallelPlan(tp=ranks))
    assert cache is not None
    return cache.bytes_at(1600)


def test_weights_are_divided_by_ranks_and_rotary_tables_are_whole() -> None:
    graph = decode_step("llama31-8b")
    stored, table = engine_weights(graph, H100, engine=VLLM_0_12, plan=ONE)
    # 131,072 positions of 128 sines and cosines in bfloat16
    assert (stored.bytes, table.bytes) == (8_030_261_248 * 2, 131_072 * 128 * 2)
    assert trained_context(graph) == 131_072
    stored, table = engine_weights(graph, H100, engine=VLLM_0_12, plan=ParallelPlan(tp=2))
    norms = 65 * 4096 * 2
    assert (stored.bytes, table.bytes) == ((8_030_261_248 * 2 - norms) // 2 + norms, 131_072 * 128 * 2)


def test_mxfp4_scales_stand_twice_on_hopper_and_biases_are_float32() -> None:
    graph = decode_step("gpt-oss-20b-mxfp4")
    *_, copies = engine_weights(graph, H100, engine=VLLM_0_12, plan=ONE)
    # 24 layers of 32 experts: 5,760 outputs become 5,888 and 2,880 become 3,072, 90 groups; 8,640 biases, 2 bytes more
    assert copies.bytes == 24 * 32 * ((5888 + 3072) * 90 + 8640 * 2)
    older = total_bytes(engine_weights(graph, H100, engine=VLLM_0_11_0, plan=ONE))
    ada = total_bytes(engine_weights(graph, find_device("rtx-4090"), engine=VLLM_0_12, plan=ONE))
    assert older == ada == total_bytes(engine_weights(graph, H100, engine=VLLM_0_12, plan=ONE)) - copies.bytes


def test_notes_say_what_the_needs_rest_on_and_needs_are_unknown_without_a_decode_step() -> None:
    graph = decode_step("llama31-8b")
    needs = rank_memory([graph], H100, plan=ParallelPlan(tp=2), engine=VLLM_0_12)
    fit = fit_of(needs, H100, batch=1, context=1000)
    assert fit.outside_torch_bytes == VLLM_0_12.outside_torch_parallel_bytes
    notes = [note.text for note in serving_notes(needs, fit)]
    assert any("8,192 tokens" in note and "1,024 sequences" in note for note in notes)
    assert any("trained length" in note for note in notes)
    blind = rank_memory([replace(graph, phase="prefill")], H100)
    assert (blind.working, blind.cache) == (None, None)
    assert fit_of(blind, H100, batch=1, context=1).fits is None

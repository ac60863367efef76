"""Published configurations and the requests that people make of them: long prompts, no image, a cache that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.costs.memory.need import run_memory
from llm_perf_opt.costs.stage_costs import stage_costs
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.models.huggingface.options import HuggingFaceWorkload

pytest.importorskip("transformers", minversion="5.0", reason="the configurations are those of transformers 5")

CONFIGS = Path(__file__).parents[2] / "facts" / "deployment" / "configs"


def traced(name: str, **options: Any) -> tuple[CallGraph, ...]:
    tracer = WeightlessTracer()
    targets = HuggingFaceAdapter(CONFIGS / name, False).targets(HuggingFaceWorkload(**options))
    return tuple(tracer.trace(target) for target in targets)


def rows_into(graph: CallGraph, path: str) -> set[tuple[int, ...]]:
    return {meta.shape for seen in graph.input_metadata[path] for meta in seen.tensors}


def test_qwen3_runs_the_whole_prompt_and_says_that_it_is_beyond_its_training() -> None:
    (prefill,) = traced("qwen3-8b", prompt_tokens=131072, decode_steps=0)
    assert rows_into(prefill, "model.embed_tokens") == {(1, 131072)}
    (note,) = prefill.notes
    assert "131,072 positions run, and the configuration names 40,960" in note


def test_bert_runs_all_of_its_512_positions_and_no_more() -> None:
    (prefill,) = traced("bert-large", prompt_tokens=512)
    assert rows_into(prefill, "bert.embeddings.word_embeddings") == {(1, 512)}
    with pytest.raises(UsageError, match="513"):
        traced("bert-large", prompt_tokens=513)


def test_whisper_decodes_after_the_prompt_that_was_asked_for() -> None:
    prefill, decode = traced("whisper-large-v3", prompt_tokens=200)
    assert rows_into(prefill, "model.decoder.embed_tokens") == {(1, 200)}
    assert (prefill.workload["audio_frames"], prefill.workload["encoder_tokens"]) == (3000, 1500)
    assert {(1, 20, 200, 64), (1, 20, 1500, 64)} <= rows_into(decode, "")  # what it said, and what it heard


def test_qwen_vl_sees_an_image_only_if_it_is_shown_one() -> None:
    (text,) = traced("qwen25-vl-7b", prompt_tokens=100, decode_steps=0)
    assert not [path for path in text.call_counts if "visual" in path]
    (shown,) = traced("qwen25-vl-7b", prompt_tokens=100, image="1288x728", decode_steps=0)
    assert shown.workload["image_tokens"] == 46 * 26 + 2  # squares of 28 pixels, and the tokens before and after them
    assert shown.workload["context_tokens"] == 100 + 1198
    assert rows_into(shown, "model.visual.patch_embed") == {(4 * 46 * 26, 3 * 2 * 14 * 14)}


def test_a_batch_of_pages_has_the_tokens_of_each_page() -> None:
    """39 x 55 squares of 32 pixels on a page: 68,640 of them in 32 pages."""
    (one,) = traced("qwen3-vl-8b", image="1248x1760", decode_steps=0)
    (many,) = traced("qwen3-vl-8b", image="1248x1760", batch=32, decode_steps=0)
    assert rows_into(one, "model.visual.patch_embed") == {(4 * 39 * 55, 3 * 2 * 16 * 16)}
    assert rows_into(many, "model.visual.patch_embed") == {(32 * 4 * 39 * 55, 3 * 2 * 16 * 16)}
    assert many.workload["image_tokens"] == one.workload["image_tokens"]
    assert stage_costs(many).total.flops == 32 * stage_costs(one).total.flops


def test_the_prefill_of_llama_has_one_row_of_logits() -> None:
    (prefill,) = traced("llama32-1b", prompt_tokens=512, decode_steps=0)
    assert rows_into(prefill, "lm_head") == {(1, 1, 2048)}


def test_a_decode_step_of_llama_moves_its_weights_its_cache_and_the_copy_that_it_makes() -> None:
    """32 layers, keys and values, 8 heads of 128 in two bytes: 131,072 bytes of cache per token."""
    tokens, layers = 100_000, 32
    graphs = traced("llama31-8b", prompt_tokens=tokens)
    cache = tokens * 131_072
    matrices = 2 * (8_030_261_248 - 128_256 * 4096)  # all but the embedding, of which one row is read
    decode = stage_costs(graphs[1]).total
    # Concatenating reads the old cache and writes a longer one, attention reads that: three times in all.
    assert decode.bytes_moved == pytest.approx(matrices + 3 * cache, rel=1e-3)
    memory = run_memory(graphs)
    assert memory.cache is not None and memory.cache.bytes == cache
    phase = memory.phases[1]
    assert phase.peak_kv_bytes is not None and phase.peak_other_bytes is not None and phase.input_bytes is not None
    assert cache < phase.peak_kv_bytes < cache * (layers + 1) / layers
    assert phase.peak_other_bytes < 1 << 20
    assert phase.input_bytes == pytest.approx(8 * (tokens + 1), rel=1e-3)  # the mask, and one token
    assert phase.total_bytes == pytest.approx(2 * 8_030_261_248 + cache, rel=0.02)

"""A function of a model that nothing else here uses, against figures worked out on paper from its configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the model is one of transformers")

import llm_perf_opt as lpo
from benchmarks.function.exactness import figures_of

# StarCoder2 3B, four of its thirty layers.
LAYERS, HIDDEN, HEADS, CACHED_HEADS, WIDE, VOCABULARY = 4, 3072, 24, 2, 12288, 49152
HEAD = HIDDEN // HEADS  # 128
BATCH, CONTEXT = 7, 1234
CONFIGURATION = {
    "model_type": "starcoder2",
    "architectures": ["Starcoder2ForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": CACHED_HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 16384,
    "sliding_window": 4096,
    "use_bias": True,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "torch_dtype": "bfloat16",
}


def test_decode_flops_cache_and_weights_are_those_on_paper(tmp_path: Path, one_thread: None) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGURATION), encoding="utf-8")
    function = lpo.trace(tmp_path).over(batch=(6, 8), context=(1200, 1300))
    for phase in function.phases:
        assert not phase.open_regions
        assert all({"batch": BATCH, "context": CONTEXT} not in one.cell.program.samples for one in phase.cells)
    decode = figures_of(function.at(batch=BATCH, context=CONTEXT).graphs[1])

    # A layer: queries and outputs 3072 x 3072, keys and values 3072 x 256 each, two matrices 3072 x 12288.
    matrices = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * CACHED_HEADS * HEAD + 2 * HIDDEN * WIDE
    assert matrices == 95_944_704
    # Each matrix has a bias; two norms have a scale and a shift each. The last norm too; the head is the embedding.
    biases = (HIDDEN + 2 * CACHED_HEADS * HEAD + HIDDEN) + (WIDE + HIDDEN)
    parameters = LAYERS * (matrices + biases + 4 * HIDDEN) + 2 * HIDDEN + VOCABULARY * HIDDEN
    assert decode["parameters"] == parameters == 534_917_120
    # Two bytes each, and two tables of 64 rotary frequencies in float32.
    assert decode["weight_bytes"] == 2 * parameters + 2 * (HEAD // 2) * 4 == 1_069_834_752
    # Keys and values of 2 heads, 128 numbers of 2 bytes, in 4 layers, for 7 x 1,234 tokens.
    assert decode["cache_bytes"] == 2 * CACHED_HEADS * HEAD * 2 * LAYERS * BATCH * CONTEXT == 35_381_248
    # Two FLOPs for each weight of a matrix and each sequence; 24 heads see 1,234 cached tokens and the new one, and
    # scores and weighted sum take 2 FLOPs for each of 128 numbers.
    matmuls = 2 * BATCH * (LAYERS * matrices + VOCABULARY * HIDDEN)
    attention = LAYERS * BATCH * HEADS * (CONTEXT + 1) * 2 * (2 * HEAD)
    assert decode["flops"] == matmuls + attention == 7_911_751_680
    column = function.figures("decode", {"batch": BATCH, "context": CONTEXT}, ("flops", "cache_bytes"))
    assert (int(column["flops"][0]), int(column["cache_bytes"][0])) == (7_911_751_680, 35_381_248)

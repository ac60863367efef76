"""One rank's memory has one account: a prediction, a plan, a study and a replay find the same tokens in its cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.engines import default_limits
from llm_perf_opt.serving.fit import ServingFit, fullest_fit, memory_of_ranks
from llm_perf_opt.sweeps.studies.traced_points import served_batches

pytest.importorskip("transformers", minversion="5.20", reason="transformers spreads models over meshes from 5.20 on")

H100 = find_device("h100-sxm")
CONTEXT = 40
_DECODER: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
_LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 8,
}
_ROUTED = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
# name -> (fields of its configuration, its plan)
MODELS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "dense": ({"model_type": "llama"}, {"tp": 2}),
    "as many key heads as ranks": ({"model_type": "llama", "num_key_value_heads": 2}, {"tp": 2}),
    "fewer key heads than ranks": ({"model_type": "llama", "num_key_value_heads": 2}, {"tp": 4}),
    "tied": ({"model_type": "llama", "tie_word_embeddings": True}, {"tp": 2}),
    "biases": ({"model_type": "qwen2"}, {"tp": 4}),
    "norms of heads": ({"model_type": "qwen3"}, {"tp": 2}),
    "every layer with a window": ({"model_type": "mistral", "sliding_window": 16}, {"tp": 2}),
    "every second layer with a window": ({"model_type": "gemma2", "sliding_window": 16}, {"tp": 2}),
    "experts": ({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}, {"tp": 2}),
    "experts that ranks deal out": (
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
        {"tp": 2, "ep": 2},
    ),
    "many small experts": ({"model_type": "qwen3_moe", **_ROUTED, "num_experts": 8}, {"tp": 2}),
    "latent vectors": (
        {
            "model_type": "deepseek_v3",
            **_LATENT,
            **_ROUTED,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
        {"tp": 2},
    ),
}


def _folder(path: Path, fields: dict[str, Any]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**_DECODER, "torch_dtype": "bfloat16", **fields}))
    return path


def _replayed(folder: Path, plan: ParallelPlan) -> ServingFit:
    """As a replay finds it: from a trace of the whole model."""
    whole = lpo.trace(folder, prompt_tokens=CONTEXT - 1)
    return fullest_fit(memory_of_ranks(whole.graphs, H100, plan, limits=default_limits(H100)), H100, context=CONTEXT)


@pytest.mark.parametrize("name", MODELS)
def test_ranks_and_whole_models_give_one_account(name: str, tmp_path: Path) -> None:
    fields, sizes = MODELS[name]
    folder = _folder(tmp_path / "model", fields)
    replayed = _replayed(folder, ParallelPlan(**sizes))
    traced = lpo.trace(folder, **sizes, prompt_tokens=CONTEXT - 1, copies_key_heads=True)
    predicted = traced.predict(f"{sizes['tp']}x h100-sxm").serving
    assert predicted is not None
    assert predicted == replayed
    kinds = [one.graphs for one in traced.ranks]
    assert served_batches(kinds, H100, [CONTEXT]) == {CONTEXT: replayed.largest_batch}
    assert replayed.cache_tokens is not None
    assert replayed.cache_tokens % 16 == 0


VISIBLE_MIB = 81_559 - 512  # an H100, less what the driver keeps
CUBLAS, UNITS = 32 * 2**20, 132
CHUNK, ROWS, HIDDEN, INNER, WORDS, LAYERS = 8192, 1024, 64, 96, 256, 4


def _working(between: int) -> int:
    """The wider of two moments: logits of 1,024 rows, or the widest matmuls of a chunk, all in bfloat16."""
    sampling = (CHUNK + 2 * ROWS) * HIDDEN * 2 + ROWS * WORDS * (2 + 4 + 4 + 4) + UNITS * WORDS * 4
    return CUBLAS + max(sampling, CHUNK * 2 * (3 * HIDDEN + between))


def _tokens(weights: int, working: int, outside_gib: float, block_bytes: int) -> int:
    """Whole blocks of 16 tokens in 92 % of the memory; half a GiB of captured graphs counts as outside PyTorch."""
    room = int(VISIBLE_MIB * 2**20 * 0.92) - weights - working - round(outside_gib * 2**30) - 2**29
    return room // block_bytes * 16


def test_a_dense_model_by_hand(tmp_path: Path) -> None:
    """Queries 64 x 64, keys and values 32 x 64 each, output 64 x 64, three of 96 x 64; norms; 2,048 angles of 8."""
    folder = _folder(tmp_path / "model", {"model_type": "llama"})
    matrices = 2 * WORDS * HIDDEN + LAYERS * (2 * 64 * 64 + 2 * 32 * 64 + 3 * INNER * HIDDEN)
    norms, table = (2 * LAYERS + 1) * HIDDEN, 2048 * 8
    block = 16 * LAYERS * 2 * 4 * 8 * 2  # keys and values of four heads of eight
    one = _tokens(2 * (matrices + norms + table), _working(3 * INNER), 0.25, block)
    assert _replayed(folder, ParallelPlan()).cache_tokens == one
    two = _tokens(2 * (matrices // 2 + norms + table), _working(3 * INNER // 2), 2.1, block // 2)
    assert _replayed(folder, ParallelPlan(tp=2)).cache_tokens == two
    # Two stages: two layers each, the embedding with the first, a norm and the head with the last, which also samples.
    layers = LAYERS // 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * INNER * HIDDEN + 2 * HIDDEN)
    stage = _tokens(2 * (layers + WORDS * HIDDEN + HIDDEN + table), _working(3 * INNER), 0.07, block // 2)
    assert _replayed(folder, ParallelPlan(pp=2)).cache_tokens == stage


def test_few_key_heads_are_repeated_by_hand(tmp_path: Path) -> None:
    """Two heads of keys on four ranks: each rank has one, in its weights and in its cache."""
    folder = _folder(tmp_path / "model", {"model_type": "llama", "num_key_value_heads": 2})
    shared = (2 * WORDS * HIDDEN + LAYERS * (2 * 64 * 64 + 3 * INNER * HIDDEN)) // 4
    repeated = LAYERS * 2 * 8 * 64
    weights = 2 * (shared + repeated + (2 * LAYERS + 1) * HIDDEN + 2048 * 8)
    # A quarter of gate, up and activated values is narrower than what attention gives and the MLP takes, both hidden.
    assert 3 * INNER // 4 < 2 * HIDDEN
    expected = _tokens(weights, _working(2 * HIDDEN), 2.1, 16 * LAYERS * 2 * 8 * 2)
    assert _replayed(folder, ParallelPlan(tp=4)).cache_tokens == expected


def test_a_latent_cache_is_whole_on_every_rank_by_hand(tmp_path: Path) -> None:
    """16 + 8 numbers for each token and layer, however many ranks there are."""
    folder = _folder(tmp_path / "model", MODELS["latent vectors"][0])
    for ranks in (1, 2):
        fit = _replayed(folder, ParallelPlan(tp=ranks))
        assert fit.room_bytes is not None
        assert fit.cache_tokens == fit.room_bytes // (16 * LAYERS * 24 * 2) * 16
        assert fit.cache_bytes == 48 * LAYERS * 24 * 2  # 40 tokens are three blocks


def test_a_window_keeps_its_own_blocks_by_hand(tmp_path: Path) -> None:
    """Every second of four layers keeps 16 tokens, so a sequence of 40 takes 3 + 1 blocks of two layers each."""
    folder = _folder(tmp_path / "model", MODELS["every second layer with a window"][0])
    fit = _replayed(folder, ParallelPlan())
    layer = 16 * 2 * 4 * 8 * 2
    assert fit.cache_bytes == 2 * 3 * layer + 2 * 1 * layer
    assert fit.room_bytes is not None
    assert fit.largest_batch == fit.room_bytes // fit.cache_bytes


def test_the_fullest_stage_speaks_for_a_pipeline(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model", MODELS["dense"][0])
    predicted = lpo.trace(folder, pp=2, prompt_tokens=CONTEXT - 1).predict("2x h100-sxm").serving
    assert predicted is not None
    assert predicted.cache_tokens == _replayed(folder, ParallelPlan(pp=2)).cache_tokens


def test_a_model_with_a_plan_of_its_own_has_one_account_as_well() -> None:
    whole, rank = (lpo.trace("deepseek-ocr-tiny", **plan) for plan in ({}, {"tp": 2}))
    memory = memory_of_ranks(whole.graphs, H100, ParallelPlan(tp=2), limits=default_limits(H100))
    replayed = fullest_fit(memory, H100, context=CONTEXT)
    predicted = rank.predict("2x h100-sxm").serving
    assert predicted is not None
    assert predicted.cache_tokens == replayed.cache_tokens


def test_groups_with_attention_of_their_own_share_the_experts_by_hand(tmp_path: Path) -> None:
    """Four experts of three matrices of 96 x 64 in each layer; two groups have two each, and all else whole."""
    folder = _folder(tmp_path / "model", MODELS["experts"][0])
    experts = LAYERS * 4 * 3 * INNER * HIDDEN
    router, attention = 4 * HIDDEN, 2 * 64 * 64 + 2 * 32 * 64
    rest = 2 * WORDS * HIDDEN + LAYERS * (attention + router) + (2 * LAYERS + 1) * HIDDEN + 2048 * 8
    groups = _replayed(folder, ParallelPlan(attention_dp=2, ep=2))
    assert groups.weights_bytes == 2 * (rest + experts // 2)
    assert _replayed(folder, ParallelPlan()).weights_bytes == 2 * (rest + experts)


@pytest.mark.parametrize("plan", [{"tp": 4}, {"pp": 4}, {"tp": 2, "dp": 2}, {"pp": 2, "dp": 2}])
def test_a_traced_plan_holds_what_a_replay_of_it_holds(tmp_path: Path, plan: dict[str, int]) -> None:
    folder = _folder(tmp_path / "model", MODELS["dense"][0])
    ranks = lpo.trace(folder, **plan, prompt_tokens=CONTEXT - 1, copies_key_heads=True).per_rank("4x h100-sxm")
    assert ranks is not None
    fits = [kind.serving for kind in ranks.kinds]
    tokens = [None if fit is None else fit.cache_tokens for fit in fits]
    assert min(one for one in tokens if one is not None) == _replayed(folder, ParallelPlan(**plan)).cache_tokens

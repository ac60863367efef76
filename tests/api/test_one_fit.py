"""One rank's memory has one account: a prediction, a plan, a study and a replay find the same tokens in its cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.analyses.serving.engines import default_limits
from llm_perf_opt.analyses.serving.fit import ServingFit, fullest_fit
from llm_perf_opt.api.study_traces import served_batches
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.parallel_plan import ParallelPlan

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
# name -> (fields of its configuration, ranks)
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "dense": ({"model_type": "llama"}, 2),
    "as many key heads as ranks": ({"model_type": "llama", "num_key_value_heads": 2}, 2),
    "fewer key heads than ranks": ({"model_type": "llama", "num_key_value_heads": 2}, 4),
    "tied": ({"model_type": "llama", "tie_word_embeddings": True}, 2),
    "biases": ({"model_type": "qwen2"}, 4),
    "norms of heads": ({"model_type": "qwen3"}, 2),
    "every layer with a window": ({"model_type": "mistral", "sliding_window": 16}, 2),
    "every second layer with a window": ({"model_type": "gemma2", "sliding_window": 16}, 2),
    "experts": ({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}, 2),
    "many small experts": ({"model_type": "qwen3_moe", **_ROUTED, "num_experts": 8}, 2),
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
        2,
    ),
}


def _folder(path: Path, fields: dict[str, Any]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**_DECODER, "torch_dtype": "bfloat16", **fields}))
    return path


def _replayed(folder: Path, plan: ParallelPlan) -> ServingFit:
    """As a replay finds it: from a trace of the whole model."""
    whole = lpo.trace(folder, prompt_tokens=CONTEXT - 1)
    return fullest_fit(whole.graphs, H100, plan, context=CONTEXT, limits=default_limits(H100))


@pytest.mark.parametrize("name", MODELS)
def test_ranks_and_whole_models_give_one_account(name: str, tmp_path: Path) -> None:
    fields, ranks = MODELS[name]
    folder = _folder(tmp_path / "model", fields)
    replayed = _replayed(folder, ParallelPlan(tp=ranks))
    traced = lpo.trace(folder, tp=ranks, prompt_tokens=CONTEXT - 1, copies_key_heads=True)
    predicted = traced.predict(f"{ranks}x h100-sxm").serving
    assert predicted is not None
    assert predicted == replayed
    kinds = [one.graphs for one in traced.ranks]
    assert served_batches(kinds, H100, [CONTEXT]) == {CONTEXT: replayed.largest_batch}
    assert replayed.cache_tokens is not None
    assert replayed.cache_tokens % 16 == 0


def test_every_plan_of_the_table_holds_what_a_replay_of_it_holds(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model", MODELS["dense"][0])
    answer = lpo.plans(folder, "4x h100-sxm", prompt_tokens=CONTEXT - 1, global_batch=4)
    compared = set()
    for plan in answer.plans:
        if plan.plan.fsdp > 1:  # which no serving engine does
            continue
        fits = [kind.serving for kind in plan.kinds]
        tokens = [None if fit is None else fit.cache_tokens for fit in fits]
        assert min(one for one in tokens if one is not None) == _replayed(folder, plan.plan).cache_tokens, plan.name
        compared.add(plan.name)
    assert {"tp4", "pp4", "tp2 dp2", "pp2 dp2", "dp4"} <= compared

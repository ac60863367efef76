"""A step of several new tokens after a cache: a chunk of a prefill, or the check of a draft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.target import PhaseBefore
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.memory.kv_cache import kv_cache
from llm_perf_opt.costs.necessary.stage_needs import necessary_by_stage
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.ops.table import price
from tests.models.huggingface.folders import LLAMA, MIXTRAL, T5, TEXT, write_folder

transformers = pytest.importorskip(
    "transformers", reason="a Hugging Face folder is run by transformers, an optional extra"
)
pytestmark = pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5,
    reason="names and caches of these models are those of transformers 5",
)

HEADS, KV_HEADS, WIDTH, HEAD, HIDDEN, LAYERS, VOCABULARY = 4, 2, 64, 16, 96, 2, 200
GROUPED = {**TEXT, "num_key_value_heads": KV_HEADS}
SMALL_LLAMA = {**LLAMA, **GROUPED}
WINDOW = 48
MISTRAL = {"model_type": "mistral", "sliding_window": WINDOW, **GROUPED}
GEMMA = {
    "model_type": "gemma3_text",
    "sliding_window": 32,
    "head_dim": HEAD,
    "layer_types": ["sliding_attention", "full_attention"],
    **GROUPED,
}
LATENT = {
    "model_type": "deepseek_v3",
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    **TEXT,
}
MAMBA2 = {
    "model_type": "mamba2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "num_heads": 8,
    "head_dim": 16,
    "n_groups": 1,
    "chunk_size": 8,
}


def name_of(config: dict[str, Any]) -> str:
    return str(config["model_type"])


def step_of(folder: Path, config: dict[str, Any], **workload: Any) -> CallGraph:
    return lpo.trace(write_folder(folder, config), **workload).graphs[1]


def matrix_flops(graph: CallGraph, *, attention: bool = True) -> int:
    costs = ((kind.name, price(kind), count) for kind, count in count_kinds(graph).items())
    return sum(c.flops * count for name, c, count in costs if c is not None and (attention or "attention" not in name))


@pytest.mark.parametrize(("batch", "context", "new"), [(1, 5, 2), (2, 24, 8), (3, 17, 40)])
def test_a_chunk_of_llama_costs_what_its_sizes_say(tmp_path: Path, batch: int, context: int, new: int) -> None:
    """Every weight meets every new token, and every new token all keys: no mask saves any work. One row of logits."""
    weights = 2 * WIDTH * WIDTH + 2 * WIDTH * KV_HEADS * HEAD + 3 * WIDTH * HIDDEN
    linear = 2 * LAYERS * weights * batch * new
    attention = LAYERS * 4 * batch * HEADS * new * (context + new) * HEAD
    head = 2 * batch * WIDTH * VOCABULARY
    graph = step_of(tmp_path, SMALL_LLAMA, prompt_tokens=context, new_tokens=new, batch=batch)
    assert (graph.phase, graph.workload["new_tokens"]) == ("chunk", new)
    assert matrix_flops(graph) == linear + attention + head


def test_the_matmuls_of_chunks_add_up_to_those_of_the_whole_prefill(tmp_path: Path) -> None:
    folder, head = write_folder(tmp_path, SMALL_LLAMA), 2 * WIDTH * VOCABULARY
    whole = lpo.trace(folder, prompt_tokens=60).graphs[0]
    first, second = lpo.trace(folder, prompt_tokens=21, new_tokens=19).graphs
    third = lpo.trace(folder, prompt_tokens=40, new_tokens=20).graphs[1]
    parts = [matrix_flops(graph, attention=False) - head for graph in (first, second, third)]
    assert sum(parts) == matrix_flops(whole, attention=False) - head


@pytest.mark.parametrize("config", [SMALL_LLAMA, MISTRAL, MIXTRAL, GEMMA, LATENT, MAMBA2, T5], ids=name_of)
def test_chunk_after_prefill_gives_the_logits_of_the_whole(tmp_path: Path, config: dict[str, Any]) -> None:
    """With real weights: the mask hides what it must inside the chunk, across windows too, and the cache is read."""
    torch.manual_seed(0)
    workload = Workload(prompt_tokens=40, new_tokens=24, batch=2, dtype="float32")
    prefill, chunk = HuggingFaceAdapter(write_folder(tmp_path, config), False).targets(workload)
    model = prefill.build().float()
    begun: Any = prefill.start(model)
    output = prefill.run(model, begun)
    assert chunk.chain.follow is not None
    begin: Any = chunk.chain.follow(model, PhaseBefore(start=begun, output=output, token=None, choose=lambda _: None))
    name = begin.token_name
    begin.steps[0][name] = torch.randint(VOCABULARY, begin.steps[0][name].shape)
    ids = torch.cat([begun[name], begin.steps[0][name]], dim=1)
    with_mask = {"attention_mask": torch.ones_like(ids)} if name == "input_ids" and "attention_mask" in begun else {}
    after: Any = chunk.run(model, begin)
    with torch.no_grad():
        whole = model(**{**begun, name: ids, **with_mask})
    assert torch.allclose(after.logits[:, -1], whole.logits[:, -1], atol=1e-5)
    assert not torch.allclose(after.logits[:, -1], output.logits[:, -1], atol=1e-5)


def test_necessary_work_of_a_chunk_of_llama(tmp_path: Path) -> None:
    """The last layer needs its keys and values of all new tokens, everything else in it for the last one alone."""
    batch, context, new = 2, 24, 8
    graph = step_of(tmp_path, SMALL_LLAMA, prompt_tokens=context, new_tokens=new, batch=batch)
    keys_and_values, others = 2 * WIDTH * KV_HEADS * HEAD, 2 * WIDTH * WIDTH + 3 * WIDTH * HIDDEN
    linear = keys_and_values * 2 * new + others * (new + 1) + WIDTH * VOCABULARY
    pairs = new * context + new * (new + 1) // 2 + (context + new)
    found = necessary_by_stage(graph)["chunk"]
    assert found.flops == 2 * batch * (linear + pairs * HEADS * 2 * HEAD)
    assert found.cache_bytes == batch * context * LAYERS * 2 * KV_HEADS * HEAD * 2


def test_a_window_limits_pairs_and_cache_of_a_chunk(tmp_path: Path) -> None:
    """Each query of the first layer sees its window; of what was there before the first query sees the most."""
    context, new = 100, 20
    graph = step_of(tmp_path, MISTRAL, prompt_tokens=context, new_tokens=new)
    found = necessary_by_stage(graph)["chunk"]
    linear = 2 * WIDTH * KV_HEADS * HEAD * 2 * new + (2 * WIDTH * WIDTH + 3 * WIDTH * HIDDEN) * (new + 1)
    pairs = new * WINDOW + WINDOW
    assert found.flops == 2 * (linear + WIDTH * VOCABULARY + pairs * HEADS * 2 * HEAD)
    assert found.cache_bytes == (WINDOW - 1) * LAYERS * 2 * KV_HEADS * HEAD * 2


@pytest.mark.parametrize("config", [SMALL_LLAMA, MISTRAL, MIXTRAL, GEMMA, LATENT], ids=name_of)
def test_chunk_and_decode_agree_on_the_cache_and_stay_within_what_is_written(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    chunk = step_of(tmp_path, config, prompt_tokens=20, new_tokens=6, batch=2)
    decode = step_of(tmp_path, config, prompt_tokens=20, batch=2)
    mine, theirs = kv_cache([chunk]), kv_cache([decode])
    assert mine is not None and theirs is not None
    assert (mine.bytes, mine.bytes_per_token) == (theirs.bytes, theirs.bytes_per_token)
    assert mine.bytes_per_token > 0
    assert necessary_by_stage(chunk)["chunk"].flops <= matrix_flops(chunk)


def test_a_window_that_is_full_adds_no_bytes_per_token(tmp_path: Path) -> None:
    cache = kv_cache([step_of(tmp_path, MISTRAL, prompt_tokens=WINDOW - 4, new_tokens=10)])
    assert cache is not None
    assert cache.bytes_per_token == 0


def test_a_saved_chunk_says_how_many_tokens_are_new(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    traced = lpo.trace(write_folder(tmp_path / "model", SMALL_LLAMA), prompt_tokens=9, new_tokens=3)
    traced.save(tmp_path / "run")
    again = lpo.load(tmp_path / "run")
    assert again.phases == ("prefill", "chunk")
    assert [graph.workload["new_tokens"] for graph in again.graphs] == [3, 3]


@pytest.mark.parametrize(
    ("workload", "why"),
    [
        ({"decode_steps": 2, "new_tokens": 4}, "a chunk is one step"),
        ({"decode_steps": 0, "new_tokens": 4}, "a chunk is one step"),
    ],
)
def test_steps_of_several_chunks_are_refused(tmp_path: Path, workload: dict[str, int], why: str) -> None:
    with pytest.raises(UsageError, match="new tokens") as refusal:
        lpo.trace(write_folder(tmp_path, SMALL_LLAMA), prompt_tokens=8, **workload)
    assert why in str(refusal.value.why)


@pytest.mark.parametrize("model", ["deepseek-ocr-tiny", "got-ocr2"])
def test_models_that_decode_token_by_token_refuse_a_chunk(model: str) -> None:
    with pytest.raises(UsageError, match="4 new tokens"):
        lpo.trace(model, new_tokens=4)


def test_a_model_without_a_cache_refuses_a_chunk(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"model_type": "bert", **TEXT})
    with pytest.raises(UsageError, match="does not run 4 new tokens after a prefill"):
        lpo.trace(folder, prompt_tokens=8, new_tokens=4)

"""Experts know how many there are in their layer, and how many each token takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.graphs.view import group
from tests.graphs.made_runs import ADD, MadeRun, Token, boxes, made

EXPERTS = 4
CLASSES = {
    "layers": "ModuleList",
    "layers.0": "DecoderLayer",
    "layers.0.mlp": "SparseMoeBlock",
    "layers.0.mlp.gate": "Router",
    "layers.0.mlp.experts": "ModuleList",
    **{f"layers.0.mlp.experts.{n}": "MLP" for n in range(EXPERTS)},
    **{f"layers.0.mlp.experts.{n}.up": "Linear" for n in range(EXPERTS)},
    "layers.0.mlp.shared_experts": "MLP",
    "layers.0.mlp.shared_experts.up": "Linear",
    "head": "Linear",
}


def mixture(params: dict[str, dict[str, Any]]) -> CallGraph:
    def block(run: MadeRun, token: Token) -> Token:
        total = run.call("layers.0.mlp.gate", token)
        for name in (*(f"experts.{n}" for n in range(EXPERTS)), "shared_experts"):
            path = f"layers.0.mlp.{name}"
            total = run.op(ADD, total, run.call(path, token, lambda inner, path=path: run.call(f"{path}.up", inner)))
        return total

    def forward(run: MadeRun, token: Token) -> Token:
        token = run.call("layers.0", token, lambda x: run.call("layers.0.mlp", x, lambda y: block(run, y)))
        return run.call("head", token)

    graph = made(CLASSES, forward)
    return replace(graph, constructor_params={**graph.constructor_params, **params})


def contexts(graph: CallGraph) -> dict[str, dict[str, Any]]:
    return {box.path: dict(box.layer_context) for box in boxes(group(graph)) if box.layer_context}


BOTH = {
    "layers.0.mlp.experts.[0-3]": {"num_experts": EXPERTS, "top_k": 2},
    "layers.0.mlp.experts.[0-3].up": {"num_experts": EXPERTS, "top_k": 2},
}


@pytest.mark.parametrize(
    "params",
    [
        {"layers.0.mlp": {"n_routed_experts": 4, "num_experts_per_tok": 2}},
        {"layers.0.mlp": {"num_experts": 4, "top_k": 2}},
        {"layers.0.mlp.gate": {"num_experts": 4, "top_k": 2}},
        {"layers.0.mlp": {"num_local_experts": 4}, "layers.0.mlp.gate": {"top_k": 2}},
        {"layers.0.mlp.gate": {"moe_num_experts": 4, "moe_top_k": 2}},
    ],
    ids=lambda params: " ".join(name for table in params.values() for name in table),
)
def test_the_block_or_its_router_says_it_for_the_experts_and_what_is_in_them(params: dict[str, dict[str, Any]]) -> None:
    assert contexts(mixture(params)) == BOTH  # not for the shared experts, the router, the head


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"layers.0.mlp": {"num_experts": 4}},
        {"layers.0.mlp": {"num_experts": 8, "top_k": 2}},  # there are four siblings
        {"layers.0.mlp": {"num_experts": True, "top_k": 2}},
        {"layers.0.mlp": {"num_experts": "4", "top_k": 0}},
    ],
    ids=str,
)
def test_without_both_numbers_nothing_is_said(params: dict[str, dict[str, Any]]) -> None:
    assert contexts(mixture(params)) == {}


def test_what_an_expert_holds_itself_stays_as_it_is() -> None:
    graph = mixture({"layers.0.mlp": {"num_experts": 4, "top_k": 2}})
    (expert,) = [box for box in boxes(group(graph)) if box.path == "layers.0.mlp.experts.[0-3]"]
    assert expert.constructor_params == {"size": 8}
    assert graph.constructor_params["layers.0.mlp.experts.0"] == {"size": 8}


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
        ("Qwen2Moe", {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16}),
        ("DeepseekV3", {"n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 0}),
    ],
)
def test_models_of_transformers(model: str, sizes: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.0", reason="an extra")
    import llm_perf_opt as lpo

    common = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    if model == "DeepseekV3":
        sizes = {**sizes, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
        sizes |= {"v_head_dim": 4, "n_group": 1, "topk_group": 1}
    config = getattr(transformers, f"{model}Config")(**common, vocab_size=64, num_key_value_heads=4, **sizes)
    built = getattr(transformers, f"{model}ForCausalLM")(config).eval()
    import torch

    graph = lpo.trace(built, kwargs={"input_ids": torch.ones(1, 5, dtype=torch.long)}).graphs[0]
    experts = sizes.get("num_local_experts") or sizes.get("num_experts") or sizes.get("n_routed_experts")
    wanted = {"num_experts": experts, "top_k": sizes["num_experts_per_tok"]}
    found = contexts(graph)
    assert found["model.layers.[0-1].mlp.experts"] == wanted
    assert all(context == wanted for context in found.values())

"""Necessary work of small models, worked out from their sizes by hand, whatever code runs them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder, OpKind
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.plugins import MODELS, TRACERS
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.costs.necessary.decoder_needs import DecoderNeeds, decoder_needs
from llm_perf_opt.costs.necessary.stage_needs import NecessaryWork, Reason, necessary_by_stage
from llm_perf_opt.costs.stage_costs import stage_costs
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.models.huggingface.options import HuggingFaceWorkload
from llm_perf_opt.timing.datasheet_rates import DataSheetRates
from llm_perf_opt.timing.predict import predict
from tests.models.huggingface.folders import LLAMA, LLAVA, MIXTRAL, T5, TEXT, write_folder

transformers = pytest.importorskip("transformers", reason="the models here are transformers', an optional extra")
if int(transformers.__version__.split(".")[0]) < 5:
    pytest.skip("experts and latent attention are written otherwise in earlier versions", allow_module_level=True)

WIDTH, MLP, LAYERS, HEADS, VOCABULARY = 64, 96, 2, 4, 200
HEAD_DIM = WIDTH // HEADS
SLIDING: dict[str, Any] = {"model_type": "mistral", "sliding_window": 8, **TEXT}
LATENT: dict[str, Any] = {
    **TEXT,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
LLAMA4: dict[str, Any] = {
    **TEXT,
    "model_type": "llama4_text",
    "architectures": ["Llama4ForCausalLM"],
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "head_dim": 16,
    "attention_chunk_size": 16,
}
PHI3: dict[str, Any] = {**TEXT, "model_type": "phi3", "pad_token_id": 0}


def traced(folder: Path, config: dict[str, Any], routing: str = "uniform", **options: Any) -> dict[str, CallGraph]:
    targets = HuggingFaceAdapter(write_folder(folder, config), False).targets(HuggingFaceWorkload(**options))
    return {target.phase: WeightlessTracer(routing=routing).trace(target) for target in targets}


ADDED = (
    *("weight_bytes", "expert_bytes", "fewest_expert_bytes", "cache_bytes", "other_bytes"),
    "active_matrix_parameters",
)


def total(graph: CallGraph, policy: str | None = None) -> NecessaryWork:
    """All stages together; what one of them does not know, the run does not know."""
    works = list(necessary_by_stage(graph, policy).values())
    if len(works) == 1:
        return works[0]
    counts = {name: known_sum(getattr(work, name) for work in works) for name in ADDED}
    flops = Counter[str]()
    saved = Counter[Reason]()
    for work in works:
        flops.update(work.flops_by_dtype)
        saved.update(work.saved)
    experts = tuple(found for work in works for found in work.distinct_experts)
    return replace(works[0], flops_by_dtype=dict(flops), saved=dict(saved), distinct_experts=experts, **counts)


def needs_of(folder: Path, config: dict[str, Any], **options: Any) -> DecoderNeeds:
    return decoder_needs(traced(folder, config, **options)["decode"])


def llama_layer() -> int:
    return 4 * WIDTH * WIDTH + 3 * WIDTH * MLP


def test_a_decode_step_by_hand(tmp_path: Path) -> None:
    graph = traced(tmp_path, LLAMA, prompt_tokens=20, batch=3)["decode"]
    work = total(graph)
    matrices = LAYERS * llama_layer() + VOCABULARY * WIDTH
    assert work.active_matrix_parameters == matrices
    assert work.flops == 3 * (2 * matrices + LAYERS * 4 * 21 * WIDTH)
    norms = (2 * LAYERS + 1) * WIDTH
    assert work.weight_bytes == 2 * (matrices + norms + 3 * WIDTH)  # and the embeddings of three tokens
    assert work.cache_bytes == 2 * LAYERS * 2 * WIDTH * 20 * 3
    assert work.expert_bytes == 0


def test_each_of_several_decode_steps_reads_what_the_steps_before_left(tmp_path: Path) -> None:
    work = total(traced(tmp_path, LLAMA, prompt_tokens=20, batch=3, decode_steps=3)["decode"])
    assert work.cache_bytes == 2 * LAYERS * 2 * WIDTH * (20 + 21 + 22) * 3


def test_a_prefill_needs_logits_and_last_layer_of_the_last_position_and_visible_pairs(tmp_path: Path) -> None:
    """Keys and values of the last layer are needed everywhere, the rest of it and the head for one position."""
    work = total(traced(tmp_path, LLAMA, prompt_tokens=20, batch=3)["prefill"])
    everywhere = (LAYERS - 1) * llama_layer() + 2 * WIDTH * WIDTH
    once = llama_layer() - 2 * WIDTH * WIDTH + VOCABULARY * WIDTH
    pairs = (LAYERS - 1) * 20 * 21 // 2 + 20
    assert work.flops == 3 * (2 * everywhere * 20 + 2 * once + 4 * pairs * WIDTH)


@pytest.mark.parametrize("key_heads", [4, 2])
def test_queries_keys_and_values_in_one_matmul_need_what_three_matmuls_need(tmp_path: Path, key_heads: int) -> None:
    """Of the last layer's fused projection keys and values are needed everywhere, queries for the last position."""
    cached = 2 * key_heads * HEAD_DIM * WIDTH
    layer = 2 * WIDTH * WIDTH + cached + 3 * WIDTH * MLP
    graphs = traced(tmp_path, {**PHI3, "num_key_value_heads": key_heads}, prompt_tokens=20, batch=3)
    pairs = (LAYERS - 1) * 20 * 21 // 2 + 20
    everywhere, once = (LAYERS - 1) * layer + cached, layer - cached + VOCABULARY * WIDTH
    flops = 3 * (2 * everywhere * 20 + 2 * once + 4 * pairs * WIDTH)
    assert total(graphs["prefill"]).flops == flops
    assert decoder_needs(graphs["decode"]).prefill(batch=3, prompt=20).flops == flops
    assert total(graphs["decode"]).flops == 3 * (2 * (everywhere + once) + LAYERS * 4 * 21 * WIDTH)


def test_vision_layers_above_the_features_that_are_taken_are_not_necessary(tmp_path: Path) -> None:
    """Features of the second but last of three layers: one layer of 17 positions, 32 wide, feeds nothing."""
    works = {
        layer: total(traced(tmp_path, {**LLAVA, "vision_feature_layer": layer}, batch=2, image="32x32")["prefill"])
        for layer in (-1, -2)
    }
    matrices = 4 * 32 * 32 + 2 * 32 * 48
    unused = 2 * (2 * 17 * matrices + 4 * 17 * 17 * 32)
    assert works[-1].flops - works[-2].flops == unused
    assert (works[-1].saved.get(Reason.UNUSED, 0), works[-2].saved[Reason.UNUSED]) == (0, unused)
    assert works[-1].weight_bytes is not None
    assert works[-2].weight_bytes is not None
    vectors = 4 * 32 + 32 + 48 + 4 * 32  # biases, and two norms
    assert works[-1].weight_bytes - works[-2].weight_bytes == 2 * (matrices + vectors)


def test_an_image_before_the_text_changes_nothing_about_the_last_position(tmp_path: Path) -> None:
    graph = traced(tmp_path, LLAVA, prompt_tokens=9, batch=2, image="32x32")["prefill"]
    context = graph.workload["context_tokens"]
    assert context > 9
    once = llama_layer() - 2 * WIDTH * WIDTH
    assert necessary_by_stage(graph)["prefill"].saved[Reason.POSITIONS] == 2 * 2 * (context - 1) * once


@pytest.mark.parametrize(
    "config", [LLAMA, PHI3, MIXTRAL, SLIDING, LATENT, LLAMA4, LLAVA], ids=lambda config: config["model_type"]
)
def test_work_as_written_is_necessary_work_and_what_each_reason_saves(config: dict[str, Any], tmp_path: Path) -> None:
    for graph in traced(tmp_path, config, prompt_tokens=20, batch=2).values():
        written = {stage.name: stage.flops for stage in stage_costs(graph).stages}
        for name, work in necessary_by_stage(graph).items():
            assert work.flops + sum(work.saved.values()) == written[name]
            assert min(work.saved.values(), default=0) >= 0 or Reason.LATENT in work.saved


@pytest.mark.parametrize("config", [LLAMA, MIXTRAL, SLIDING, LATENT, LLAMA4], ids=lambda config: config["model_type"])
def test_the_attention_code_does_not_change_what_is_necessary(config: dict[str, Any], tmp_path: Path) -> None:
    eager, fused = (
        traced(tmp_path, config, prompt_tokens=20, batch=2, attention=attention) for attention in ("eager", "sdpa")
    )
    for phase in eager:
        one, other = total(eager[phase]), total(fused[phase])
        assert dict(one.flops_by_dtype) == dict(other.flops_by_dtype)
        assert (one.weight_bytes, one.cache_bytes) == (other.weight_bytes, other.cache_bytes)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("config", [MIXTRAL, LATENT], ids=lambda config: config["model_type"])
def test_the_way_experts_are_run_does_not_change_what_is_necessary(
    config: dict[str, Any], phase: str, tmp_path: Path
) -> None:
    found = []
    for experts in ("grouped_mm", "batched_mm", "eager"):
        targets = HuggingFaceAdapter(write_folder(tmp_path, config), False).targets(Workload(prompt_tokens=20, batch=3))
        (target,) = [target for target in targets if target.phase == phase]

        def build(build: Any = target.build, experts: str = experts) -> Any:
            model = build()
            model.set_experts_implementation(experts)
            return model

        work = total(WeightlessTracer().trace(replace(target, build=build)))
        found.append((dict(work.flops_by_dtype), work.weight_bytes, work.cache_bytes, work.active_matrix_parameters))
    assert found[0] == found[1] == found[2]


def test_experts_are_read_by_their_expected_number_and_the_policy_is_kept(tmp_path: Path) -> None:
    graph = traced(tmp_path, MIXTRAL, batch=3, prompt_tokens=20)["decode"]
    one_expert = 2 * 3 * WIDTH * MLP
    work = total(graph)
    assert work.expert_bytes == round(LAYERS * 8 * (1 - 0.75**3) * one_expert)
    assert {(reads.distinct, reads.policy) for reads in work.distinct_experts} == {(8 * (1 - 0.75**3), "uniform")}
    assert total(graph, "balanced").expert_bytes == LAYERS * 6 * one_expert
    assert total(graph, "fewest").expert_bytes == work.fewest_expert_bytes == LAYERS * 2 * one_expert
    assert work.bytes is not None
    assert work.fewest_bytes == work.bytes - round(LAYERS * (8 * (1 - 0.75**3) - 2) * one_expert)


@pytest.mark.parametrize(("routing", "experts"), [("balanced", 6), ("one", 2)])
def test_the_routing_of_a_trace_decides_what_it_must_read(routing: str, experts: int, tmp_path: Path) -> None:
    work = total(traced(tmp_path, MIXTRAL, routing, batch=3, prompt_tokens=20)["decode"])
    assert work.expert_bytes == LAYERS * experts * 2 * 3 * WIDTH * MLP


def test_random_routing_reads_the_experts_that_it_touched(tmp_path: Path) -> None:
    graph = traced(tmp_path, MIXTRAL, "random:3", batch=3, prompt_tokens=20)["decode"]
    touched = [kind.arguments["groups_used"] for kind in graph.op_kinds if "grouped_mm" in kind.name]
    assert total(graph).expert_bytes in {
        (first + second) * 2 * 3 * WIDTH * MLP for first in touched for second in touched
    }


def test_a_window_limits_pairs_and_what_is_read_of_the_cache(tmp_path: Path) -> None:
    graphs = traced(tmp_path, SLIDING, prompt_tokens=20)
    needs = decoder_needs(graphs["decode"])
    assert {layer.span.window for layer in needs.attentions} == {8}
    at_fifty = needs.step(batch=1, context=50)
    matrices = LAYERS * llama_layer() + VOCABULARY * WIDTH
    assert at_fifty.flops == 2 * matrices + LAYERS * 4 * 8 * WIDTH
    assert at_fifty.cache_bytes == LAYERS * 2 * 2 * WIDTH * 7  # seven keys before the token itself
    assert needs.held_bytes(50) == LAYERS * 2 * 2 * WIDTH * 8
    pairs = 36 + 12 * 8  # of one layer; of the last one only the last query's eight
    assert total(graphs["prefill"]).flops == needs.prefill(batch=1, prompt=20).flops
    written = stage_costs(graphs["prefill"]).total.flops
    assert written is not None
    saved = total(graphs["prefill"]).saved
    assert saved[Reason.HIDDEN_PAIRS] == 4 * WIDTH * (LAYERS * 20 * 20 - pairs - 8)


def test_latent_attention_is_absorbed_and_its_cache_is_one_vector_per_token(tmp_path: Path) -> None:
    graph = traced(tmp_path, LATENT, prompt_tokens=20, batch=2)["decode"]
    work, needs = total(graph), decoder_needs(graph)
    attention = WIDTH * 24 + 24 * HEADS * 24 + WIDTH * (32 + 8) + 32 * HEADS * 32 + HEADS * 16 * WIDTH
    expert = 3 * WIDTH * 32
    matrices = 2 * attention + 3 * WIDTH * MLP + (WIDTH * 8 + 3 * expert) + VOCABULARY * WIDTH
    assert work.active_matrix_parameters == needs.active_matrix_parameters == matrices
    absorbed = LAYERS * 2 * HEADS * 21 * (32 + 8 + 32)
    assert work.flops == 2 * (2 * matrices + absorbed) == needs.step(batch=2, context=21).flops
    assert work.cache_bytes == 2 * LAYERS * 20 * (32 + 8) * 2
    expansion = LAYERS * 2 * 32 * HEADS * 32 * 2 * 20  # the latents of twenty earlier tokens, expanded once more
    expanded = 2 * LAYERS * 2 * HEADS * 21 * (16 + 8 + 16)
    assert work.saved[Reason.LATENT] == expansion + expanded - 2 * absorbed


def test_experts_that_the_code_runs_on_every_token_are_needed_by_those_that_chose_them(tmp_path: Path) -> None:
    graph = traced(tmp_path, LLAMA4, prompt_tokens=20, batch=2)["decode"]
    work = total(graph)
    assert work.saved[Reason.IDLE_EXPERTS] == LAYERS * 2 * 2 * 3 * (3 * WIDTH * MLP)
    assert work.expert_bytes == round(LAYERS * 4 * (1 - 0.75**2) * 2 * 3 * WIDTH * MLP)


def test_chunked_layers_begin_anew(tmp_path: Path) -> None:
    needs = needs_of(tmp_path, LLAMA4, prompt_tokens=20)
    assert {layer.span.chunk for layer in needs.attentions} == {16}
    last_of_chunk, first_of_next = (needs.step(batch=1, context=context) for context in (32, 33))
    assert last_of_chunk.flops - first_of_next.flops == LAYERS * 4 * WIDTH * 15
    assert (last_of_chunk.cache_bytes, first_of_next.cache_bytes) == (LAYERS * 2 * 2 * WIDTH * 15, 0)


@pytest.mark.parametrize("config", [LLAMA, MIXTRAL, SLIDING, LATENT, LLAMA4], ids=lambda config: config["model_type"])
@pytest.mark.parametrize(("batch", "prompt"), [(1, 30), (3, 9)])
def test_one_traced_step_tells_what_any_other_needs(
    config: dict[str, Any], batch: int, prompt: int, tmp_path: Path
) -> None:
    """The function read from one step gives what traces of other batches and contexts say of themselves."""
    needs = needs_of(tmp_path, config, prompt_tokens=20, batch=2)
    graphs = traced(tmp_path, config, prompt_tokens=prompt, batch=batch)
    step, prefill = needs.step(batch=batch, context=prompt + 1), needs.prefill(batch=batch, prompt=prompt)
    decoded, filled = total(graphs["decode"]), total(graphs["prefill"])
    assert dict(step.flops_by_dtype) == dict(decoded.flops_by_dtype)
    assert (step.cache_bytes, step.expert_bytes) == (decoded.cache_bytes, decoded.expert_bytes)
    assert dict(prefill.flops_by_dtype) == dict(filled.flops_by_dtype)
    embeddings = 2 * WIDTH * (2 - batch)
    assert step.weight_bytes is not None and decoded.weight_bytes is not None
    assert step.weight_bytes - decoded.weight_bytes == embeddings


def test_deepseek_ocr_needs_the_same_whatever_attention_runs_it() -> None:
    found = []
    for attention in ("eager", "sdpa", "flash"):
        targets = MODELS.get("deepseek-ocr")().targets(DeepSeekOcrWorkload(mode="tiny", attention=attention))
        works = [total(WeightlessTracer().trace(target)) for target in targets]
        found.append([(dict(work.flops_by_dtype), work.weight_bytes, work.cache_bytes) for work in works])
    assert found[0] == found[1] == found[2]


def test_attention_to_an_encoder_does_not_grow_with_the_decoder(tmp_path: Path) -> None:
    """T5 with two layers: each step reads all 20 encoded keys, and its own that grow."""
    needs = needs_of(tmp_path, T5, prompt_tokens=20)
    (across,) = [layer for layer in needs.attentions if layer.encoded_keys is not None and not layer.is_tail]
    assert across.encoded_keys == 20
    near, far = needs.step(batch=1, context=3), needs.step(batch=1, context=10)
    assert near.cache_bytes is not None and far.cache_bytes is not None
    assert far.cache_bytes - near.cache_bytes == 7 * 2 * 2 * 2 * WIDTH


@pytest.mark.parametrize("tracer", ["hooks", "torchlens", "profiler"])
def test_a_tracer_that_does_not_see_tensors_gives_no_bound_rather_than_another(tracer: str, tmp_path: Path) -> None:
    if tracer == "torchlens":
        pytest.importorskip("torchlens", reason="an optional extra")
    prefill, *_ = HuggingFaceAdapter(write_folder(tmp_path, LLAMA), False).targets(Workload(dtype="float32"))
    graph = TRACERS.get(tracer)().trace(prefill)
    if graph.ops is None:
        with pytest.raises(PerfOptError, match="no ops"):
            predict(graph, DataSheetRates(find_device("h100-sxm")))
    else:
        assert {stage.lower_bound_s for stage in predict(graph, DataSheetRates(find_device("h100-sxm")))} == {None}


def test_a_prefill_is_no_step(tmp_path: Path) -> None:
    with pytest.raises(PerfOptError, match="decode step"):
        decoder_needs(traced(tmp_path, LLAMA)["prefill"])


def test_an_attention_op_whose_query_has_no_positions_is_no_site() -> None:
    """No model runs it, and a file that somebody wrote may hold it: as a matmul of activations it is not necessary."""
    builder = CallGraphBuilder()
    builder.module("", "Toy", (), {})
    flat, keys = builder.meta((8,), "bfloat16", "cuda"), builder.meta((1, 2, 5, 8), "bfloat16", "cuda")
    kind = OpKind(
        name="aten.scaled_dot_product_attention.default",
        inputs=(flat, keys, keys),
        outputs=(flat,),
        input_names=("query", "key", "value"),
        output_aliases=(-1,),
    )
    for token in (1, 2, 3):
        builder.given(token, 16)
    builder.enter("", [(flat, 1)])
    builder.allocate(4, 16)
    builder.op(kind, (1, 2, 3), (4,))
    builder.leave([(flat, 4)])
    graph = builder.finish(
        model="toy", phase="decode", tracer="weightless", workload={}, stages=(), runtime={}, library_versions={}
    )
    (needs,) = necessary_by_stage(graph).values()
    assert (needs.flops, needs.other_bytes) == (0, 3 * 16)


GPT_OSS = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 128,
    "max_position_embeddings": 128,
}


def test_experts_that_every_rank_repeats_are_necessary_once(tmp_path: Path) -> None:
    """transformers' plan for gpt-oss leaves all experts on each of two ranks: each need do a half."""
    folder = write_folder(tmp_path, GPT_OSS)
    whole, rank = (
        necessary_by_stage(lpo.trace(folder, prompt_tokens=8, **plan).graphs[1])["decode"] for plan in ({}, {"tp": 2})
    )
    assert whole.expert_bytes and rank.expert_bytes == pytest.approx(whole.expert_bytes / 2, abs=1)
    assert rank.fewest_expert_bytes == pytest.approx((whole.fewest_expert_bytes or 0) / 2, abs=1)
    assert rank.saved[Reason.REPEATED] == 2 * 2 * 2 * 3 * 64 * 64 / 2, "half of 2 layers x 2 experts x 3 matrices"
    assert Reason.REPEATED not in whole.saved or not whole.saved[Reason.REPEATED]

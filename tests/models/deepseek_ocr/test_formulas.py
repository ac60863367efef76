"""The closed forms give, to the last integer, what was counted on the released code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.models.deepseek_ocr.formulas import (
    CacheFormula,
    MatrixWork,
    Views,
    active_parameters,
    clip_work,
    convolution,
    decode_passes,
    decoder_work,
    linear,
    parameters_by_part,
    parameters_by_stage,
    prefill_pass,
    projector_work,
    sam_work,
    total_flops,
    weight_bytes,
    weight_bytes_read_per_step,
)
from tests.models.deepseek_ocr.facts import fact
from tests.models.deepseek_ocr.released_formulas import RELEASED, module_flops, work_of_record, work_of_run

RUNS = fact("flops")["runs"]
RECORDS = fact("measured-flops")
LAYERS = {record["workload"]["layer"]: record["metrics"]["flops"] for record in fact("measured-layers")}
PARAMETERS = fact("measured-constants")["parameters"]["metrics"]
FLOPS = fact("measured-constants")["flops"]["metrics"]


def aten_op(piece: MatrixWork) -> str:
    """Where torch's counter books it: linear maps of the encoders have a bias, those of the decoder do not."""
    if piece.family is WorkFamily.CONVOLUTION:
        return "aten.convolution"
    if piece.kind != "linear":
        return "aten.bmm"
    has_bias = piece.path.startswith(("model.sam_model", "model.vision_model", "model.projector"))
    return "aten.addmm" if has_bias else "aten.mm"


def by_op(work: tuple[MatrixWork, ...], path: str) -> dict[str, int]:
    names = {aten_op(piece) for piece in work}
    found = {name: module_flops([piece for piece in work if aten_op(piece) == name], path) for name in names}
    return {name: flops for name, flops in found.items() if flops}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run['workload']}-{run['phase']}")
def test_every_operator_of_every_module(run: dict[str, Any]) -> None:
    work = work_of_run(run)
    assert {path: by_op(work, path) for path in run["by_module"]} == run["by_module"]
    assert total_flops(work) == run["total_flops"]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_every_crop_grid(record: dict[str, Any]) -> None:
    assert total_flops(work_of_record(record)) == record["metrics"]["flops"]


def test_there_are_12_runs_and_48_counts_and_21_layers() -> None:
    assert (len(RUNS), len(RECORDS), len(LAYERS)) == (12, 48, 21)


PAGE = Views(pixels=1024)
SAM = sam_work(RELEASED.sam, PAGE)
TWO_BLOCKS = clip_work(replace(RELEASED, clip=replace(RELEASED.clip, num_layers=2)), PAGE)
TEXT = decoder_work(RELEASED.decoder, prefill_pass(512))
BLOCK = "model.sam_model.blocks.{}"
CLIP_LAYER = "model.vision_model.transformer.layers.0"
ATTENTION = "model.layers.0.self_attn"


def without(kind: str) -> list[MatrixWork]:
    """The decoder on 512 tokens, one kind of matmul left out."""
    return [piece for piece in TEXT if not piece.kind.startswith(kind)]


LAYER_FORMS: dict[str, Callable[[], int]] = {
    "Attention": lambda: module_flops([w for w in SAM if not w.kind.startswith("einsum")], f"{BLOCK.format(0)}.attn"),
    "MLPBlock": lambda: module_flops(SAM, f"{BLOCK.format(0)}.mlp"),
    "PatchEmbed": lambda: module_flops(SAM, "model.sam_model.patch_embed"),
    "Block": lambda: module_flops(SAM, BLOCK.format(2)),
    "CLIPVisionEmbeddings_conv": lambda: convolution("", (224 // 14) ** 2, 3, 1024, 14, 1).flops,
    "LayerNorm2d": lambda: module_flops(SAM, "model.sam_model.neck.1"),
    "ImageEncoderViT": lambda: total_flops(SAM),
    "NoTPAttention": lambda: module_flops(TWO_BLOCKS, f"{CLIP_LAYER}.self_attn"),
    "NoTPFeedForward": lambda: module_flops(TWO_BLOCKS, f"{CLIP_LAYER}.mlp"),
    "NoTPTransformerBlock": lambda: module_flops(TWO_BLOCKS, CLIP_LAYER),
    "NoTPTransformer": lambda: module_flops(TWO_BLOCKS, "model.vision_model.transformer"),
    "VitModel": lambda: module_flops(TWO_BLOCKS, "model.vision_model"),
    "MlpProjector": lambda: linear("", 577, 2048, 1280, 1).flops + linear("", 577, 1280, 1280, 1).flops,
    "DeepseekV2MLP": lambda: module_flops(TEXT, "model.layers.0.mlp"),
    "MoEGate": lambda: module_flops(TEXT, "model.layers.1.mlp.gate"),
    "DeepseekV2MoE": lambda: module_flops(TEXT, "model.layers.1.mlp"),
    "DeepseekV2RMSNorm": lambda: module_flops(TEXT, "model.norm"),
    # A layer by itself was handed its rotary angles: 65,536 FLOPs less, which the fifth digit shows.
    "DeepseekV2DecoderLayer_dense": lambda: module_flops(without("matmul of rotary"), "model.layers.0"),
    "DeepseekV2DecoderLayer_moe": lambda: module_flops(without("matmul of rotary"), "model.layers.1"),
    # The flash kernel itself is invisible to the counter; projections and rotary angles are not.
    "LlamaFlashAttention2": lambda: module_flops(without("attention"), ATTENTION),
    "LlamaRotaryEmbedding": lambda: module_flops(TEXT, f"{ATTENTION}.rotary_emb"),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_every_kind_of_layer_to_the_digits_published(layer: str) -> None:
    assert float(f"{LAYER_FORMS[layer]():.4e}") == LAYERS[layer]


def test_parameters_of_every_part() -> None:
    by_part, by_stage = parameters_by_part(RELEASED), parameters_by_stage(RELEASED)
    layers = {by_part[f"model.layers.{index}"] for index in range(1, 12)}
    assert by_part["model.embed_tokens"] == PARAMETERS["embed_tokens"]
    assert by_part["lm_head"] == PARAMETERS["lm_head"]
    assert by_part["model.norm"] == PARAMETERS["final_norm"]
    assert by_part["model.layers.0"] == PARAMETERS["decoder_layer_0_dense"]
    assert layers == {PARAMETERS["decoder_layer_moe_each"]}
    markers = by_part["model.image_newline"] + by_part["model.view_seperator"]
    assert markers == PARAMETERS["image_newline+view_seperator"]
    assert by_stage["sam"] == PARAMETERS["sam_model"]
    assert by_stage["clip"] == PARAMETERS["vision_model"]
    assert by_stage["projector"] == PARAMETERS["projector"]
    assert sum(by_stage.values()) == sum(by_part.values()) == PARAMETERS["with_lm_head"]
    assert sum(by_part.values()) - by_part["lm_head"] == PARAMETERS["core_total"]


def test_parameters_agree_with_every_shape_of_the_checkpoint() -> None:
    shapes = fact("structure")["state_dict"]
    counted = {
        part: sum(prod(shape) for name, shape in shapes.items() if name.startswith(part) and not is_buffer(name))
        for part in parameters_by_part(RELEASED)
        if not part.startswith("model.layers.1")  # 1, 10 and 11 share a beginning
    }
    formulas = parameters_by_part(RELEASED)
    assert counted == {part: formulas[part] for part in counted}


def is_buffer(name: str) -> bool:
    return name.endswith("position_ids")


@pytest.mark.parametrize(("pixels", "name"), [(1024, "1024"), (640, "640")])
def test_each_view(pixels: int, name: str) -> None:
    views = Views(pixels=pixels)
    assert total_flops(sam_work(RELEASED.sam, views)) == FLOPS[f"sam_{name}"]
    assert total_flops(clip_work(RELEASED, views)) == FLOPS[f"clip_{name}"]
    assert total_flops(projector_work(RELEASED, views)) == FLOPS[f"projector_{name}"]


def test_a_token_costs_matrices_rotation_and_pairs() -> None:
    step, next_step = (total_flops(decoder_work(RELEASED.decoder, decode_passes(context))) for context in (99, 100))
    assert next_step - step == FLOPS["attention_per_query_key_pair"]
    work = decoder_work(RELEASED.decoder, decode_passes(0))
    assert total_flops(w for w in work if w.kind == "linear") == FLOPS["llm_linear_per_token"]
    assert total_flops(w for w in work if "rotary" in w.kind) == FLOPS["rotary_matmul_per_token"]


def test_memory_of_a_decoded_token() -> None:
    assert active_parameters(RELEASED.decoder) == PARAMETERS["active_weights_per_decode_token"]
    assert CacheFormula.of(RELEASED.decoder, 2).bytes_at(1) == FLOPS["kv_bytes_per_token_bf16"]
    assert CacheFormula.of(RELEASED.decoder, 4).bytes_at(924, batch=3) == 2 * 924 * 3 * FLOPS["kv_bytes_per_token_bf16"]
    assert weight_bytes(RELEASED, 2) == 2 * PARAMETERS["with_lm_head"]
    # 25 norms and one row of the embedding besides the matrices, two bytes each.
    extra = weight_bytes_read_per_step(RELEASED.decoder, 2) - 2 * active_parameters(RELEASED.decoder)
    assert extra == 2 * 26 * 1280


def test_a_large_batch_reads_every_expert_once() -> None:
    by_part = parameters_by_part(RELEASED)
    everything = sum(count for path, count in by_part.items() if path.startswith("model.layers."))
    norms = 24 * 1280
    for batch in (64, 300):  # 64 * (1 - (58 / 64) ** 64) = 63.9 experts
        assert active_parameters(RELEASED.decoder, batch=batch) == everything - norms + by_part["lm_head"]


def test_eight_sequences_read_the_experts_that_uniform_routing_touches() -> None:
    """64 * (1 - (58 / 64) ** 8) = 34.9 of 64 experts in each of 11 layers, three matrices of 1280 x 896 each."""
    one, eight = (active_parameters(RELEASED.decoder, batch=batch) for batch in (1, 8))
    assert eight - one == 11 * (35 - 6) * 3 * 1280 * 896


def test_attention_kinds_differ_in_ops_and_not_in_flops() -> None:
    eager, sdpa, flash = (
        decoder_work(RELEASED.decoder, prefill_pass(924), kind) for kind in ("eager", "sdpa", "flash")
    )
    assert total_flops(eager) == total_flops(sdpa) == total_flops(flash)
    assert {w.kind for w in eager} - {w.kind for w in sdpa} == {"attention scores", "attention values"}
    scores = sum(w.outputs for w in eager if w.kind == "attention scores")
    assert scores == 12 * 10 * 924**2

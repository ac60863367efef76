"""Parameters of every part and FLOPs of every kind of layer, read from weightless traces at full size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod

import pytest
import torch

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_in_module, ops_of
from llm_perf_opt.core.target import Target
from llm_perf_opt.costs.stage_costs import module_costs, stage_costs
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.ops.table import price
from tests.end_to_end.deepseek_ocr_runs import facts, trace, workload

LAYERS = {record["workload"]["layer"]: record["metrics"]["flops"] for record in facts("measured-layers.json")}
PARAMETERS = facts("measured-constants.json")["parameters"]["metrics"]
BLOCK = "model.sam_model.blocks.{}"
CLIP_LAYER = "model.vision_model.transformer.layers.0"
ATTENTION = "model.layers.0.self_attn"


@cache
def run_of_512_tokens() -> CallGraph:
    """A page of 1024 x 1024 in 512 tokens, with two CLIP blocks: the shapes that the records have."""
    config = DeepSeekOcrConfig()
    adapter = DeepSeekOcrAdapter(replace(config, clip=replace(config.clip, num_layers=2)))
    (target,) = adapter.targets(DeepSeekOcrWorkload(mode="base", prompt_tokens=512 - 1 - 273, decode_steps=0))
    assert target.workload["context_tokens"] == 512
    return WeightlessTracer().trace(target)


def flops_of(path: str) -> int:
    return module_costs(run_of_512_tokens()).by_path[path].inclusive.flops


def flops_of_op(path: str, op: str) -> int:
    graph = run_of_512_tokens()
    numbers = [ops_of(graph).kind[row] for rows in ops_in_module(graph, path) for row in rows]
    kinds = [graph.op_kinds[number] for number in numbers if op in graph.op_kinds[number].name]
    costs = [price(kind) for kind in kinds]
    assert costs
    return sum(cost.flops for cost in costs if cost is not None)


def flops_alone(module: torch.nn.Module, *shape: int) -> int:
    target = Target(
        model="layer",
        phase="forward",
        workload={},
        build=lambda: module,
        invoke=lambda built: built(torch.zeros(shape)),
    )
    return stage_costs(WeightlessTracer().trace(target)).total.flops or 0


def projector_of_depth_two() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2048, 1280), torch.nn.GELU(), torch.nn.Linear(1280, 1280))


def decoder_layer(index: int) -> int:
    """A layer by itself was handed its rotary angles."""
    path = f"model.layers.{index}"
    return flops_of(path) - flops_of(f"{path}.self_attn.rotary_emb")


COUNTS: dict[str, Callable[[], int]] = {
    "Attention": lambda: flops_of(f"{BLOCK.format(0)}.attn") - flops_of_op(f"{BLOCK.format(0)}.attn", "einsum"),
    "MLPBlock": lambda: flops_of(f"{BLOCK.format(0)}.mlp"),
    "PatchEmbed": lambda: flops_of("model.sam_model.patch_embed"),
    "Block": lambda: flops_of(BLOCK.format(2)),
    "CLIPVisionEmbeddings_conv": lambda: flops_alone(torch.nn.Conv2d(3, 1024, 14, stride=14), 1, 3, 224, 224),
    "LayerNorm2d": lambda: flops_of("model.sam_model.neck.1"),
    "ImageEncoderViT": lambda: flops_of("model.sam_model"),
    "NoTPAttention": lambda: flops_of(f"{CLIP_LAYER}.self_attn"),
    "NoTPFeedForward": lambda: flops_of(f"{CLIP_LAYER}.mlp"),
    "NoTPTransformerBlock": lambda: flops_of(CLIP_LAYER),
    "NoTPTransformer": lambda: flops_of("model.vision_model.transformer"),
    "VitModel": lambda: flops_of("model.vision_model"),
    "MlpProjector": lambda: flops_alone(projector_of_depth_two(), 577, 2048),
    "DeepseekV2MLP": lambda: flops_of("model.layers.0.mlp"),
    "MoEGate": lambda: flops_of("model.layers.1.mlp.gate"),
    "DeepseekV2MoE": lambda: flops_of("model.layers.1.mlp"),
    "DeepseekV2RMSNorm": lambda: flops_of("model.norm"),
    "DeepseekV2DecoderLayer_dense": lambda: decoder_layer(0),
    "DeepseekV2DecoderLayer_moe": lambda: decoder_layer(1),
    # The flash kernel itself is invisible to the record's counter; projections and rotary angles are not.
    "LlamaFlashAttention2": lambda: flops_of_op(ATTENTION, "linear") + flops_of(f"{ATTENTION}.rotary_emb"),
    "LlamaRotaryEmbedding": lambda: flops_of(f"{ATTENTION}.rotary_emb"),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_every_kind_of_layer_to_the_digits_published(layer: str) -> None:
    assert float(f"{COUNTS[layer]():.4e}") == LAYERS[layer]


def test_parameters_of_every_part() -> None:
    graph = trace(workload("base", decode_steps=0), "prefill")
    stages = {stage.name: stage.parameters for stage in stage_costs(graph).stages}
    assert stages["sam"] == PARAMETERS["sam_model"]
    assert stages["clip"] == PARAMETERS["vision_model"]
    assert stages["projector"] == PARAMETERS["projector"]
    assert sum(stages.values()) == PARAMETERS["with_lm_head"]
    parts: Counter[str] = Counter()
    for parameter in graph.parameters:
        if not parameter.is_buffer:
            depth = 3 if parameter.name.startswith("model.layers.") else 2
            parts[".".join(parameter.name.split(".")[:depth])] += prod(parameter.meta.shape)
    assert parts["model.embed_tokens"] == PARAMETERS["embed_tokens"]
    assert parts["lm_head.weight"] == PARAMETERS["lm_head"]
    assert parts["model.norm"] == PARAMETERS["final_norm"]
    assert parts["model.image_newline"] + parts["model.view_seperator"] == PARAMETERS["image_newline+view_seperator"]
    assert parts["model.layers.0"] == PARAMETERS["decoder_layer_0_dense"]
    assert {parts[f"model.layers.{index}"] for index in range(1, 12)} == {PARAMETERS["decoder_layer_moe_each"]}

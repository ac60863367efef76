"""How the measured runs were deployed: stored formats by part of the model, cache formats, and the engine's plan.

Formats are those of the published checkpoints: block-wise 8 bits for models released so, 4 bits without the attention
where the checkpoint leaves it in 16, experts alone in mxfp4 or int4.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from benchmarks.bounds.evaluation import decode_graph
from benchmarks.records import MeasuredRun
from llm_perf_opt.analyses.serving.engine_blocks import DecoderPart, EngineBlocks, engine_blocks
from llm_perf_opt.core.parallel_plan import ParallelPlan

BF16, FP8, BLOCK_FP8, FP4, INT4, MXFP4 = "bfloat16", "fp8", "fp8-block128", "nvfp4", "int4-g32-sym", "mxfp4"
FP8_CACHE = "float8_e4m3fn"
RELEASED_IN_BLOCKS = frozenset({"deepseek-r1", "qwen3-235b-a22b", "minimax-m2.5", "glm-5", "qwen3.5-397b-a17b"})
ATTENTION_IN_16_BITS = frozenset({"deepseek-r1", "minimax-m2.5", "kimi-k2.5", "glm-5", "qwen3.5-397b-a17b"})


@cache
def traced_blocks(model: str) -> EngineBlocks:
    """The blocks of one weightless decode step of the model's own code."""
    return engine_blocks(decode_graph(model))


def formats(model: str, precision: str) -> tuple[str, str, str]:
    """Of attention, of other matrices, of experts."""
    if model.startswith("gpt-oss"):
        return BF16, BF16, MXFP4  # published so, whatever a record calls its precision
    match precision:
        case "fp8":
            stored = BLOCK_FP8 if model in RELEASED_IN_BLOCKS else FP8
            return stored, stored, stored
        case "fp4":
            return BF16 if model in ATTENTION_IN_16_BITS else FP4, FP4, FP4
        case "int4":
            return BF16, BF16, INT4
    return BF16, BF16, BF16


def cache_format(run: MeasuredRun) -> str:
    """TensorRT-LLM keeps the cache of quantised checkpoints in 8 bits; the others keep 16 unless told otherwise."""
    is_small = run.engine == "trtllm" and run.precision in ("fp8", "fp4") and not run.model.startswith("gpt-oss")
    return FP8_CACHE if is_small else BF16


def deployed_blocks(run: MeasuredRun) -> EngineBlocks:
    """The model's blocks with weights and cache as the run stored them."""
    return _deployed(run.model, run.precision, cache_format(run))


@cache
def _deployed(model: str, precision: str, cached: str) -> EngineBlocks:
    blocks = traced_blocks(model)
    attention, matrices, experts = formats(model, precision)
    stored = {DecoderPart.ATTENTION: attention, DecoderPart.LATENT: attention, DecoderPart.MLP: matrices}
    return replace(
        blocks,
        products=tuple(replace(one, weight_format=stored.get(one.part, BF16)) for one in blocks.products),
        experts=tuple(replace(one, weight_format=experts) for one in blocks.experts),
        attentions=tuple(replace(one, dtype=cached) for one in blocks.attentions),
    )


def engine_plan(run: MeasuredRun) -> ParallelPlan:
    """The plan as recorded; a whole system without one shares nothing but its experts."""
    plan, gpus = run.decode_plan, run.decode_gpus
    groups = max(1, gpus // plan.tensor)
    return ParallelPlan(tp=plan.tensor, attention_dp=groups, ep=plan.tensor * groups if plan.experts > 1 else 1)

"""How many blocks of a cache the weights of a deployment leave room for, as a server with default settings finds it."""

from __future__ import annotations

from llm_perf_opt.analyses.serving.engine_blocks import EngineBlocks
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.tensor_formats import weight_format as stored

BLOCK = 16  # tokens
UTILISATION = 0.9  # of the memory
_PLAIN = {"bfloat16": 16.0, "float8_e4m3fn": 8.0, "fp8": 8.0}
_FEWEST = 64


def cache_blocks(blocks: EngineBlocks, device: str, plan: ParallelPlan) -> int:
    """What the weights leave of the memory of all ranks, in blocks of tokens; latent vectors are whole on each rank."""
    room = UTILISATION * find_device(device).memory_bytes * plan.stage_ranks - weight_bytes(blocks, plan)
    per_token = sum(
        layer.cached_bytes * layer.layers * _bits(layer.dtype) / 8 / blocks.cache_number_bytes
        for layer in blocks.attentions
    )
    copies = plan.tp if all(layer.latent is not None for layer in blocks.attentions) else 1
    return max(_FEWEST, int(room / copies / max(1.0, per_token) / BLOCK))


def weight_bytes(blocks: EngineBlocks, plan: ParallelPlan) -> float:
    """Of all ranks: what stands outside the experts is there once for each group with attention of its own."""
    products = sum(one.columns * one.depth * one.layers * _bits(one.weight_format) / 8 for one in blocks.products)
    experts = sum(
        3 * one.hidden * one.inner * one.experts * one.layers * _bits(one.weight_format) / 8 for one in blocks.experts
    )
    return products * plan.attention_dp + experts


def _bits(weight_format: str) -> float:
    return _PLAIN[weight_format] if weight_format in _PLAIN else stored(weight_format).bits_per_value()

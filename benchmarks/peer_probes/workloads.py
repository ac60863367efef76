"""What is asked about every tool's answer, without torch: names, configurations, and the exact work in closed form.

Exact means matrix work: two FLOPs per multiply-add, attention over all pairs, nothing element-wise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig, DeepSeekOcrConfig, DeepSeekOcrWorkload

DENSE_FOLDER = Path(__file__).parent / "configs" / "Llama-3.2-1B"
OCR_FOLDER = Path(__file__).parents[2] / "tests" / "facts" / "deepseek_ocr"
FOLDERS = {"dense-sdpa": DENSE_FOLDER, "dense-eager": DENSE_FOLDER, "ocr": OCR_FOLDER}
DENSE_TOKENS = 512
OCR_WORKLOAD = DeepSeekOcrWorkload(image="1240x1754", mode="base", decode_steps=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSize:
    heads: int = 8
    head_dim: int = 64
    tokens: int = 256

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def linear_flops(self) -> int:
        return 2 * self.tokens * self.width * 3 * self.width

    @property
    def attention_flops(self) -> int:
        return 4 * self.tokens**2 * self.width


ATTENTION = AttentionSize()
PAIR_WIDTH, PAIR_TOKENS = 64, 8
EXPERT_TOKENS = 32


def expert_config() -> DecoderConfig:
    """The decoder of DeepSeek-OCR, made small."""
    return replace(
        DeepSeekOcrConfig().decoder,
        hidden_size=64,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
    )


def _dense(head_positions: int = DENSE_TOKENS) -> int:
    sizes = json.loads((DENSE_FOLDER / "config.json").read_text())
    width, layers = sizes["hidden_size"], sizes["num_hidden_layers"]
    query_width = sizes["num_attention_heads"] * sizes["head_dim"]
    kv_width = sizes["num_key_value_heads"] * sizes["head_dim"]
    weights = layers * width * (2 * query_width + 2 * kv_width + 3 * sizes["intermediate_size"])
    head = 2 * width * sizes["vocab_size"] * head_positions
    return int(2 * weights * DENSE_TOKENS + head + 4 * DENSE_TOKENS**2 * query_width * layers)


def _ocr() -> int:
    stages = DeepSeekOcrAdapter().closed_forms(OCR_WORKLOAD)
    return sum(stage.flops or 0 for stage in stages if stage.phase == "prefill")


def linear_pair_flops() -> int:
    """One of the two linear maps of the direct call."""
    return 2 * PAIR_TOKENS * PAIR_WIDTH**2


def _experts() -> int:
    config = expert_config()
    mlp = 2 * EXPERT_TOKENS * 3 * config.hidden_size * config.moe_intermediate_size
    router = 2 * EXPERT_TOKENS * config.hidden_size * config.n_routed_experts
    return mlp * (config.num_experts_per_tok + config.n_shared_experts) + router


EXACT_FLOPS: dict[str, Callable[[], int]] = {
    "dense-sdpa": _dense,
    "dense-eager": _dense,
    "ocr": _ocr,
    "fused-attention": lambda: ATTENTION.linear_flops + ATTENTION.attention_flops,
    "direct-call": lambda: 2 * linear_pair_flops(),
    "experts": _experts,
}

SMALL_SIZES = {
    "attention_tokens": ATTENTION.tokens,
    "attention_linear_flops": ATTENTION.linear_flops,
    "one_of_two_linear_flops": linear_pair_flops(),
    "dense_tokens": DENSE_TOKENS,
    "dense_flops_with_one_head_position": _dense(head_positions=1),
}

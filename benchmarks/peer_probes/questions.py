"""A question to a tool, what it brings back, and the exact work in closed form; without torch.

Exact means matrix work: two FLOPs per multiply-add, attention over all pairs, nothing element-wise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.pages import FACTS
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig, DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload

DENSE_FOLDER = Path(__file__).parent / "configs" / "Llama-3.2-1B"
FOLDERS = {"dense-sdpa": DENSE_FOLDER, "dense-eager": DENSE_FOLDER, "ocr": FACTS / "deepseek_ocr"}
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
        DeepSeekOcrConfig().decoder, hidden_size=64, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=32
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The work of one forward. `printed` is the tool's own figure, `flops` twice its multiply-adds if it tells them.

    `flops_by_module` has every module that the tool gives a figure of its own, None where it knows no modules.
    """

    printed: float
    unit: str
    flops: int
    flops_by_module: dict[str, int] | None = None
    left_out: list[str] = field(default_factory=list)  # what the tool itself says it did not count


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One figure that a tool gives besides a count, and what it is a figure of."""

    figure: float
    unit: str
    of: str


if TYPE_CHECKING:
    from benchmarks.peer_probes.subjects import Subject


@dataclass(frozen=True)
class Asked:
    """`folder` holds a configuration, for tools that read nothing else; the module is built when it is first wanted."""

    name: str
    weights: str

    @property
    def folder(self) -> Path | None:
        return FOLDERS.get(self.name)

    @property
    def exact_flops(self) -> int:
        return EXACT_FLOPS[self.name]()

    @cached_property
    def subject(self) -> Subject:
        from benchmarks.peer_probes.subjects import build_subject

        return build_subject(self.name, self.weights)

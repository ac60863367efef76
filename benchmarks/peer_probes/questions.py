"""A question to a tool, what it brings back, and the exact work in closed form; without torch.

Exact means matrix work: two FLOPs per multiply-add, attention over all pairs, nothing element-wise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from benchmarks.pages import FACTS
from llm_perf_opt.harness.weights import fill_with_noise, same_random_numbers
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig, DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.moe import DeepseekV2MoE
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload

# The modules that every tool is shown. Each takes tensors and returns one tensor, a form that every tool accepts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One module in evaluation mode, and what it is called with."""

    module: nn.Module
    inputs: tuple[Tensor, ...]


def build_subject(name: str, weights: str) -> Subject:
    """`weights` is `none` (the meta device, no memory) or `random`."""
    with _placed(weights):
        subject = BUILDERS[name]()
    if weights == "none":
        return Subject(module=subject.module, inputs=tuple(tensor.to("meta") for tensor in subject.inputs))
    fill_with_noise(subject.module)
    return subject


@contextmanager
def _placed(weights: str) -> Iterator[None]:
    with torch.device("meta") if weights == "none" else same_random_numbers():
        yield


class LogitsOf(nn.Module):
    """A language model that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=input_ids).logits
        return logits


def dense(attention: str) -> Subject:
    """A plain language model of 1.2 B parameters, logits of every position."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.initialization import no_init_weights

    config = LlamaConfig.from_pretrained(DENSE_FOLDER)
    with no_init_weights():  # the weights are filled afterwards, faster
        model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16, attn_implementation=attention)
    ids = torch.ones(1, DENSE_TOKENS, dtype=torch.long, device="cpu")
    return Subject(module=LogitsOf(model).eval(), inputs=(ids,))


class PageReader(nn.Module):
    """DeepSeek-OCR as a function of tensors: the tuple that holds the views is made inside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, tiles: Tensor, page: Tensor, is_image: Tensor, grid: Tensor) -> Tensor:
        views = ((tiles, page),)
        with torch.no_grad():
            output = self.model(input_ids=input_ids, images=views, images_seq_mask=is_image, images_spatial_crop=grid)
        logits: Tensor = output.logits
        return logits


def ocr() -> Subject:
    """DeepSeek-OCR in full, 3.3 B parameters, one page in base mode."""
    with torch.device("cpu"):
        (target,) = DeepSeekOcrAdapter().targets(OCR_WORKLOAD)
    inputs = target.invoke.keywords["inputs"]  # type: ignore[attr-defined]  # a partial of `prefill`
    ((tiles, page),) = inputs.images
    tensors = (inputs.input_ids, tiles, page, inputs.images_seq_mask, inputs.images_spatial_crop)
    return Subject(module=PageReader(target.build()).eval(), inputs=tensors)


class FusedAttention(nn.Module):
    """A linear map, then torch's fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(ATTENTION.width, 3 * ATTENTION.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        roles = self.qkv(x).view(1, ATTENTION.tokens, 3, ATTENTION.heads, ATTENTION.head_dim).unbind(2)
        query, key, value = (role.transpose(1, 2) for role in roles)
        return nn.functional.scaled_dot_product_attention(query, key, value)


class CallsForward(nn.Module):
    """Calls one child by its `forward`, as some released models do, so that no hook of torch fires for it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(PAIR_WIDTH, PAIR_WIDTH, bias=False)
        self.second = nn.Linear(PAIR_WIDTH, PAIR_WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.second(self.first.forward(x))
        return output


def experts() -> Subject:
    """A mixture of experts whose loop reads from the data how many tokens each expert gets."""
    config = expert_config()
    seeded = torch.Generator().manual_seed(0)
    tokens = torch.randn(1, EXPERT_TOKENS, config.hidden_size, generator=seeded, device="cpu")
    return Subject(module=DeepseekV2MoE(config).eval(), inputs=(tokens,))


BUILDERS: dict[str, Callable[[], Subject]] = {
    "dense-sdpa": lambda: dense("sdpa"),
    "dense-eager": lambda: dense("eager"),
    "ocr": ocr,
    "fused-attention": lambda: Subject(
        module=FusedAttention().eval(), inputs=(torch.ones(1, ATTENTION.tokens, ATTENTION.width),)
    ),
    "direct-call": lambda: Subject(module=CallsForward().eval(), inputs=(torch.ones(PAIR_TOKENS, PAIR_WIDTH),)),
    "experts": experts,
}


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
    from benchmarks.peer_probes.questions import Subject


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
        from benchmarks.peer_probes.questions import build_subject

        return build_subject(self.name, self.weights)

"""The modules that every tool is shown. Each takes tensors and returns one tensor, a form that every tool accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.peer_probes.questions import (
    ATTENTION,
    DENSE_FOLDER,
    DENSE_TOKENS,
    EXPERT_TOKENS,
    OCR_WORKLOAD,
    PAIR_TOKENS,
    PAIR_WIDTH,
    expert_config,
)
from llm_perf_opt.harness.weights import fill_with_noise, same_random_numbers
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.moe import DeepseekV2MoE


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

"""The parts of DeepSeek-OCR to export, and the mixture of experts written so that every shape is static.

Both take over the weights of a layer, of ours or of the released code, and give the same values as it does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from llm_perf_opt.core.target import Part
from llm_perf_opt.models.deepseek_ocr.formulas import CLIP, PROJECTOR, SAM


class _StackedExperts(nn.Module):
    """The gate and the shared experts as they are; the weights of the routed experts in three tensors.

    Each tensor is `[experts, in, out]`, the layout of a batched matmul.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.gate = layer.gate
        self.shared_experts = layer.shared_experts
        self.act_fn = layer.experts[0].act_fn
        self.num_experts = len(layer.experts)
        self.gate_weights, self.up_weights, self.down_weights = (
            nn.Parameter(
                torch.stack([getattr(expert, name).weight.detach().t() for expert in layer.experts]),
                requires_grad=False,
            )
            for name in ("gate_proj", "up_proj", "down_proj")
        )

    def forward(self, hidden_states: Tensor) -> Tensor:
        """`[batch, tokens, hidden]`, same shape out."""
        # The released gate returns a loss for training too.
        expert_ids, weights = self.gate(hidden_states)[:2]
        routed = self._routed(hidden_states.flatten(0, -2), expert_ids, weights)
        shared: Tensor = self.shared_experts(hidden_states)
        return routed.view(hidden_states.shape) + shared

    def _routed(self, tokens: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        raise NotImplementedError


class GroupedExperts(_StackedExperts):
    """One grouped matmul for all experts: rows are sorted by expert, and their counts are a tensor, not numbers.

    As many FLOPs as the loop, for any routing. The matmuls are in bfloat16, the only dtype for which torch knows the
    shape of a grouped matmul without running it.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        for name in ("gate_weights", "up_weights", "down_weights"):
            weights = getattr(self, name).to(torch.bfloat16)
            setattr(self, name, nn.Parameter(weights, requires_grad=False))

    def _routed(self, tokens: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        chosen = expert_ids.shape[-1]
        order = expert_ids.flatten().argsort()
        rows = tokens[order // chosen].to(torch.bfloat16)
        hits = expert_ids.new_zeros(expert_ids.shape[0], self.num_experts).scatter(1, expert_ids, 1)
        ends = hits.sum(dim=0).cumsum(0).to(torch.int32)
        gated = self.act_fn(torch._grouped_mm(rows, self.gate_weights, offs=ends))
        hidden = gated * torch._grouped_mm(rows, self.up_weights, offs=ends)
        outputs = torch._grouped_mm(hidden, self.down_weights, offs=ends)
        by_token = torch.empty_like(outputs).index_copy(0, order, outputs)
        weighted = by_token.view(*expert_ids.shape, -1).to(weights.dtype) * weights.unsqueeze(-1)
        return weighted.sum(dim=1).to(tokens.dtype)


class AllExperts(_StackedExperts):
    """Every expert sees every token, and the router's weights, zero for most, pick what counts.

    Only plain matmuls, which ONNX has too, at `experts / chosen` times the FLOPs of the routed experts.
    """

    def _routed(self, tokens: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        share = weights.new_zeros(expert_ids.shape[0], self.num_experts).scatter(1, expert_ids, weights)
        copies = tokens.unsqueeze(0).expand(self.num_experts, -1, -1)
        hidden = self.act_fn(torch.bmm(copies, self.gate_weights)) * torch.bmm(copies, self.up_weights)
        outputs = torch.bmm(hidden, self.down_weights).to(weights.dtype)
        return (outputs * share.t().unsqueeze(-1)).sum(dim=0).to(tokens.dtype)


_MOE = "model.layers.1.mlp"
_MAP = ("batch", "rows", "columns", "width")  # a feature map, channels last
_STATIC_MOE = ("moe-layer-grouped", "moe-layer-all-experts")
_INSTEAD_OF_ALL = ("vision", "decoder-layer-dense", "attention-with-kv", *_STATIC_MOE)


class VisionEncoder(nn.Module):
    """SAM, CLIP and the projector as one function of pixels, without the loop over views."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.sam_model = model.sam_model
        self.vision_model = model.vision_model
        self.projector = model.projector

    def forward(self, pixels: Tensor) -> Tensor:
        """`[views, 3, side, side]` to `[views, tokens, hidden]`."""
        local = self.sam_model(pixels)
        contextual = self.vision_model(pixels, local)
        both = torch.cat([contextual[:, 1:], local.flatten(2).transpose(1, 2)], dim=-1)
        embeds: Tensor = self.projector(both)
        return embeds


def make_parts(global_block: int) -> tuple[Part, ...]:
    """In the order in which they run; `global_block` is the index of a SAM block without windows."""
    return (*_vision_parts(global_block), *_decoder_parts(), *_whole_model())


def released_parts() -> tuple[Part, ...]:
    """The parts of the released code; its module paths are the same."""
    return make_parts(global_block=2)


def _vision_parts(global_block: int) -> tuple[Part, ...]:
    blocks = f"{SAM}.blocks"
    return (
        Part(name="sam", path=SAM, title="SAM encoder"),
        Part(name="sam-block-windowed", path=f"{blocks}.0", title="a SAM block with windows", axes=_MAP),
        Part(name="sam-block-global", path=f"{blocks}.{global_block}", title="a SAM block without windows", axes=_MAP),
        Part(name="clip", path=CLIP, title="CLIP encoder"),
        Part(name="clip-block", path=f"{CLIP}.transformer.layers.0", title="a CLIP block"),
        Part(name="projector", path=PROJECTOR, title="from vision features to the width of the decoder"),
        Part(
            name="vision",
            path=SAM,
            title="SAM, CLIP and projector as one encoder",
            wrap=_vision_encoder,
            wraps=(SAM, CLIP, PROJECTOR),
            adaptation="VisionEncoder: one function of pixels",
        ),
    )


def _decoder_parts() -> tuple[Part, ...]:
    return (
        Part(name="decoder-layer-dense", path="model.layers.0", title="the dense decoder layer"),
        Part(
            name="attention-with-kv",
            path="model.layers.0.self_attn",
            title="attention of one new token on a filled cache",
            phase="decode",
            axes=("batch", "new tokens", "width"),
        ),
        Part(name="expert", path=f"{_MOE}.experts.0", title="one expert on its share of the tokens"),
        Part(name="moe-layer", path=_MOE, title="the mixture of experts as it is", instead=("expert", *_STATIC_MOE)),
        Part(
            name="moe-layer-grouped",
            path=_MOE,
            title="the mixture of experts with one grouped matmul",
            wrap=_grouped_experts,
            instead=("moe-layer-all-experts",),
            adaptation="GroupedExperts: counts per expert stay in a tensor, matmuls in bfloat16",
        ),
        Part(
            name="moe-layer-all-experts",
            path=_MOE,
            title="the mixture of experts with every expert on every token",
            wrap=_all_experts,
            adaptation="AllExperts: every expert sees every token",
            does_other_work=True,
        ),
    )


def _whole_model() -> tuple[Part, ...]:
    return (
        Part(name="full-model", path="", title="the whole model, prefill", instead=_INSTEAD_OF_ALL),
        Part(
            name="full-model-decode",
            path="",
            title="the whole model, one decoded token",
            phase="decode",
            instead=_INSTEAD_OF_ALL,
        ),
    )


def _vision_encoder(root: Any) -> VisionEncoder:
    return VisionEncoder(root.model).eval()


def _grouped_experts(root: Any) -> GroupedExperts:
    return GroupedExperts(root.model.layers[1].mlp).eval()


def _all_experts(root: Any) -> AllExperts:
    return AllExperts(root.model.layers[1].mlp).eval()

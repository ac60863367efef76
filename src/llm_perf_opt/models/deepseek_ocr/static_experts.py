"""The mixture of experts without a loop over counts: two ways to write it so that every shape is known beforehand.

Both take over the weights of a layer, of ours or of the released code, and give the same values as it does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _StackedExperts(nn.Module):
    """The gate and the shared experts as they are; the weights of the routed experts in three tensors.

    Each tensor is `[experts, in, out]`, the layout of a batched product.
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
    """One grouped product for all experts: rows are sorted by expert, and their counts are a tensor, not numbers.

    As many FLOPs as the loop, for any routing. The products are in bfloat16, the only dtype for which torch knows the
    shape of a grouped product without running it.
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

    Only plain products, which ONNX has too, at `experts / chosen` times the FLOPs of the routed experts.
    """

    def _routed(self, tokens: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        share = weights.new_zeros(expert_ids.shape[0], self.num_experts).scatter(1, expert_ids, weights)
        copies = tokens.unsqueeze(0).expand(self.num_experts, -1, -1)
        hidden = self.act_fn(torch.bmm(copies, self.gate_weights)) * torch.bmm(copies, self.up_weights)
        outputs = torch.bmm(hidden, self.down_weights).to(weights.dtype)
        return (outputs * share.t().unsqueeze(-1)).sum(dim=0).to(tokens.dtype)

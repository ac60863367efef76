"""The decoder's feed-forward parts: the gated MLP, the router, and the mixture of experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig


class DeepseekV2MLP(nn.Module):
    """A gated MLP: one expert, the shared experts taken together, or the whole of a dense layer."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """Applied to each token alone."""
        output: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return output


class MoEGate(nn.Module):
    """The router: softmax over all experts in float32, the best `top_k` per token, weights not renormalised."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.hidden_size = config.hidden_size
        self.n_routed_experts = config.n_routed_experts
        self.top_k = config.num_experts_per_tok
        self.routed_scaling_factor = config.routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Expert ids and weights, each `[tokens, top_k]`."""
        tokens = hidden_states.flatten(0, -2)
        scores = F.linear(tokens.float(), self.weight.float()).softmax(dim=-1, dtype=torch.float32)
        weights, expert_ids = torch.topk(scores, self.top_k, dim=-1, sorted=False)
        return expert_ids, weights * self.routed_scaling_factor


class DeepseekV2MoE(nn.Module):
    """Routed experts plus shared experts that see every token; inference only."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.hidden_size = config.hidden_size
        self.n_routed_experts = config.n_routed_experts
        self.n_shared_experts = config.n_shared_experts
        self.num_experts_per_tok = config.num_experts_per_tok
        width = config.moe_intermediate_size
        self.experts = nn.ModuleList(DeepseekV2MLP(config.hidden_size, width) for _ in range(config.n_routed_experts))
        self.gate = MoEGate(config)
        self.shared_experts = DeepseekV2MLP(config.hidden_size, width * config.n_shared_experts)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """`[batch, tokens, hidden]`, same shape out."""
        expert_ids, weights = self.gate(hidden_states)
        routed = self.moe_infer(hidden_states.flatten(0, -2), expert_ids, weights)
        shared: Tensor = self.shared_experts(hidden_states)
        return routed.view(hidden_states.shape) + shared

    def moe_infer(self, tokens: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        """Sort rows by expert, run each expert that has any on its slice, and put the rows back."""
        hits = expert_ids.new_zeros(expert_ids.shape[0], self.n_routed_experts).scatter_(1, expert_ids, 1)
        rows_per_expert = hits.sum(dim=0).cpu().numpy()
        order = expert_ids.flatten().argsort()
        rows = tokens[order // self.num_experts_per_tok]
        outputs = []
        start = 0
        for expert, count in zip(self.experts, rows_per_expert, strict=True):
            if count:
                outputs.append(expert(rows[start : start + count]))
                start += count
        sorted_outputs = torch.cat(outputs)
        by_token = torch.empty_like(sorted_outputs)
        by_token[order] = sorted_outputs
        weighted = by_token.view(*expert_ids.shape, -1).to(weights.dtype).mul_(weights.unsqueeze(-1))
        return weighted.sum(dim=1).to(tokens.dtype)

"""The CLIP encoder: global attention over the features SAM hands on, plus a class token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_perf_opt.models.deepseek_ocr.configuration import ClipConfig


class VitModel(nn.Module):
    """Features `[views, hidden, side, side]` to tokens `[views, 1 + side * side, hidden]`."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.embeddings = CLIPVisionEmbeddings(config)
        self.transformer = NoTPTransformer(config)
        self.pre_layrnorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)  # the checkpoint's spelling

    def forward(self, pixels: Tensor, patch_embeds: Tensor) -> Tensor:
        """`pixels` are what `patch_embeds` were made from; they only travel along, as in the released code."""
        output: Tensor = self.transformer(self.pre_layrnorm(self.embeddings(pixels, patch_embeds)))
        return output


class CLIPVisionEmbeddings(nn.Module):
    """A class token before the features, plus learned positions.

    `patch_embedding` is never called: SAM's features take its place. The checkpoint has its weight.
    """

    position_ids: Tensor

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.embed_dim = config.hidden_size
        self.image_size = config.image_size
        self.patch_size = config.patch_size
        self.grid = config.image_size // config.patch_size
        self.num_positions = self.grid**2 + 1
        self.class_embedding = nn.Parameter(torch.randn(config.hidden_size))
        self.patch_embedding = nn.Conv2d(
            3, config.hidden_size, kernel_size=config.patch_size, stride=config.patch_size, bias=False
        )
        self.position_embedding = nn.Embedding(self.num_positions, config.hidden_size)
        self.register_buffer("position_ids", torch.arange(self.num_positions).expand(1, -1))

    def forward(self, pixels: Tensor, patch_embeds: Tensor) -> Tensor:
        """Class token first, then the features row by row."""
        class_token = self.class_embedding.expand(pixels.shape[0], 1, -1)
        embeds = torch.cat([class_token, patch_embeds.flatten(2).transpose(1, 2)], dim=1)
        return embeds + self._positions(patch_embeds.shape[-1])

    def _positions(self, side: int) -> Tensor:
        learned: Tensor = self.position_embedding(self.position_ids)
        if side == self.grid:
            return learned
        grid = learned[:, 1:].view(1, self.grid, self.grid, -1).permute(0, 3, 1, 2).contiguous().float()
        resized = F.interpolate(grid, size=(side, side), mode="bicubic", antialias=True, align_corners=False)
        return torch.cat([learned[:, :1], resized.to(learned.dtype).flatten(2).transpose(1, 2)], dim=1)


class NoTPTransformer(nn.Module):
    """The stack of blocks."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.num_layers = config.num_layers
        self.layers = nn.ModuleList(NoTPTransformerBlock(config) for _ in range(config.num_layers))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Blocks in order."""
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


class NoTPTransformerBlock(nn.Module):
    """Attention and MLP, each normalised first and added to its input."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.hidden_size = config.hidden_size
        self.self_attn = NoTPAttention(config)
        self.mlp = NoTPFeedForward(config.hidden_size, config.ffn_hidden_size)
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """`[views, tokens, hidden]`, same shape out."""
        x = x + self.self_attn(self.layer_norm1(x))
        output: Tensor = x + self.mlp(self.layer_norm2(x))
        return output


class NoTPAttention(nn.Module):
    """Multi-head attention without mask, always through torch's fused kernel."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.hidden_size = config.hidden_size
        self.num_heads = config.num_heads
        self.head_dim = config.hidden_size // config.num_heads
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Every token attends to every token of its view."""
        views, tokens, _ = x.shape
        qkv: Tensor = self.qkv_proj(x)
        roles = qkv.view(views, tokens, 3, self.num_heads, self.head_dim).unbind(2)
        query, key, value = (role.transpose(1, 2) for role in roles)
        attended = F.scaled_dot_product_attention(query, key, value)
        output: Tensor = self.out_proj(attended.transpose(1, 2).reshape(views, tokens, -1))
        return output


class NoTPFeedForward(nn.Module):
    """Two linear maps around a quick GELU."""

    def __init__(self, hidden_size: int, ffn_hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.ffn_hidden_size = ffn_hidden_size
        self.fc1 = nn.Linear(hidden_size, ffn_hidden_size)
        self.fc2 = nn.Linear(ffn_hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Applied to each token alone."""
        output: Tensor = self.fc2(quick_gelu(self.fc1(x)))
        return output


def quick_gelu(x: Tensor) -> Tensor:
    """The sigmoid approximation of GELU that CLIP was trained with."""
    return x * torch.sigmoid(1.702 * x)

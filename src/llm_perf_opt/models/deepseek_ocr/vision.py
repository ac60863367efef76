"""The vision encoders, SAM (windowed attention over 16-pixel patches) and CLIP (global attention), and the projector.

Class and attribute names follow the released checkpoint, so that its weights load and figures line up.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_perf_opt.models.deepseek_ocr.configuration import ClipConfig, SamConfig


class ImageEncoderViT(nn.Module):
    """Pixels `[views, 3, side, side]` to features `[views, channels, side / 64, side / 64]`."""

    def __init__(self, config: SamConfig) -> None:
        super().__init__()
        self.img_size = config.image_size
        self.patch_size = config.patch_size
        self.embed_dim = config.hidden_size
        self.depth = config.num_layers
        self.global_attn_indexes = config.global_attn_indexes
        grid = config.image_size // config.patch_size
        middle, last = config.downsample_channels
        self.patch_embed = PatchEmbed(config)
        self.pos_embed = nn.Parameter(torch.zeros(1, grid, grid, config.hidden_size))
        self.blocks = nn.ModuleList(Block(config, index) for index in range(config.num_layers))
        self.neck = nn.Sequential(
            nn.Conv2d(config.hidden_size, config.neck_channels, kernel_size=1, bias=False),
            LayerNorm2d(config.neck_channels, config.layer_norm_eps),
            nn.Conv2d(config.neck_channels, config.neck_channels, kernel_size=3, padding=1, bias=False),
            LayerNorm2d(config.neck_channels, config.layer_norm_eps),
        )
        self.net_2 = nn.Conv2d(config.neck_channels, middle, kernel_size=3, stride=2, padding=1, bias=False)
        self.net_3 = nn.Conv2d(middle, last, kernel_size=3, stride=2, padding=1, bias=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode a batch of equally large square views."""
        x: Tensor = self.patch_embed(pixels)
        x = x + self._positions(x.shape[1])
        for block in self.blocks:
            x = block(x)
        x = self.net_2(self.neck(x.permute(0, 3, 1, 2)))
        # The copy is the released encoder's own; without it the bytes moved would differ.
        features: Tensor = self.net_3(x.clone())
        return features

    def _positions(self, side: int) -> Tensor:
        if side == self.pos_embed.shape[1]:
            return self.pos_embed
        channels_first = self.pos_embed.permute(0, 3, 1, 2).float()
        resized = F.interpolate(channels_first, size=(side, side), mode="bicubic", antialias=True, align_corners=False)
        return resized.to(self.pos_embed.dtype).permute(0, 2, 3, 1)


class PatchEmbed(nn.Module):
    """One vector per patch, channels last."""

    def __init__(self, config: SamConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, config.hidden_size, kernel_size=config.patch_size, stride=config.patch_size)

    def forward(self, pixels: Tensor) -> Tensor:
        """`[views, 3, side, side]` to `[views, rows, columns, hidden]`."""
        patches: Tensor = self.proj(pixels)
        return patches.permute(0, 2, 3, 1)


class Block(nn.Module):
    """A transformer block; `window_size` 0 means that attention sees the whole view."""

    def __init__(self, config: SamConfig, index: int) -> None:
        super().__init__()
        is_global = index in config.global_attn_indexes
        self.window_size = 0 if is_global else config.window_size
        grid = config.image_size // config.patch_size if is_global else config.window_size
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attn = Attention(config, grid)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = MLPBlock(config.hidden_size, config.hidden_size * config.mlp_ratio)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and MLP, each added to its input."""
        attended = self.norm1(x)
        if self.window_size:
            windows = split_windows(attended, self.window_size)
            attended = merge_windows(self.attn(windows), x.shape[1], x.shape[2])
        else:
            attended = self.attn(attended)
        x = x + attended
        output: Tensor = x + self.mlp(self.norm2(x))
        return output


def split_windows(x: Tensor, size: int) -> Tensor:
    """`[views, rows, columns, c]` to `[views * windows, size, size, c]`, padded with zeros at the far edges."""
    views, rows, columns, channels = x.shape
    padded = F.pad(x, (0, 0, 0, -columns % size, 0, -rows % size))
    grid = padded.view(views, padded.shape[1] // size, size, padded.shape[2] // size, size, channels)
    return grid.transpose(2, 3).reshape(-1, size, size, channels)


def merge_windows(windows: Tensor, rows: int, columns: int) -> Tensor:
    """Undo `split_windows`: `[views, rows, columns, c]` without the padding."""
    size, channels = windows.shape[1], windows.shape[3]
    down, across = -(-rows // size), -(-columns // size)
    grid = windows.view(-1, down, across, size, size, channels).transpose(2, 3)
    return grid.reshape(-1, down * size, across * size, channels)[:, :rows, :columns].contiguous()


class Attention(nn.Module):
    """Self-attention with learned relative positions, one table per axis, added to the scores as a bias."""

    def __init__(self, config: SamConfig, grid: int) -> None:
        super().__init__()
        self.hidden_size = config.hidden_size
        self.num_heads = config.num_heads
        self.head_dim = config.hidden_size // config.num_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.rel_pos_h = nn.Parameter(torch.zeros(2 * grid - 1, self.head_dim))
        self.rel_pos_w = nn.Parameter(torch.zeros(2 * grid - 1, self.head_dim))

    def forward(self, x: Tensor) -> Tensor:
        """Attend within each `[rows, columns]` map of the batch."""
        maps, rows, columns, _ = x.shape
        tokens = rows * columns
        qkv: Tensor = self.qkv(x)
        by_role = qkv.reshape(maps, tokens, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        query, key, value = by_role.reshape(3, maps * self.num_heads, tokens, self.head_dim).unbind(0)
        bias = self._position_bias(query.view(-1, rows, columns, self.head_dim))
        per_head = (maps, self.num_heads, tokens, -1)
        attended = F.scaled_dot_product_attention(
            query.view(per_head), key.view(per_head), value.view(per_head), attn_mask=bias.view(per_head)
        )
        output: Tensor = self.proj(attended.transpose(1, 2).reshape(maps, rows, columns, -1))
        return output

    def _position_bias(self, query: Tensor) -> Tensor:
        """Scores of each query against the offset to each key: `[maps * heads, queries, key rows, key columns]`."""
        maps, rows, columns, _ = query.shape
        down = torch.einsum("brcd,rkd->brck", query, relative_table(self.rel_pos_h, rows))
        across = torch.einsum("brcd,ckd->brck", query, relative_table(self.rel_pos_w, columns))
        return down.reshape(maps, rows * columns, rows, 1) + across.reshape(maps, rows * columns, 1, columns)


def relative_table(table: Tensor, side: int) -> Tensor:
    """Row `[i, j]` is the entry for offset `i - j`; a table of another length is stretched linearly first."""
    length = 2 * side - 1
    if table.shape[0] != length:
        stretched = F.interpolate(table.float().t().unsqueeze(0), size=length, mode="linear")
        table = stretched.to(table.dtype).squeeze(0).t()
    position = torch.arange(side, device=table.device)
    return table[position[:, None] - position[None, :] + side - 1]


class MLPBlock(nn.Module):
    """Two linear maps around a GELU."""

    def __init__(self, hidden_size: int, mlp_dim: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.mlp_dim = mlp_dim
        self.lin1 = nn.Linear(hidden_size, mlp_dim)
        self.lin2 = nn.Linear(mlp_dim, hidden_size)
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        """Applied to each position alone."""
        output: Tensor = self.lin2(self.act(self.lin1(x)))
        return output


class LayerNorm2d(nn.Module):
    """Normalises the channels of a channels-first map, written out in elementwise steps as the released code does."""

    def __init__(self, num_channels: int, eps: float) -> None:
        super().__init__()
        self.num_channels = num_channels
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))

    def forward(self, x: Tensor) -> Tensor:
        """`[views, channels, rows, columns]`, same shape out."""
        centred = x - x.mean(dim=1, keepdim=True)
        variance = centred.pow(2).mean(dim=1, keepdim=True)
        scaled = centred / torch.sqrt(variance + self.eps)
        return self.weight[:, None, None] * scaled + self.bias[:, None, None]


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


class MlpProjector(nn.Module):
    """One linear map; the released family knows other kinds, the released model uses this one."""

    def __init__(self, input_dim: int, n_embed: int) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.n_embed = n_embed
        self.layers = nn.Linear(input_dim, n_embed)

    def forward(self, x: Tensor) -> Tensor:
        """`[views, tokens, input_dim]` to `[views, tokens, n_embed]`."""
        output: Tensor = self.layers(x)
        return output

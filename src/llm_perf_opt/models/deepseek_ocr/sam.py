"""The SAM encoder: windowed attention over 16-pixel patches, then convolutions that keep one feature in sixteen.

Class and attribute names follow the released checkpoint, so that its weights load and figures line up.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_perf_opt.models.deepseek_ocr.configuration import SamConfig


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

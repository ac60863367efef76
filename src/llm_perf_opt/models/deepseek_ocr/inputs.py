"""What one forward takes: token ids, pixel tensors, and the masks that tie them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from llm_perf_opt.models.deepseek_ocr.blueprint import ImageViews
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig, ImageMode
from llm_perf_opt.models.deepseek_ocr.pages import NO_TILES, PageViews

FIRST_TEXT_ID = 5
TEXT_IDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class OcrInputs:
    """The arguments of a prefill, for `batch` copies of one page."""

    input_ids: Tensor  # [batch, tokens]
    images: tuple[ImageViews, ...]
    images_seq_mask: Tensor  # [batch, tokens]
    images_spatial_crop: Tensor  # [batch, 2]: columns, rows

    @property
    def num_tokens(self) -> int:
        """Length of the sequence, and so of the cache after prefill."""
        return self.input_ids.shape[1]

    @property
    def num_image_tokens(self) -> int:
        """Positions per page that vision fills."""
        return int(self.images_seq_mask[0].sum())


def make_inputs(
    config: DeepSeekOcrConfig, mode: ImageMode, views: PageViews, *, prompt_tokens: int, batch: int, dtype: torch.dtype
) -> OcrInputs:
    """BOS, the image tokens, then `prompt_tokens` placeholders for text: without a tokenizer only their number counts.

    Pixels are normalised to [-1, 1] and then cast to `dtype`. A page without tiles carries zeros in their place, which
    the model takes as "none".
    """
    image_tokens = count_image_tokens(config, mode, views.grid)
    text_ids = [FIRST_TEXT_ID + index % TEXT_IDS for index in range(prompt_tokens)]
    ids = [config.decoder.bos_token_id, *[config.decoder.image_token_id] * image_tokens, *text_ids]
    mask = [False, *[True] * image_tokens, *[False] * prompt_tokens]
    page = pixels([views.global_view]).to(dtype)
    tiles = pixels(views.tiles).to(dtype) if views.tiles else torch.zeros_like(page)
    return OcrInputs(
        input_ids=torch.tensor([ids] * batch),
        images=((tiles, page),) * batch,
        images_seq_mask=torch.tensor([mask] * batch),
        images_spatial_crop=torch.tensor([views.grid] * batch),
    )


def count_image_tokens(config: DeepSeekOcrConfig, mode: ImageMode, grid: tuple[int, int]) -> int:
    """One per feature, one per row of features for the newline, and one that separates the views.

    With side s of the global view and k of a tile: s * (s + 1) + 1, plus (columns * k + 1) * rows * k when there are
    tiles.
    """
    side = config.sam.feature_side(mode.global_size)
    tokens = side * (side + 1) + 1
    if mode.crop_size is not None and grid != NO_TILES:
        tile_side = config.sam.feature_side(mode.crop_size)
        tokens += (grid[0] * tile_side + 1) * grid[1] * tile_side
    return tokens


def pixels(views: Sequence[Image.Image]) -> Tensor:
    """Equally large RGB images as `[views, 3, height, width]` in [-1, 1]."""
    stacked = torch.from_numpy(np.stack([np.asarray(view) for view in views]))
    return (stacked.permute(0, 3, 1, 2).contiguous().float() / 255 - 0.5) / 0.5

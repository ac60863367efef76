"""What one forward takes: prompt ids, pixel tensors, and the masks that tie them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.work_limits import refuse_memory
from llm_perf_opt.models.deepseek_ocr.blueprint import ImageViews
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig, ImageMode
from llm_perf_opt.models.deepseek_ocr.page_geometry import count_image_tokens
from llm_perf_opt.models.deepseek_ocr.pages import PageViews

IMAGE_MARK = "<image>"
FIRST_TEXT_ID = 5
TEXT_IDS = 100

Prompt = str | int | Sequence[int]
"""Text, the number of text tokens, or their ids. In a text `<image>` marks the place of the page, first if absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptIds:
    """Text tokens on both sides of the page."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Text tokens, without the one that begins the sequence."""
        return len(self.before) + len(self.after)


def placeholder_ids(count: int) -> tuple[int, ...]:
    """Different small ids: without a tokenizer only their number counts."""
    return tuple(FIRST_TEXT_ID + index % TEXT_IDS for index in range(count))


def prompt_ids(prompt: Prompt, tokenizer: Any | None) -> PromptIds:
    """The ids of a prompt; a text needs a tokenizer, with `encode(text, add_special_tokens=False)`."""
    if isinstance(prompt, str):
        return _encoded(prompt, tokenizer)
    if isinstance(prompt, int):
        if prompt < 0:
            raise UsageError("A prompt cannot have fewer than no tokens.", why=f"it was {prompt}", fix="give 0 or more")
        return PromptIds(after=placeholder_ids(prompt))
    return PromptIds(after=tuple(prompt))


def _encoded(text: str, tokenizer: Any | None) -> PromptIds:
    if tokenizer is None:
        raise UsageError(
            "A prompt in words needs a tokenizer.",
            why="this session has none: the blueprint brings no files, and the folder holds no tokenizer",
            fix="give the number of text tokens, or their ids; or load a folder with tokenizer.json in it",
        )
    if text.count(IMAGE_MARK) > 1:
        raise UsageError(
            f"The prompt has {IMAGE_MARK} more than once.", why="one page is read at a time", fix="leave one of them"
        )
    before, mark, after = text.strip().rpartition(IMAGE_MARK)
    encode = tokenizer.encode
    return PromptIds(
        before=tuple(encode(before, add_special_tokens=False)) if mark and before else (),
        after=tuple(encode(after, add_special_tokens=False)) if after else (),
    )


_BYTES_PER_TOKEN = 18  # its id and its place in the mask, as lists of Python and as tensors


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

    def to(self, device: torch.device | str) -> OcrInputs:
        """The same inputs in the memory of a device."""
        return OcrInputs(
            input_ids=self.input_ids.to(device),
            images=tuple((tiles.to(device), page.to(device)) for tiles, page in self.images),
            images_seq_mask=self.images_seq_mask.to(device),
            images_spatial_crop=self.images_spatial_crop.to(device),
        )


def make_inputs(
    config: DeepSeekOcrConfig, mode: ImageMode, views: PageViews, *, prompt: PromptIds, batch: int, dtype: torch.dtype
) -> OcrInputs:
    """BOS, the text before the page, the image tokens, then the text after it.

    Pixels are normalised to [-1, 1] and then cast to `dtype`. A page without tiles carries zeros in their place, which
    the model takes as "none". Every page of the batch has memory of its own, though all hold the same pixels.
    """
    image_tokens = count_image_tokens(config, mode, views.grid)
    leading = [config.decoder.bos_token_id, *prompt.before]
    ids = [*leading, *[config.decoder.image_token_id] * image_tokens, *prompt.after]
    refuse_memory(batch * len(ids) * _BYTES_PER_TOKEN, f"A batch of {batch:,} prompts of {len(ids):,} tokens")
    mask = [*[False] * len(leading), *[True] * image_tokens, *[False] * len(prompt.after)]
    page = pixels([views.global_view]).to(dtype)
    tiles = pixels(views.tiles).to(dtype) if views.tiles else torch.zeros_like(page)
    return OcrInputs(
        input_ids=torch.tensor([ids]).repeat(batch, 1),
        images=tuple((_own(tiles), _own(page)) for _ in range(batch)),
        images_seq_mask=torch.tensor([mask]).repeat(batch, 1),
        images_spatial_crop=torch.tensor([views.grid] * batch),
    )


def _own(tensor: Tensor) -> Tensor:
    """The same values as memory of its own for whoever counts, without a second copy of them."""
    return torch.from_numpy(tensor.view(torch.uint8).numpy()).view(tensor.dtype)


def pixels(views: Sequence[Image.Image]) -> Tensor:
    """Equally large RGB images as `[views, 3, height, width]` in [-1, 1]."""
    stacked = torch.from_numpy(np.stack([np.asarray(view) for view in views]))
    return (stacked.permute(0, 3, 1, 2).contiguous().float() / 255 - 0.5) / 0.5

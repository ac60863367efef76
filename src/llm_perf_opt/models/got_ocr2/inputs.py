"""What one forward takes: token ids with places for the views, and the views as pixels."""

from __future__ import annotations

from typing import Any

import torch

FIRST_TEXT_ID = 5
TEXT_IDS = 100


def count_views(crops: tuple[int, int] | None) -> int:
    """One view of the whole page; with crops, one per crop before it."""
    return 1 if crops is None or crops == (1, 1) else crops[0] * crops[1] + 1


def tokens_per_view(config: Any) -> int:
    """The encoder leaves one feature per patch, and each of the projector's two convolutions halves both sides."""
    side = config.vision_config.image_size // config.vision_config.patch_size
    quarter = -(-side // 4)
    return int(quarter * quarter)


def prefill_inputs(config: Any, *, views: int, prompt_tokens: int, batch: int, dtype: torch.dtype) -> dict[str, Any]:
    """Image tokens, then `prompt_tokens` placeholders for text: without a tokenizer only their number counts."""
    size = config.vision_config.image_size
    text = [FIRST_TEXT_ID + index % TEXT_IDS for index in range(prompt_tokens)]
    ids = [config.image_token_id] * (views * tokens_per_view(config)) + text
    return {
        "input_ids": torch.tensor([ids] * batch),
        "attention_mask": torch.ones((batch, len(ids)), dtype=torch.int64),
        "pixel_values": torch.zeros((batch * views, 3, size, size), dtype=dtype),
    }


def decode_inputs(context_tokens: int, batch: int) -> dict[str, Any]:
    """One token on a cache of `context_tokens`; which token it is changes no shape."""
    return {
        "input_ids": torch.full((batch, 1), FIRST_TEXT_ID),
        "attention_mask": torch.ones((batch, context_tokens + 1), dtype=torch.int64),
    }

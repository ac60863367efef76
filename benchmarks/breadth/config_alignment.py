"""Default configurations of composite models rarely fit together: the towers and the text model were never one model.

Two misfits are common, and each has one cure that keeps every other size: the placeholder token lies beyond the text
vocabulary (the vocabulary grows), or a tower's output is not as wide as the text model (that width is set).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

PLACEHOLDERS = (
    "image_token_id", "image_token_index", "video_token_id", "video_token_index", "audio_token_id", "audio_token_index",
    "media_placeholder_token_id", "vision_start_token_id", "vision_end_token_id", "boi_token_id", "eoi_token_id",
    "boa_token_id", "eoa_token_id", "image_start_token_id", "image_end_token_id",
)  # fmt: skip
COMPOSITES = ("vlm_config",)
TOWERS = ("vision_config", "audio_config", "vit_config")
WIDTHS = ("out_hidden_size", "output_dim")


def align(config: Any) -> Iterator[str]:
    """Change `config` where its parts do not fit, and say in words what was changed."""
    for name in COMPOSITES:
        if hasattr(nested := getattr(config, name, None), "to_dict"):
            yield from (f"{name}.{change}" for change in align(nested))
    text = getattr(config, "text_config", None)
    if not hasattr(text, "to_dict"):
        return
    yield from _grow_vocabulary(config, text)
    yield from _match_widths(config, text)


def _grow_vocabulary(config: Any, text: Any) -> Iterator[str]:
    used = [value for name in PLACEHOLDERS if isinstance(value := getattr(config, name, None), int)]
    size = getattr(text, "vocab_size", None)
    if isinstance(size, int) and used and max(used) >= size:
        text.vocab_size = (max(used) // 64 + 1) * 64
        yield f"text_config.vocab_size {size} -> {text.vocab_size}: the placeholder token is {max(used)}"


def _match_widths(config: Any, text: Any) -> Iterator[str]:
    wanted = getattr(text, "hidden_size", None)
    for tower_name in TOWERS:
        tower = getattr(config, tower_name, None)
        for name in WIDTHS:
            given = getattr(tower, name, None)
            if isinstance(given, int) and isinstance(wanted, int) and given != wanted:
                setattr(tower, name, wanted)
                yield f"{tower_name}.{name} {given} -> {wanted}: the width of the text model"

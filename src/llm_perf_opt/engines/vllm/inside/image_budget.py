"""How many image tokens a step may encode, where the folder has no tokenizer and vLLM's own processor cannot say.

vLLM asks the processor for the largest image that the model takes. The largest image of the requests stands in: it
decides only where it is larger than the tokens of a step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import vllm.v1.core.sched.scheduler as scheduler
from vllm.v1.core.encoder_cache_manager import compute_mm_encoder_budget

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
_OF_VLLM = scheduler.MultiModalBudget


def has_tokenizer(folder: str) -> bool:
    """Whether vLLM's processor of images can be made."""
    return any((Path(folder) / name).is_file() for name in _TOKENIZERS)


def state_largest_image(tokens: int | None) -> None:
    """For schedulers made from now on; None: as vLLM finds it."""
    scheduler.MultiModalBudget = _OF_VLLM if tokens is None else lambda config, _: _StatedBudget(config, tokens)


class _StatedBudget:
    """The part of vLLM's record that its scheduler reads, computed by vLLM's own rule."""

    def __init__(self, config: Any, largest: int) -> None:
        self.mm_max_toks_per_item = {"image": largest}
        self.encoder_compute_budget, self.encoder_cache_size = compute_mm_encoder_budget(
            config.scheduler_config, self.mm_max_toks_per_item
        )

"""LoRA by the `peft` library, which is needed for nothing else and is loaded here alone."""

from __future__ import annotations

import importlib
from typing import Any

from llm_perf_opt.core.errors import PerfOptError


def with_lora(model: Any, rank: int, targets: tuple[str, ...]) -> Any:
    """The model with adapters of this rank.

    Without targets it adapts what `peft` adapts by default for the architecture, or all linear layers but the head
    where `peft` has no default.
    """
    peft = _peft()
    defaults = peft.utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    has_default = getattr(model.config, "model_type", None) in defaults
    chosen: Any = list(targets) or (None if has_default else "all-linear")
    settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=chosen)
    return peft.get_peft_model(model, settings)


def _peft() -> Any:
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise PerfOptError(
            "LoRA needs the package peft.",
            why=f"adapters are put into the model by its own code, and it cannot be imported ({error})",
            fix="pip install 'llm-perf-opt[train]'",
        ) from error

"""An image mode asked for by its sizes: one that exists under a name, or a new one beside those."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from llm_perf_opt.errors import UsageError
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig, ImageMode


def mode_of_sizes(config: DeepSeekOcrConfig, base_size: int, crop_size: int | None) -> tuple[DeepSeekOcrConfig, str]:
    """A configuration that has the mode, and the mode's name; the same configuration if it had it already.

    Released inference stretches a page to a small view and pads it to a large one. A new mode does likewise: small is
    what is no larger than the largest stretched mode.
    """
    for name, mode in config.modes.items():
        if (mode.global_size, mode.crop_size) == (base_size, crop_size):
            return config, name
    for size in (base_size, *((crop_size,) if crop_size is not None else ())):
        if size < config.sam.patch_size:
            raise UsageError(
                f"A view of {size} pixels a side is too small.",
                why=f"a patch has {config.sam.patch_size}",
                fix="give a larger size",
            )
    small = max((mode.global_size for mode in config.modes.values() if mode.is_stretched), default=0)
    mode = ImageMode(global_size=base_size, crop_size=crop_size, is_stretched=crop_size is None and base_size <= small)
    name = f"{base_size}" if crop_size is None else f"{base_size}+{crop_size}"
    return replace(config, modes=MappingProxyType({**config.modes, name: mode})), name


def require_sizes_of_model(config: DeepSeekOcrConfig, *, patch_size: int, downsample_ratio: int) -> None:
    """Refuse sizes that the weights fix otherwise: each of SAM's last convolutions halves its map."""
    halvings = len(config.sam.downsample_channels)
    fixed = {"patch_size": (patch_size, config.sam.patch_size), "downsample_ratio": (downsample_ratio, 2**halvings)}
    for name, (given, own) in fixed.items():
        if given != own:
            raise UsageError(
                f"{name} cannot be {given}.", why=f"the weights of this model are made for {own}", fix=f"give {own}"
            )

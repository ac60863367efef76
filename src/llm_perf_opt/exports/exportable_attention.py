"""Attention code that an exporter can take: kernels of other packages give way to torch's own."""

from __future__ import annotations

from typing import Any

import torch

EXPORTABLE = ("eager", "sdpa")


def switch_attention(model: torch.nn.Module) -> tuple[str, ...]:
    """Let a transformers model use torch's fused attention where it names another kernel; says what was switched."""
    chosen = getattr(getattr(model, "config", None), "_attn_implementation", None)
    switch: Any = getattr(model, "set_attn_implementation", None)
    if not isinstance(chosen, str) or chosen in EXPORTABLE or switch is None:
        return ()
    switch("sdpa")
    return (f"attention {chosen} switched to sdpa",)

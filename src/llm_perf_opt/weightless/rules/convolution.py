"""What torch forgets to check on meta tensors: the channels of a transposed convolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llm_perf_opt.weightless.rules.registry import shape_rule


@shape_rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(engine: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Refuse what every real kernel refuses; the shapes themselves are left to torch."""
    source, weight = args[0], args[1]
    channels = source.shape[1 - weight.ndim]
    if channels != weight.shape[0]:
        raise RuntimeError(f"transposed convolution: the input has {channels} channels, the weight {weight.shape[0]}")
    return NotImplemented

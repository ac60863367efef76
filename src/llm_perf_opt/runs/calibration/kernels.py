"""Fused attention and convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llm_perf_opt.runs.calibration.operands import noise
from llm_perf_opt.runs.calibration.probe import Probe
from llm_perf_opt.runs.calibration.stopwatch import Work

_LENGTHS = (64, 128, 196, 256, 512, 1024, 2048, 4096)  # 196: windows of 14 x 14, of no round length
_ODD_LENGTHS = (65, 129, 257, 513, 1025)  # kernels that take values in pairs handle these apart
_CHANNELS = (64, 256, 1024)


def attention_probes(dtype: str, device: str) -> list[Probe]:
    """Attention as one op, with and without a mask that is added to the scores; heads of 64 values.

    A class token makes the number of tokens odd, for which the kernels of some processors take twice as long.
    """

    def attention(heads: int, tokens: int, masked: bool) -> Work:
        joined = noise((1, tokens, 3, heads, 64), dtype, device)  # as one linear map makes them
        query, key, value = (role.transpose(1, 2) for role in joined.unbind(2))
        mask = noise((1, heads, tokens, tokens), dtype, device) if masked else None
        return lambda: F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    def probe(family: str, lengths: tuple[int, ...], masked: bool = False) -> Probe:
        return Probe(
            family=family,
            dtype=dtype,
            axes={"heads": (4, 16), "tokens": lengths},
            prepare=lambda heads, tokens: attention(heads, tokens, masked),
            growth={"tokens": 2},
        )

    return [
        probe("attention", _LENGTHS[:-1]),
        probe("odd_attention", _ODD_LENGTHS),
        probe("masked_attention", _LENGTHS, masked=True),
    ]


def convolution_probes(dtype: str, device: str) -> list[Probe]:
    """Kernels of one pixel, of three, and patches that do not overlap."""
    return [
        _convolution("convolution", dtype, device, kernel=3, stride=1, channels=_CHANNELS),
        _convolution("pointwise_convolution", dtype, device, kernel=1, stride=1, channels=_CHANNELS),
        _convolution("patch_convolution", dtype, device, kernel=16, stride=16, channels=(3,)),
    ]


def _convolution(family: str, dtype: str, device: str, *, kernel: int, stride: int, channels: tuple[int, ...]) -> Probe:
    def convolve(positions: int, columns: int, depth: int) -> Work:
        side = int(positions**0.5)
        inputs = noise((1, depth // kernel**2, side * stride, side * stride), dtype, device)
        weight = noise((columns, depth // kernel**2, kernel, kernel), dtype, device)
        padding = kernel // 2 if stride == 1 else 0
        return lambda: torch.conv2d(inputs, weight, stride=stride, padding=padding)

    axes = {
        "positions": (256, 1024, 4096),
        "columns": (256, 1024),
        "depth": tuple(kernel**2 * count for count in channels),
    }
    return Probe(family=family, dtype=dtype, axes=axes, prepare=convolve)

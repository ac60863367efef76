"""Matrix products with weights that no cache holds, batches of small ones, fused attention, convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from llm_perf_opt.labs.calibrate.probe import Probe, TimedCall, noise, torch_dtype

_LENGTHS = (64, 128, 196, 256, 512, 1024, 2048, 4096)  # 196: windows of 14 x 14, of no round length
_ODD_LENGTHS = (65, 129, 257, 513, 1025)  # kernels that take values in pairs handle these apart
_CHANNELS = (64, 256, 1024)


def attention_probes(dtype: str, device: str) -> list[Probe]:
    """Attention as one op, with and without a mask that is added to the scores; heads of 64 values.

    A class token makes the number of tokens odd, for which the kernels of some processors take twice as long.
    """

    def attention(heads: int, tokens: int, masked: bool) -> TimedCall:
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
    def convolve(positions: int, columns: int, depth: int) -> TimedCall:
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


_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
_WIDTHS = (640, 1280, 2560, 5120)
_WIDEST = 20480


class ColdWeights:
    """A pool of values larger than the caches, from which each call of `take` cuts the next matrix."""

    def __init__(self, values: int, dtype: str, device: str) -> None:
        self._pool = noise((values,), dtype, device)
        self._start = 0

    def take(self, rows: int, columns: int) -> Tensor:
        """A matrix that was not touched for as long as the pool is large."""
        if self._start + rows * columns > len(self._pool):
            self._start = 0
        matrix = self._pool[self._start : self._start + rows * columns].view(rows, columns)
        self._start += rows * columns
        return matrix


def product_probes(dtype: str, device: str, pool_bytes: int) -> list[Probe]:
    """Rows times a weight: the widest has its own table, since few combinations with it are affordable.

    Nothing is swept between tries: each reads another weight, which does just that.
    """
    largest = max(_WIDTHS[-1] ** 2, _WIDEST * _WIDTHS[1])  # of the weights below: the pool must hold each of them
    weights = ColdWeights(max(pool_bytes // torch_dtype(dtype).itemsize, largest), dtype, device)

    def linear(rows: int, columns: int, depth: int) -> TimedCall:
        inputs = noise((rows, depth), dtype, device)
        return lambda: F.linear(inputs, weights.take(columns, depth))

    axes = {"rows": _ROWS, "columns": _WIDTHS, "depth": _WIDTHS}
    wide = {"rows": _ROWS[:10], "columns": (_WIDTHS[-1], _WIDEST), "depth": _WIDTHS[1:2]}
    return [
        Probe(family="product", dtype=dtype, axes=axes, prepare=linear, sweep=False),
        Probe(family="wide_product", dtype=dtype, axes=wide, prepare=linear, sweep=False),
    ]


def narrow_product_probe(dtype: str, device: str) -> Probe:
    """Few columns, as a router has; its weight is small enough to stay in a cache."""

    def linear(rows: int, columns: int, depth: int) -> TimedCall:
        inputs, weight = noise((rows, depth), dtype, device), noise((columns, depth), dtype, device)
        return lambda: F.linear(inputs, weight)

    axes = {"rows": (1, 16, 64, 256, 1024), "columns": (16, 64, 256), "depth": (320, 1280, 5120)}
    return Probe(family="narrow_product", dtype=dtype, axes=axes, prepare=linear)


def batched_product_probe(dtype: str, device: str) -> Probe:
    """Products of activations, as attention written out in steps has: the right side is read transposed."""

    def batched(batch: int, rows: int, columns: int, depth: int) -> TimedCall:
        left, right = noise((batch, rows, depth), dtype, device), noise((batch, columns, depth), dtype, device)
        return lambda: torch.bmm(left, right.transpose(1, 2))

    axes = {
        "batch": (1, 12),
        "rows": (1, 16, 64, 256, 1024),
        "columns": (16, 64, 256, 1024),
        "depth": (16, 64, 256, 1024),
    }
    return Probe(family="batched_product", dtype=dtype, axes=axes, prepare=batched)

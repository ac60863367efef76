"""Matrix products: with weights that no cache holds, as in a model larger than any cache, and batches of small ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from llm_perf_opt.runs.calibration.operands import noise, torch_dtype
from llm_perf_opt.runs.calibration.probe import Probe
from llm_perf_opt.runs.calibration.stopwatch import Work

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
    weights = ColdWeights(pool_bytes // torch_dtype(dtype).itemsize, dtype, device)

    def linear(rows: int, columns: int, depth: int) -> Work:
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

    def linear(rows: int, columns: int, depth: int) -> Work:
        inputs, weight = noise((rows, depth), dtype, device), noise((columns, depth), dtype, device)
        return lambda: F.linear(inputs, weight)

    axes = {"rows": (1, 16, 64, 256, 1024), "columns": (16, 64, 256), "depth": (320, 1280, 5120)}
    return Probe(family="narrow_product", dtype=dtype, axes=axes, prepare=linear)


def batched_product_probe(dtype: str, device: str) -> Probe:
    """Products of activations, as attention written out in steps has: the right side is read transposed."""

    def batched(batch: int, rows: int, columns: int, depth: int) -> Work:
        left, right = noise((batch, rows, depth), dtype, device), noise((batch, columns, depth), dtype, device)
        return lambda: torch.bmm(left, right.transpose(1, 2))

    axes = {
        "batch": (1, 12),
        "rows": (1, 16, 64, 256, 1024),
        "columns": (16, 64, 256, 1024),
        "depth": (16, 64, 256, 1024),
    }
    return Probe(family="batched_product", dtype=dtype, axes=axes, prepare=batched)

"""What a ghost knows of itself: one interned `Spec` per distinct shape, stride and dtype.

Interning makes a spec its own hash key: the shape-propagation cache compares specs by identity, never field by field.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

FLOAT_DTYPES = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)
)


class Spec:
    """Shape, stride and dtype of a tensor without storage. Make one with `spec_of`, never directly."""

    __slots__ = ("bytes", "dtype", "is_float", "ndim", "numel", "shape", "stride")

    def __init__(self, shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape = shape
        self.stride = stride
        self.dtype = dtype
        self.numel = math.prod(shape)
        self.ndim = len(shape)
        self.is_float = dtype in FLOAT_DTYPES
        self.bytes = self.numel * dtype.itemsize

    def __repr__(self) -> str:
        return f"{dtype_name(self.dtype)}{list(self.shape)}"


_INTERNED: dict[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], Spec] = {}


def spec_of(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Spec:
    """The one `Spec` with these fields."""
    key = (tuple(shape), tuple(stride), dtype)
    spec = _INTERNED.get(key)
    if spec is None:
        spec = _INTERNED[key] = Spec(torch.Size(shape), key[1], dtype)
    return spec


def contiguous_spec(shape: Sequence[int], dtype: torch.dtype) -> Spec:
    """The spec of a freshly allocated, row-major tensor."""
    return spec_of(shape, contiguous_stride(shape), dtype)


def spec_of_tensor(tensor: torch.Tensor) -> Spec:
    """The spec a real or meta tensor would have as a ghost."""
    return spec_of(tensor.shape, tensor.stride(), tensor.dtype)


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides; a dimension of size 0 counts as 1, as in torch."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_contiguous(spec: Spec) -> bool:
    """Whether the memory is row-major; dimensions of size 1 may have any stride."""
    step = 1
    for size, stride in zip(reversed(spec.shape), reversed(spec.stride), strict=True):
        if size == 0:
            return True
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def preserved_layout(spec: Spec, dtype: torch.dtype) -> Spec:
    """What `torch.preserve_format` gives: the same strides if dense and non-overlapping, else the nearest to them."""
    step = 1
    for stride, size in sorted((st, n) for n, st in zip(spec.shape, spec.stride, strict=True) if n != 1):
        if stride != step:
            twin = torch.empty_strided(spec.shape, spec.stride, dtype=dtype, device="meta")
            return spec_of_tensor(torch.empty_like(twin))
        step *= size
    return spec_of(spec.shape, spec.stride, dtype)


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16` for `torch.bfloat16`: the name that traces carry."""
    return str(dtype).removeprefix("torch.")

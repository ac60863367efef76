"""The default dtype of one thread, while a model is built in it.

torch has one default dtype for the whole process, and libraries set it while they build a model: another thread that
makes a tensor meanwhile would get that type. So with other threads around, the setting is kept here, and functions that
make tensors are given it. With no other thread there is nobody to notice, and torch's own setting is used and put back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from llm_perf_opt.core.thread_patches import ThreadPatches, is_alone

_MAKES_FLOATS = frozenset(
    {
        torch.empty,
        torch.empty_strided,
        torch.empty_permuted,
        torch.zeros,
        torch.ones,
        torch.rand,
        torch.randn,
        torch.eye,
        torch.linspace,
        torch.logspace,
        torch.bartlett_window,
        torch.blackman_window,
        torch.hamming_window,
        torch.hann_window,
        torch.kaiser_window,
        torch.fft.fftfreq,
        torch.fft.rfftfreq,
    }
)
_MAKES_WHAT_IS_GIVEN = frozenset(
    {torch.full, torch.arange, torch.range, torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor}
)


@contextmanager
def default_dtype(dtype: torch.dtype | None = None) -> Iterator[None]:
    """Floats without a dtype of their own are made in this one, and by `torch.set_default_dtype` in another.

    None begins with the present one. Other threads keep theirs. Where there are any, `torch.Tensor(...)`, the old
    constructor, follows torch's own setting.
    """
    if is_alone():
        before = torch.get_default_dtype()
        try:
            if dtype is not None:
                torch.set_default_dtype(dtype)
            yield
        finally:
            torch.set_default_dtype(before)
        return
    mode = _ThreadDtype(torch.get_default_dtype() if dtype is None else dtype)
    with ThreadPatches() as patches, mode:
        patches.replace(torch, "get_default_dtype", lambda: mode.dtype)
        patches.replace(torch, "set_default_dtype", mode.set)
        yield


_CONVERTS = frozenset({torch.Tensor.float, torch.Tensor.double, torch.Tensor.half, torch.Tensor.bfloat16})


class _ThreadDtype(TorchFunctionMode):
    """Names the dtype in calls that leave it open, and gives it to floats that come from whole numbers."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def set(self, d: torch.dtype, /) -> None:
        """In place of `torch.set_default_dtype`."""
        if not d.is_floating_point:
            raise TypeError(f"only floating-point types are supported as the default type, not {d}")
        self.dtype = d

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Everything else passes unchanged."""
        given = dict(kwargs or {})
        values = (*args, *given.values())
        if func in _MAKES_FLOATS or (func in _MAKES_WHAT_IS_GIVEN and _has_float(values)):
            if given.get("dtype") is None:
                given["dtype"] = self.dtype
            return func(*args, **given)
        made = func(*args, **given)
        if func in _CONVERTS or not isinstance(made, torch.Tensor) or not _is_promoted(made, values):
            return made
        return made.to(self.dtype)


def _is_promoted(made: torch.Tensor, values: Sequence[Any]) -> bool:
    """Whether these are floats of tensors of whole numbers, in the type that torch has for them."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    is_open = made.is_floating_point() and bool(tensors) and not any(isinstance(value, torch.dtype) for value in values)
    return is_open and not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)


def _has_float(value: object) -> bool:
    """Whether a Python float is among the values; an array or a tensor has a dtype of its own."""
    if isinstance(value, (list, tuple)):
        return any(map(_has_float, value))
    return type(value) is float

"""Fourier transforms: `5 * n * log2(n)` vector FLOPs for a complex transform of length n, half of it for a real one.

That is the count of the radix-2 algorithm, used for every length; the logarithm is rounded up.
"""

from __future__ import annotations

import math

from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.ops.cost import OpCost, bytes_in_and_out, elements, operand
from llm_perf_opt.ops.op import Op, registered


def transform_steps(values: int, length: int, *, is_real: bool) -> int:
    """Vector FLOPs of transforming `values` values, `length` at a time."""
    steps = 5 * values * max(length - 1, 0).bit_length()
    return steps // 2 if is_real else steps


def one_dimensional(kind: OpKind) -> OpCost:
    """Along `dim`, default: the last dimension."""
    return _along(kind, [kind.arguments.get("dim", -1)])


def two_dimensional(kind: OpKind) -> OpCost:
    """Along `dim`, default: the last two dimensions."""
    return _along(kind, kind.arguments.get("dim", [-2, -1]))


def all_dimensional(kind: OpKind) -> OpCost:
    """Along `dim`, default: every dimension."""
    return _along(kind, kind.arguments.get("dim") or list(range(len(kind.inputs[0].shape))))


def _along(kind: OpKind, dimensions: list[int]) -> OpCost:
    source, result = kind.inputs[0], kind.outputs[0]
    is_real = not (source.dtype.startswith("complex") and result.dtype.startswith("complex"))
    longer = source if elements(source) >= elements(result) else result  # a real transform stores half of its spectrum
    length = math.prod(longer.shape[place] for place in dimensions)
    return OpCost(
        vector_flops=transform_steps(elements(longer), length, is_real=is_real), bytes_moved=bytes_in_and_out(kind)
    )


def short_time(kind: OpKind) -> OpCost:
    """One real transform of `n_fft` samples per frame, and the window's multiplication."""
    result, length = kind.outputs[0], kind.arguments["n_fft"]
    frames_axis = -1 if result.dtype.startswith("complex") else -2
    signals = math.prod(operand(kind, 0, "self").shape[:-1])
    samples = signals * result.shape[frames_axis] * length
    return _windowed(kind, samples, length)


def short_time_inverse(kind: OpKind) -> OpCost:
    """The same work as the forward transform of as many frames."""
    source, length = operand(kind, 0, "self"), kind.arguments["n_fft"]
    samples = math.prod(source.shape[:-2]) * source.shape[-1] * length
    return _windowed(kind, samples, length)


def _windowed(kind: OpKind, samples: int, length: int) -> OpCost:
    steps = transform_steps(samples, length, is_real=True)
    return OpCost(vector_flops=steps + samples, bytes_moved=bytes_in_and_out(kind))


OPS = registered(
    {
        "fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft": Op(price=one_dimensional),
        "fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_hfft2 fft_ihfft2": Op(price=two_dimensional),
        "fft_fftn fft_ifftn fft_rfftn fft_irfftn fft_hfftn fft_ihfftn": Op(price=all_dimensional),
        "_fft_c2c _fft_c2r _fft_r2c": Op(price=all_dimensional),
        "stft": Op(price=short_time),
        "istft": Op(price=short_time_inverse),
    }
)

"""How much matrix work an op without a price may hide."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import permutations

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.ops.cost import elements, elements_of

Shape = tuple[int, ...]
_PACKED = (2, 3)  # keys and values, or queries too, in one tensor
_EIGHT_BITS = ("int8", "uint8")  # a quantised factor, where wider integers are indices
_NIBBLES_PER_BYTE = 2


def flops_bound(kind: OpKind) -> int | None:
    """An upper bound of the matrix FLOPs of an unknown op, the largest of three; None for one that shows no tensor.

    It holds if the op is one matmul, one convolution with kernels as torch lays them out, or a chain in which
    every input of two dimensions or more is a factor of one matmul, such as attention, a gated MLP or a recurrent
    layer. An op that iterates, or reads weights that are not among its arguments, may do more.
    """
    if not kind.inputs and not kind.outputs:
        return None
    result = elements_of(kind.outputs) if kind.outputs else max(map(elements, kind.inputs))
    return 2 * max(_matmul(kind.inputs, result), _chain(kind, result), *_convolutions(kind))


def _matmul(inputs: Sequence[TensorMeta], result: int) -> int:
    """Multiply-adds of one matmul of the two largest inputs.

    By the Loomis-Whitney inequality, contracting A and B into C takes at most `sqrt(|A| |B| |C|)`: each is a point in a
    box, and A, B and C are the shadows of all points on three of its faces. `mm` reaches the bound, a batch of b
    matmuls stays below it by `sqrt(b)`. A single input is taken as both factors.
    """
    factors = sorted(map(_values, inputs), reverse=True)[:2] or [1]
    square = factors[0] * factors[-1] * result
    return math.isqrt(square - 1) + 1 if square else 0


def _values(meta: TensorMeta) -> int:
    """Elements; integers may be quantised weights, as many as there are halves of a byte."""
    return tensor_bytes(meta) * _NIBBLES_PER_BYTE if "int" in meta.dtype else elements(meta)


def _chain(kind: OpKind, result: int) -> int:
    """Multiply-adds of as many matmuls as there are factors less one; 0 where that is a single matmul.

    Each sums over one dimension of a factor for every element of the first operand or of the result. In attention that
    is the number of keys: `|q| * keys` for the scores and `|out| * keys` for the sum. Keys that a table of indices
    looks up in pages lie along several dimensions.
    """
    factors = [meta for meta in kind.inputs if len(meta.shape) > 1 and _may_be_factor(meta)]
    matmuls = _factor_count(factors, result) - 1
    if matmuls < 2:
        return 0
    rows = {meta.shape[:-1] for meta in kind.outputs}
    operands = [meta for meta in factors if meta.shape[:-1] in rows] or factors
    is_paged = any(len(meta.shape) > 1 and not _may_be_factor(meta) for meta in kind.inputs if meta.dtype != "bool")
    return max(
        matmuls * max(elements(operand), result) * max(_summed(other, is_paged) for other in _others(factors, index))
        for index, operand in enumerate(factors)
        if operand in operands
    )


def _may_be_factor(meta: TensorMeta) -> bool:
    return "float" in meta.dtype or meta.dtype in _EIGHT_BITS


def _factor_count(factors: Sequence[TensorMeta], result: int) -> int:
    """Two tensors or one may hold more factors: packed along a dimension, or side by side in a row."""
    if len(factors) == 1 and elements(factors[0]) > result:
        return max(_PACKED)
    return len(factors) if len(factors) > 2 else sum(map(_packed_in, factors))


def _packed_in(meta: TensorMeta) -> int:
    sizes = meta.shape[:-1] if len(meta.shape) > 3 else ()
    return max((size for size in sizes if size in _PACKED), default=1)


def _others(factors: Sequence[TensorMeta], index: int) -> Sequence[TensorMeta]:
    return [*factors[:index], *factors[index + 1 :]] or factors


def _summed(meta: TensorMeta, is_paged: bool) -> int:
    return elements(meta) // max(1, meta.shape[-1]) if is_paged else max(meta.shape)


def _convolutions(kind: OpKind) -> Iterator[int]:
    """Multiply-adds of every pair of inputs that are image and kernels by their shapes, also transposed."""
    for image, kernels in permutations([meta.shape for meta in kind.inputs], 2):
        spatial = len(kernels) - 2
        for output in (meta.shape for meta in kind.outputs):
            if spatial < 1 or len(image) != len(output) or len(image) not in (spatial + 1, spatial + 2):
                continue
            if image == kernels:  # keys and values: their channels always fit
                continue
            if _is_batched_matmul(image, kernels, output) or _is_batched_matmul(kernels, image, output):
                continue
            if _has_channels(image, kernels, output, spatial):
                yield math.prod(output) * math.prod(kernels[1:])
            if _has_channels(output, kernels, image, spatial):
                yield math.prod(image) * math.prod(kernels[1:])


def _has_channels(image: Shape, kernels: Shape, output: Shape, spatial: int) -> bool:
    """Whether the kernels have as many channels as image and output, which have them in front or at the end."""
    return any(
        kernels[depth] and image[channel] % kernels[depth] == 0 and output[channel] == kernels[0]
        for channel, depth in ((-spatial - 1, 1), (-1, -1))
    )


def _is_batched_matmul(left: Shape, right: Shape, result: Shape) -> bool:
    return left[:-2] == right[:-2] and left[-1] == right[-2] and result == (*left[:-1], right[-1])

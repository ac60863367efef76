"""Elementwise work, reductions, norms and resampling, by simple counts per element.

One arithmetic step on one element is one vector FLOP; a root, exponential or other elementary function counts as one
step too, and so does a comparison. These counts rank ops and feed no total: `OpCost.flops` is zero throughout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.ops.attention import SOFTMAX_STEPS
from llm_perf_opt.ops.cost import Formula, OpCost, bytes_in_and_out, elements, operand
from llm_perf_opt.ops.op import (
    AccessPattern,
    CalibratedFormula,
    CalibratedWork,
    Kernel,
    Layout,
    Op,
    OpRole,
    is_aligned,
    launches,
    registered,
    sized_work,
    vector_kernel,
)

_LONGEST_IN_REGISTERS = 1024  # values of a row of softmax
_WHOLE_LOOP = 4096  # an inner loop this long is as good as one over everything


def pointwise(steps: int) -> Formula:
    """`steps` on every element of the first output, or of the first input where the op only writes into it."""

    def price(kind: OpKind) -> OpCost:
        worked = elements((kind.outputs or kind.inputs)[0])
        return OpCost(vector_flops=steps * worked, bytes_moved=bytes_in_and_out(kind))

    return price


def reduction(steps: int) -> Formula:
    """`steps` on every element of the first input, or of the output where that is larger (`max` of two)."""

    def price(kind: OpKind) -> OpCost:
        worked = max(elements(meta) for meta in (kind.inputs[0], *kind.outputs))
        return OpCost(vector_flops=steps * worked, bytes_moved=bytes_in_and_out(kind))

    return price


def norm(steps: int) -> Formula:
    """A norm by elements; None for one by singular values, which depend on the values."""

    def price(kind: OpKind) -> OpCost | None:
        dimensions = kind.arguments.get("dim")
        is_matrix = len(dimensions) == 2 if isinstance(dimensions, list) else dimensions is None
        if is_matrix and kind.arguments.get("ord") in (2, -2, "nuc"):
            return None
        return reduction(steps)(kind)

    return price


def sort(kind: OpKind) -> OpCost:
    """`n * log2(n)` comparisons along the sorted dimension; selecting the top k is priced like sorting all."""
    source = kind.inputs[0]
    dimension = kind.arguments.get("dim", -1)
    length = source.shape[dimension] if source.shape and isinstance(dimension, int) else elements(source)
    return OpCost(vector_flops=elements(source) * max(length - 1, 0).bit_length(), bytes_moved=bytes_in_and_out(kind))


def binary_search(kind: OpKind) -> OpCost:
    """`log2` of the number of boundaries for every value placed."""
    boundaries = operand(kind, 0, "sorted_sequence", "boundaries").shape[-1]
    steps = elements(kind.outputs[0]) * max(boundaries - 1, 0).bit_length()
    return OpCost(vector_flops=steps, bytes_moved=bytes_in_and_out(kind))


def pool(rank: int) -> Formula:
    """The formula of pooling over `rank` dimensions: every output value looks at one window of `kernel_size`."""

    def price(kind: OpKind) -> OpCost:
        window = kind.arguments["kernel_size"]
        sides = [window] if isinstance(window, int) else list(window)
        values = sides[0] ** rank if len(sides) == 1 else math.prod(sides)
        return OpCost(vector_flops=elements(kind.outputs[0]) * values, bytes_moved=bytes_in_and_out(kind))

    return price


def resampling(taps: int) -> Formula:
    """Every output value is a weighted sum of this many neighbours, two steps for each."""

    def price(kind: OpKind) -> OpCost:
        return OpCost(vector_flops=2 * taps * elements(kind.outputs[0]), bytes_moved=bytes_in_and_out(kind))

    return price


def resampling_backward(taps: int) -> Formula:
    """The gradient of every output value is spread over this many neighbours."""

    def price(kind: OpKind) -> OpCost:
        return OpCost(vector_flops=2 * taps * elements(kind.inputs[0]), bytes_moved=bytes_in_and_out(kind))

    return price


def alignment_loss(kind: OpKind) -> OpCost:
    """`ctc_loss`: four steps for each time step and each place in the blank-padded target."""
    log_probabilities, targets = kind.inputs[:2]
    places = 2 * targets.shape[-1] + 1
    steps = 4 * math.prod(log_probabilities.shape[:-1]) * places
    return OpCost(vector_flops=steps, bytes_moved=bytes_in_and_out(kind))


def unary_work(family: str) -> CalibratedFormula:
    """Timed by a table over the values of the first input."""

    def read(kind: OpKind) -> Iterator[CalibratedWork]:
        yield sized_work(family, kind.inputs[0])

    return read


def row_work(family: str) -> CalibratedFormula:
    """Timed by a table over values and the length of the rows."""

    def read(kind: OpKind) -> Iterator[CalibratedWork]:
        meta = kind.inputs[0]
        yield sized_work(family, meta, width=meta.shape[-1] if meta.shape else 1)

    return read


def arithmetic_work(kind: OpKind) -> Iterator[CalibratedWork]:
    """By how the operands meet: one of them, all of one shape, or some of them repeated along others."""
    result = kind.outputs[0]
    if len(kind.inputs) == 1:
        yield sized_work("scaling", result)
        return
    inner = inner_length(result.shape, [meta.shape for meta in kind.inputs])
    if inner >= min(_WHOLE_LOOP, elements(result)):
        yield sized_work("arithmetic", result)
        return
    is_outer = all(elements(meta) < elements(result) for meta in kind.inputs)
    yield sized_work("outer_broadcast" if is_outer else "broadcast", result, inner=inner)


def inner_length(result: Sequence[int], operands: Sequence[Sequence[int]]) -> int:
    """How many values at the end of the result every operand either holds one after the other or repeats one for.

    Kernels run through that many values at once and start anew after them. Operands are taken as contiguous.
    """
    padded = [(1,) * (len(result) - len(shape)) + tuple(shape) for shape in operands]
    length, steps = 1, None  # per operand: whether it moves on along the dimensions taken so far
    for dim in range(len(result) - 1, -1, -1):
        if result[dim] == 1:
            continue
        moves = [shape[dim] != 1 for shape in padded]
        if steps is not None and steps != moves:
            break
        length, steps = length * result[dim], moves
    return length


def reduction_work(kind: OpKind) -> Iterator[CalibratedWork]:
    """Along rows, or across them."""
    meta = kind.inputs[0]
    dims = kind.arguments.get("dim")
    named = [dims] if isinstance(dims, int) else dims
    along_last = not named or any(dim % max(1, len(meta.shape)) == len(meta.shape) - 1 for dim in named)
    width = meta.shape[-1] if meta.shape else 1
    yield sized_work("reduction" if along_last else "column_reduction", meta, width=width)


def sort_work(kind: OpKind) -> Iterator[CalibratedWork]:
    """By the number of values, whatever their type."""
    yield CalibratedWork(family="sort", dtype="int64", sizes={"elements": elements(kind.inputs[0])})


def resampling_work(kind: OpKind) -> Iterator[CalibratedWork]:
    """By the larger of the two pictures."""
    values = max(elements(kind.inputs[0]), elements(kind.outputs[0]))
    yield CalibratedWork(family="resampling", dtype="float32", sizes={"elements": values})


_kept = partial(Op, layout=Layout.KEPT)
_whole = partial(Op, is_recorded_whole=True)


def softmax_kernels(kind: OpKind, cost: OpCost) -> tuple[Kernel, ...]:
    """A row of up to 1,024 values stays in registers. A longer one that begins at 16 bytes is kept in shared memory."""
    shape, dim = kind.inputs[0].shape, kind.arguments.get("dim", -1)
    length = shape[dim] if shape and isinstance(dim, int) else 1
    is_long = length > _LONGEST_IN_REGISTERS and not is_aligned(kind, length)
    return (vector_kernel(kind, cost, AccessPattern.LONG_SOFTMAX if is_long else AccessPattern.SOFTMAX),)


_activation = partial(_kept, kernels=launches(AccessPattern.ACTIVATION))
_softmax = partial(Op, price=pointwise(SOFTMAX_STEPS), role=OpRole.SOFTMAX, kernels=softmax_kernels)
_norm = partial(Op, kernels=launches(AccessPattern.NORMALISED))
_layer_norm = partial(_norm, calibrated=row_work("layer_norm"))
_reduction = partial(Op, kernels=launches(AccessPattern.REDUCED))
_resampling = partial(Op, calibrated=resampling_work)

CLASSES = {
    "pointwise": Op(price=pointwise(1)),  # work on every output element: arithmetic, activations, norms, softmax
    "reduction": Op(price=reduction(1)),  # work on every input element: sums, scans, losses
    "sort": Op(price=sort),
}

OPS = registered(
    {
        "add sub mul div": _kept(price=pointwise(1), calibrated=arithmetic_work),
        "floor_divide maximum minimum": Op(price=pointwise(1), calibrated=arithmetic_work),
        "neg sqrt rsqrt relu": _kept(price=pointwise(1), calibrated=unary_work("scaling")),
        "abs": Op(price=pointwise(1), calibrated=unary_work("scaling")),
        "clamp": Op(price=pointwise(2), calibrated=unary_work("scaling")),
        "pow": _kept(price=pointwise(1), calibrated=unary_work("square")),
        "tanh": _activation(price=pointwise(1), calibrated=unary_work("sigmoid")),
        "exp": Op(price=pointwise(1), calibrated=unary_work("sigmoid"), kernels=launches(AccessPattern.ACTIVATION)),
        "sigmoid": _activation(price=pointwise(4), calibrated=unary_work("sigmoid")),
        "silu": _activation(price=pointwise(5), calibrated=unary_work("silu")),
        "gelu": _activation(price=pointwise(8), calibrated=unary_work("gelu")),
        "cos sin log erf": Op(price=pointwise(1), calibrated=unary_work("cosine")),
        "addcmul addcdiv lerp rsub glu leaky_relu hardtanh relu6 native_dropout": Op(price=pointwise(2)),
        "dropout": _whole(price=pointwise(2), has_scratch=False),
        "celu elu selu hardsigmoid hardshrink softshrink": Op(price=pointwise(3)),
        "softplus log_sigmoid log_sigmoid_forward hardswish": Op(price=pointwise(4)),
        "mish": Op(price=pointwise(6)),
        "sigmoid_backward tanh_backward threshold_backward": Op(price=pointwise(2)),
        "_softmax_backward_data _log_softmax_backward_data": Op(price=pointwise(4)),
        "silu_backward": Op(price=pointwise(5)),
        "gelu_backward": Op(price=pointwise(8)),
        "softmax": _softmax(calibrated=row_work("softmax"), is_recorded_whole=True),
        "_softmax": _softmax(calibrated=row_work("softmax")),
        "_safe_softmax special_softmax": _softmax(),
        "log_softmax": _whole(price=pointwise(SOFTMAX_STEPS), kernels=softmax_kernels),
        "_masked_softmax _log_softmax special_log_softmax": Op(price=pointwise(SOFTMAX_STEPS), kernels=softmax_kernels),
        # Square, add, scale, weight.
        "rms_norm": _layer_norm(price=pointwise(4), is_recorded_whole=True),
        "_fused_rms_norm _weight_norm _weight_norm_interface": _norm(price=pointwise(4)),
        # Subtract, scale, weight, bias.
        "batch_norm": _whole(price=pointwise(4)),
        "native_batch_norm cudnn_batch_norm miopen_batch_norm": Op(price=pointwise(4)),
        "_native_batch_norm_legit_no_training _batch_norm_no_update": Op(price=pointwise(4)),
        # As the variance, then as batch_norm.
        "layer_norm": _layer_norm(price=pointwise(8), copies_scattered_input=True, is_recorded_whole=True),
        "native_layer_norm": _layer_norm(price=pointwise(8), copies_scattered_input=True),
        "group_norm": _whole(price=pointwise(8)),
        "native_group_norm instance_norm": Op(price=pointwise(8)),
        "_native_batch_norm_legit _batch_norm_with_update _batch_norm_impl_index": Op(price=pointwise(8)),
        "native_layer_norm_backward native_group_norm_backward": Op(price=pointwise(16)),
        "native_batch_norm_backward _fused_rms_norm_backward": Op(price=pointwise(16)),
        "sum mean amax amin any all": _reduction(price=reduction(1), calibrated=reduction_work),
        "mse_loss l1_loss linalg_vector_norm norm": _reduction(price=reduction(2)),
        "kl_div smooth_l1_loss huber_loss pairwise_distance dist": Op(price=reduction(3)),
        "var std var_mean std_mean": _reduction(price=reduction(4)),  # mean; subtract, square, add
        "logsumexp binary_cross_entropy": _reduction(price=reduction(4)),
        "binary_cross_entropy_with_logits": Op(price=reduction(5)),
        "cosine_similarity cross_entropy_loss": Op(price=reduction(6)),
        "linalg_norm": _reduction(price=norm(2)),
        "linalg_matrix_norm": Op(price=norm(1)),
        "max argmax": _reduction(price=reduction(1), role=OpRole.CHOICE),
        "sort argsort": Op(price=sort, calibrated=sort_work),
        "topk": Op(price=sort, calibrated=sort_work, role=OpRole.CHOICE),
        "searchsorted bucketize": Op(price=binary_search),
        "max_pool1d avg_pool1d max_pool1d_with_indices": Op(price=pool(1)),
        "max_pool2d avg_pool2d max_pool2d_with_indices": Op(price=pool(2)),
        "max_pool3d avg_pool3d max_pool3d_with_indices": Op(price=pool(3)),
        "upsample_linear1d": _resampling(price=resampling(2)),
        "upsample_bilinear2d": _resampling(price=resampling(4)),
        "upsample_bicubic2d _upsample_bicubic2d_aa": _resampling(price=resampling(16), layout=Layout.KEPT),
        "_upsample_bilinear2d_aa grid_sampler grid_sampler_2d": Op(price=resampling(4)),
        "_grid_sampler_2d_cpu_fallback cudnn_grid_sampler": Op(price=resampling(4)),
        "upsample_trilinear3d grid_sampler_3d": Op(price=resampling(8)),
        "_upsample_lanczos2d_aa": Op(price=resampling(36)),
        "upsample_linear1d_backward": Op(price=resampling_backward(2)),
        "upsample_bilinear2d_backward _upsample_bilinear2d_aa_backward": Op(price=resampling_backward(4)),
        "upsample_bicubic2d_backward _upsample_bicubic2d_aa_backward": Op(price=resampling_backward(16)),
        "grid_sampler_2d_backward": Op(price=resampling_backward(8)),  # of the picture and of the grid
        "_weight_norm_interface_backward": Op(price=pointwise(8)),
        "ctc_loss _ctc_loss": Op(price=alignment_loss),
    }
)

"""Convolutions: each output value sums over its group's input channels and every kernel position.

A weight is `[output channels, input channels per group, *kernel]`, so `weight values / output channels` is that sum's
length for any rank, stride, dilation, padding and group count. A transposed convolution is the same work counted from
the input: its weight is `[input channels, output channels per group, *kernel]`, and each input value meets all of them.
Padding is priced as if its zeros were multiplied, as torch does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.ops.cost import OpCost, bytes_in_and_out, elements, operand
from llm_perf_opt.ops.op import (
    AccessPattern,
    CalibratedWork,
    Kernel,
    Layout,
    Op,
    helper_kernel,
    is_aligned,
    matmul_kernel,
    registered,
    vector_kernel,
)

_CHANNELS_LAST = frozenset({"bfloat16", "float16"})


def convolution_macs(data: TensorMeta, weight: TensorMeta, result: TensorMeta, *, transposed: bool) -> int:
    """Multiply-adds of one forward convolution from `data` to `result`."""
    per_value = elements(weight) // weight.shape[0] if weight.shape[0] else 0
    return elements(data if transposed else result) * per_value


def convolution(kind: OpKind) -> OpCost:
    """Any forward convolution with an argument `transposed`; default: it is not."""
    return _forward(kind, transposed=bool(kind.arguments.get("transposed", False)))


def transposed_convolution(kind: OpKind) -> OpCost:
    """A convolution that is transposed by name."""
    return _forward(kind, transposed=True)


def _forward(kind: OpKind, *, transposed: bool) -> OpCost:
    data, weight, result = operand(kind, 0, "input", "self"), operand(kind, 1, "weight"), kind.outputs[0]
    return OpCost(
        flops=2 * convolution_macs(data, weight, result, transposed=transposed),
        vector_flops=elements(result) if "bias" in kind.input_names else 0,
        bytes_moved=bytes_in_and_out(kind),
    )


def time_first_convolution(kind: OpKind) -> OpCost:
    """`conv_tbc`: its weight is `[kernel, input channels, output channels]`."""
    weight = operand(kind, 1, "weight")
    output = elements(kind.outputs[0])
    macs = output * weight.shape[0] * weight.shape[1]
    return OpCost(flops=2 * macs, vector_flops=output, bytes_moved=bytes_in_and_out(kind))


def convolution_backward(kind: OpKind) -> OpCost:
    """The gradients of input and weight, each as much work as the forward; the bias gradient is a plain sum."""
    gradient, data, weight = operand(kind, 0, "grad_output"), operand(kind, 1, "input"), operand(kind, 2, "weight")
    macs = convolution_macs(data, weight, gradient, transposed=bool(kind.arguments["transposed"]))
    wants_input, wants_weight, wants_bias = kind.arguments["output_mask"]
    return OpCost(
        flops=2 * macs * (bool(wants_input) + bool(wants_weight)),
        vector_flops=elements(gradient) if wants_bias else 0,
        bytes_moved=bytes_in_and_out(kind),
    )


def convolution_kernels(kind: OpKind, cost: OpCost) -> tuple[Kernel, ...]:
    """A matmul with one row per position: the channels of the output are its columns.

    In 16 bits cuDNN and MIOpen multiply with channels last. Tensors with channels first, which is PyTorch's default,
    are copied there and back, and the bias is added by a kernel of its own. A depthwise convolution is one kernel.
    """
    shape = kind.outputs[0].shape
    if not cost.flops:
        return (vector_kernel(kind, cost),)
    matmul = matmul_kernel(kind, cost, width=shape[1] if len(shape) > 1 else shape[-1] if shape else 1)
    data, weight = operand(kind, 0, "input", "self"), operand(kind, 1, "weight")
    if matmul.dtype not in _CHANNELS_LAST or len(weight.shape) < 4 or weight.shape[1] == 1:
        return (matmul,)
    if not is_aligned(kind, weight.shape[1]):
        matmul = replace(matmul, pattern=AccessPattern.UNALIGNED_CHANNELS)
    copies = tuple(helper_kernel(meta) for meta in (data, weight, kind.outputs[0]))
    bias = (helper_kernel(kind.outputs[0]),) if "bias" in kind.input_names else ()
    return (*copies[:2], matmul, copies[2], *bias)


def convolution_work(kind: OpKind) -> Iterator[CalibratedWork]:
    """By positions, channels and the length of each sum; kernels of one pixel and patches have tables of their own."""
    weight, result = operand(kind, 1, "weight"), kind.outputs[0]
    taps, stride = math.prod(weight.shape[2:]), kind.arguments.get("stride", [1])
    is_patch = list(weight.shape[2:]) == list(stride)
    family = "pointwise_convolution" if taps == 1 else "patch_convolution" if is_patch else "convolution"
    sizes = {
        "positions": elements(result) / weight.shape[0],
        "columns": weight.shape[0],
        "depth": math.prod(weight.shape[1:]),
    }
    yield CalibratedWork(family=family, dtype=weight.dtype, sizes=sizes)


_convolution = partial(Op, family=WorkFamily.CONVOLUTION, kernels=convolution_kernels)
_whole = partial(_convolution, is_recorded_whole=True, has_scratch=False)

OPS = registered(
    {
        "conv2d": _whole(price=convolution, calibrated=convolution_work, layout=Layout.KEPT),
        "conv1d conv3d": _whole(price=convolution),
        "convolution": _convolution(price=convolution, calibrated=convolution_work, layout=Layout.KEPT),
        "convolution_overrideable _convolution _convolution_mode": _convolution(price=convolution),
        "cudnn_convolution cudnn_convolution_relu cudnn_convolution_add_relu": _convolution(price=convolution),
        "miopen_convolution miopen_convolution_relu miopen_convolution_add_relu": _convolution(price=convolution),
        "miopen_depthwise_convolution mkldnn_convolution _mps_convolution": _convolution(price=convolution),
        "_nnpack_spatial_convolution thnn_conv2d _slow_conv2d_forward": _convolution(price=convolution),
        "slow_conv3d slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d": _convolution(price=convolution),
        "_conv_depthwise2d conv_depthwise3d torchvision.deform_conv2d": _convolution(price=convolution),
        "conv_transpose1d conv_transpose2d": _whole(price=transposed_convolution),
        "conv_transpose3d cudnn_convolution_transpose": _convolution(price=transposed_convolution),
        "miopen_convolution_transpose _mps_convolution_transpose": _convolution(price=transposed_convolution),
        "slow_conv_transpose2d slow_conv_transpose3d": _convolution(price=transposed_convolution),
        "conv_tbc": _convolution(price=time_first_convolution),
        "convolution_backward": _convolution(price=convolution_backward),
    }
)

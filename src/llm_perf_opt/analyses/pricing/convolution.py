"""Convolutions: each output value sums over its group's input channels and every kernel position.

A weight is `[output channels, input channels per group, *kernel]`, so `weight values / output channels` is that sum's
length for any rank, stride, dilation, padding and group count. A transposed convolution is the same work counted from
the input: its weight is `[input channels, output channels per group, *kernel]`, and each input value meets all of them.
Padding is priced as if its zeros were multiplied, as torch does.
"""

from __future__ import annotations

from llm_perf_opt.analyses.pricing.op_cost import Formula, OpCost, bytes_in_and_out, elements, operand
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta


def convolution_macs(data: TensorMeta, weight: TensorMeta, result: TensorMeta, *, transposed: bool) -> int:
    """Multiply-adds of one forward convolution from `data` to `result`."""
    per_value = elements(weight) // weight.shape[0] if weight.shape[0] else 0
    return elements(data if transposed else result) * per_value


def convolution(kind: OpKind) -> OpCost:
    """Any forward convolution that says whether it is transposed; absent means it is not."""
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
    """`conv_tbc`, whose weight is `[kernel, input channels, output channels]`."""
    weight = operand(kind, 1, "weight")
    output = elements(kind.outputs[0])
    macs = output * weight.shape[0] * weight.shape[1]
    return OpCost(flops=2 * macs, vector_flops=output, bytes_moved=bytes_in_and_out(kind))


def convolution_backward(kind: OpKind) -> OpCost:
    """The gradients of input and weight, each as much work as the forward; that of the bias is a plain sum."""
    gradient, data, weight = operand(kind, 0, "grad_output"), operand(kind, 1, "input"), operand(kind, 2, "weight")
    macs = convolution_macs(data, weight, gradient, transposed=bool(kind.arguments["transposed"]))
    wants_input, wants_weight, wants_bias = kind.arguments["output_mask"]
    return OpCost(
        flops=2 * macs * (bool(wants_input) + bool(wants_weight)),
        vector_flops=elements(gradient) if wants_bias else 0,
        bytes_moved=bytes_in_and_out(kind),
    )


FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(
        (
            "aten.conv1d",
            "aten.conv2d",
            "aten.conv3d",
            "aten.convolution",
            "aten.convolution_overrideable",
            "aten._convolution",
            "aten._convolution_mode",
            "aten.cudnn_convolution",
            "aten.cudnn_convolution_relu",
            "aten.cudnn_convolution_add_relu",
            "aten.miopen_convolution",
            "aten.miopen_convolution_relu",
            "aten.miopen_convolution_add_relu",
            "aten.miopen_depthwise_convolution",
            "aten.mkldnn_convolution",
            "aten._mps_convolution",
            "aten._nnpack_spatial_convolution",
            "aten.thnn_conv2d",
            "aten._slow_conv2d_forward",
            "aten.slow_conv3d",
            "aten.slow_conv3d_forward",
            "aten.slow_conv_dilated2d",
            "aten.slow_conv_dilated3d",
            "aten._conv_depthwise2d",
            "aten.conv_depthwise3d",
            "torchvision.deform_conv2d",
        ),
        convolution,
    ),
    **dict.fromkeys(
        (
            "aten.conv_transpose1d",
            "aten.conv_transpose2d",
            "aten.conv_transpose3d",
            "aten.cudnn_convolution_transpose",
            "aten.miopen_convolution_transpose",
            "aten._mps_convolution_transpose",
            "aten.slow_conv_transpose2d",
            "aten.slow_conv_transpose3d",
        ),
        transposed_convolution,
    ),
    "aten.conv_tbc": time_first_convolution,
    "aten.convolution_backward": convolution_backward,
}

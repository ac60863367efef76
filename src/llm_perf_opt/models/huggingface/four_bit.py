"""Linear layers as bitsandbytes stores them for QLoRA: 4 bits for each number, and scales that are stored twice.

Blocks of 64 numbers share a scale. Scales are stored in 8 bits, and 256 of them share a scale in 32 bits. A forward
multiplies with the packed weight; a backward unpacks the whole matrix in the type of the activations. The ops have no
values: these layers run on ghosts alone.
"""

from __future__ import annotations

from typing import Any

import torch

from llm_perf_opt.weightless.ghost import new_ghost
from llm_perf_opt.weightless.spec import contiguous_spec

BLOCK, NESTED_BLOCK = 64, 256
_TABLES = 16 + 256 + 1  # the values of the 4-bit and of the 8-bit format, and the mean of the scales

_LIBRARY = torch.library.Library("llm_perf_opt", "DEF")
_LIBRARY.define("gemm_4bit(Tensor x, Tensor packed, Tensor scales, Tensor nested, int columns) -> Tensor")
_LIBRARY.define("unpack_scales(Tensor scales, Tensor nested) -> Tensor")
_LIBRARY.define("dequantize_4bit(Tensor packed, Tensor scales, int[] shape, ScalarType dtype) -> Tensor")
_LIBRARY.impl("gemm_4bit", lambda x, packed, scales, nested, columns: x.new_empty((*x.shape[:-1], columns)), "Meta")
_LIBRARY.impl("unpack_scales", lambda scales, nested: nested.new_empty(scales.shape), "Meta")
_LIBRARY.impl("dequantize_4bit", lambda packed, scales, shape, dtype: scales.new_empty(shape, dtype=dtype), "Meta")


class FourBitLinear(torch.nn.Linear):
    """In the place of a linear layer with a frozen weight. What bitsandbytes hangs on the weight are buffers here."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, linear.bias
        numbers = linear.weight.numel()
        blocks = -(-numbers // BLOCK)
        self.weight = torch.nn.Parameter(_held(torch.uint8, (numbers + 1) // 2, 1), requires_grad=False)
        self.register_buffer("scales", _held(torch.uint8, blocks))
        self.register_buffer("nested_scales", _held(torch.float32, -(-blocks // NESTED_BLOCK)))
        self.register_buffer("tables", _held(torch.float32, _TABLES))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """One op with the packed weight."""
        shape = (self.out_features, self.in_features)
        multiplied: Any = _Matmul.apply
        output: torch.Tensor = multiplied(input, self.weight, self.scales, self.nested_scales, shape)
        return output if self.bias is None else output + self.bias


class _Matmul(torch.autograd.Function):
    """Saves no activation: the weight has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, packed: Any, scales: Any, nested: Any, shape: tuple[int, int]) -> Any:
        ctx.held, ctx.shape = (packed, scales, nested), shape
        return torch.ops.llm_perf_opt.gemm_4bit(x, packed, scales, nested, shape[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        packed, scales, nested = ctx.held
        (gradient,) = gradients
        unpacked = torch.ops.llm_perf_opt.unpack_scales(scales, nested)
        weight = torch.ops.llm_perf_opt.dequantize_4bit(packed, unpacked, ctx.shape, gradient.dtype)
        del unpacked
        return torch.matmul(gradient, weight), None, None, None, None


def with_four_bits(model: Any) -> Any:
    """The model with every linear layer but the head in 4 bits, as transformers loads it for QLoRA."""
    head = model.get_output_embeddings()
    for path, module in list(model.named_modules()):
        if type(module) is torch.nn.Linear and module is not head:
            around, _, name = path.rpartition(".")
            setattr(model.get_submodule(around), name, FourBitLinear(module))
    return model


def _held(dtype: torch.dtype, *shape: int) -> Any:
    return new_ghost(contiguous_spec(shape, dtype))

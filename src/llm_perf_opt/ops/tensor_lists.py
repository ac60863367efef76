"""Ops on lists of tensors, as optimizers run them: many tensors in one launch, most of them written in place.

How many launches a list takes on CUDA follows from torch's `multi_tensor_apply`: a launch has at most 320 blocks, a
block works on 65,536 elements of one tensor, and a launch names at most so many tensors as its arguments have room for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.ops.cost import Formula, OpCost, bytes_in_and_out, bytes_of, elements, elements_of
from llm_perf_opt.ops.op import Kernel, Op, registered, vector_kernel

_CHUNK = 65_536  # elements of a block
_BLOCKS = 320  # of a launch
_TENSORS = (110, 64, 48, 36, 30)  # of a launch, by the number of lists
_ADAM_STEPS = 12  # decay, two moving averages, their corrections, root, quotient, update
_SGD_STEPS = 4


def in_place_lists(kind: OpKind, *names: str) -> int:
    """Bytes written to these lists where the op returns nothing; what it returns counts as written already."""
    if kind.outputs or not kind.mutates:
        return 0
    return bytes_of(meta for meta, name in zip(kind.inputs, kind.input_names, strict=False) if name in names)


def pointwise_list(kind: OpKind) -> OpCost:
    """One elementwise op on each tensor of a list."""
    worked = kind.outputs or [meta for meta, name in _named(kind) if name == "self"] or kind.inputs
    return OpCost(vector_flops=elements_of(worked), bytes_moved=bytes_in_and_out(kind) + in_place_lists(kind, "self"))


def optimizer_step(steps: int, *written: str) -> Formula:
    """A whole optimizer in one op: parameters, gradients and states are read, and all but the gradients written."""

    def price(kind: OpKind) -> OpCost:
        weights = [meta for meta, name in _named(kind) if name == "self"]
        moved = bytes_in_and_out(kind) + in_place_lists(kind, "self", *written)
        return OpCost(vector_flops=steps * elements_of(weights), bytes_moved=moved)

    return price


def list_kernels(kind: OpKind, cost: OpCost) -> tuple[Kernel, ...]:
    """As many launches as the list takes, alike in all but the remainder of a division."""
    sizes = [elements(meta) for meta, name in _named(kind) if name == "self"] or [elements(kind.inputs[0])]
    lists = -(-(len(kind.inputs) + len(kind.outputs)) // len(sizes))
    count = launch_count(sizes, lists)
    share = replace(cost, vector_flops=cost.vector_flops // count, bytes_moved=cost.bytes_moved // count)
    first = replace(share, bytes_moved=cost.bytes_moved - (count - 1) * share.bytes_moved)
    return (vector_kernel(kind, first), *[vector_kernel(kind, share)] * (count - 1))


def launch_count(sizes: Sequence[int], lists: int) -> int:
    """Launches of `multi_tensor_apply` over tensors with this many elements each."""
    most_tensors = _TENSORS[min(max(lists, 1), len(_TENSORS)) - 1]
    launches = blocks = tensors = 0
    for size in sizes:
        chunks = -(-size // _CHUNK)
        if not chunks:
            continue
        tensors += 1
        full, blocks = divmod(blocks + chunks, _BLOCKS)
        launches += full
        if full:
            tensors = 1 if blocks else 0
        if tensors == most_tensors and blocks:
            launches, blocks, tensors = launches + 1, 0, 0
    return max(1, launches + (blocks > 0))


def _named(kind: OpKind) -> list[tuple[TensorMeta, str]]:
    return list(zip(kind.inputs, kind.input_names, strict=False))


_optimizer = partial(Op, kernels=list_kernels)

OPS = registered(
    {
        "_fused_adam _fused_adamw": _optimizer(
            price=optimizer_step(_ADAM_STEPS, "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs")
        ),
        "_fused_sgd": _optimizer(price=optimizer_step(_SGD_STEPS, "momentum_buffer_list")),
        "_fused_adagrad": _optimizer(price=optimizer_step(_ADAM_STEPS, "state_sums")),
    }
)
CLASSES = {"pointwise_list": Op(price=pointwise_list, kernels=list_kernels)}  # an elementwise op on each of a list

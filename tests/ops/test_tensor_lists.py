"""Ops on lists of tensors: what they move, and how many launches they take on CUDA."""

from __future__ import annotations

import pytest

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.ops.table import kernels_of, price
from llm_perf_opt.ops.tensor_lists import launch_count

CHUNK = 65_536


def lists(name: str, sizes: list[int], *names: str, dtype: str = "float32") -> OpKind:
    """An op that writes into lists of tensors of these sizes, and returns nothing."""
    metas = tuple(TensorMeta((size,), dtype, "cuda") for _ in names for size in sizes)
    input_names = tuple(name for name in names for _ in sizes)
    return OpKind(name=name, inputs=metas, outputs=(), input_names=input_names, mutates=True)


@pytest.mark.parametrize(
    ("sizes", "lists_of", "launches"),
    [
        ([1], 1, 1),
        ([10] * 110, 1, 1),  # as many tensors as a launch of one list names
        ([10] * 111, 1, 2),
        ([10] * 36, 4, 1),
        ([10] * 37, 4, 2),
        ([320 * CHUNK], 1, 1),  # as many blocks as a launch has
        ([320 * CHUNK + 1], 1, 2),
        ([640 * CHUNK], 1, 2),
        ([319 * CHUNK, CHUNK, 5], 1, 2),
        ([0, 0, 7], 1, 1),
    ],
)
def test_a_list_takes_as_many_launches_as_its_blocks_and_tensors_need(
    sizes: list[int], lists_of: int, launches: int
) -> None:
    assert launch_count(sizes, lists_of) == launches


def test_an_op_in_place_reads_both_lists_and_writes_the_first() -> None:
    cost = price(lists("aten._foreach_add_.List", [100, 50], "self", "other"))
    assert cost is not None
    assert (cost.bytes_moved, cost.vector_flops) == (3 * 150 * 4, 150)


def test_fused_adamw_reads_four_lists_and_writes_three() -> None:
    kind = lists("aten._fused_adamw_.default", [1000], "self", "grads", "exp_avgs", "exp_avg_sqs", dtype="bfloat16")
    cost = price(kind)
    assert cost is not None
    assert cost.bytes_moved == 7 * 1000 * 2
    assert cost.flops == 0


def test_the_launches_of_a_list_move_what_the_op_moves() -> None:
    kind = lists("aten._foreach_mul_.Scalar", [640 * CHUNK, 3], "self")
    cost = price(kind)
    launched = kernels_of(kind)
    assert cost is not None and len(launched) == 3
    assert sum(kernel.bytes_moved for kernel in launched) == cost.bytes_moved

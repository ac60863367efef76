"""Ops without matrix work: what they do per element and what they move."""

from __future__ import annotations

import pytest

from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.ops.cost import OpCost
from llm_perf_opt.ops.table import price
from tests.costs.made_kinds import kind, tensor


@pytest.mark.parametrize(
    ("op", "vector_flops"),
    [
        (kind("aten.add.Tensor", {"self": tensor(4, 5), "other": tensor(5)}, tensor(4, 5)), 20),
        (kind("aten.softmax.int", {"self": tensor(4, 5)}, tensor(4, 5), arguments={"dim": -1}), 100),
        (
            kind(
                "aten.native_layer_norm.default",
                {"input": tensor(4, 5), "weight": tensor(5), "bias": tensor(5)},
                tensor(4, 5),
                tensor(4, 1),
                tensor(4, 1),
            ),
            160,
        ),
        (kind("aten.sum.dim_IntList", {"self": tensor(4, 5)}, tensor(4), arguments={"dim": [1]}), 20),
        (kind("aten.max.other", {"self": tensor(5), "other": tensor(4, 5)}, tensor(4, 5)), 20),
        (kind("aten.topk.default", {"self": tensor(3, 64)}, tensor(3, 2), tensor(3, 2, dtype="int64")), 3 * 64 * 6),
        (
            kind(
                "aten.max_pool2d.default",
                {"self": tensor(1, 2, 8, 8)},
                tensor(1, 2, 4, 4),
                arguments={"kernel_size": [2]},
            ),
            32 * 4,
        ),
        (kind("aten.upsample_bilinear2d.vec", {"input": tensor(1, 2, 4, 4)}, tensor(1, 2, 8, 8)), 8 * 128),
        (
            kind("aten.fft_fft.default", {"self": tensor(2, 8, dtype="complex64")}, tensor(2, 8, dtype="complex64")),
            5 * 2 * 8 * 3,
        ),
        (kind("aten.linalg_inv.default", {"A": tensor(2, 3, 3)}, tensor(2, 3, 3)), 2 * 2 * 27),
    ],
    ids=lambda op: op.name if isinstance(op, OpKind) else "",
)
def test_vector_work_per_element(op: OpKind, vector_flops: int) -> None:
    cost = price(op)
    assert cost is not None
    assert (cost.flops, cost.vector_flops) == (0, vector_flops)
    read_and_written = sum(4 * _values(meta.shape) * _scale(meta.dtype) for meta in (*op.inputs, *op.outputs))
    assert cost.bytes_moved == read_and_written


def _values(shape: tuple[int, ...]) -> int:
    return shape[0] * _values(shape[1:]) if shape else 1


def _scale(dtype: str) -> int:
    return {"float32": 1, "int64": 2, "complex64": 2}[dtype]


def test_a_view_is_free_and_a_reshape_that_copies_is_not() -> None:
    shapes = {"self": tensor(4, 6)}
    assert price(kind("aten.transpose.int", shapes, tensor(6, 4), output_aliases=(0,))) == OpCost()
    assert price(kind("aten.reshape.default", shapes, tensor(24), output_aliases=(0,))) == OpCost()
    assert price(kind("aten.reshape.default", shapes, tensor(24), output_aliases=(-1,))) == OpCost(bytes_moved=192)


def test_a_cast_reads_one_width_and_writes_another() -> None:
    cast = kind("aten.to.dtype", {"self": tensor(10)}, tensor(10, dtype="bfloat16"), output_aliases=(-1,))
    assert price(cast) == OpCost(bytes_moved=60)


def test_dropout_outside_training_does_nothing() -> None:
    shapes = {"input": tensor(10)}
    assert price(kind("aten.dropout.default", shapes, tensor(10), output_aliases=(0,))) == OpCost()


def test_an_in_place_op_reads_and_writes_its_target() -> None:
    add = kind(
        "aten.add_.Tensor", {"self": tensor(8), "other": tensor(8)}, tensor(8), output_aliases=(0,), mutates=True
    )
    assert price(add) == OpCost(vector_flops=8, bytes_moved=4 * 24)


def test_a_copy_does_not_read_what_it_overwrites() -> None:
    copy = kind(
        "aten.copy_.default", {"self": tensor(8), "src": tensor(8)}, tensor(8), output_aliases=(0,), mutates=True
    )
    fill = kind("aten.zero_.default", {"self": tensor(8)}, tensor(8), output_aliases=(0,), mutates=True)
    assert price(copy) == OpCost(bytes_moved=4 * 16)
    assert price(fill) == OpCost(bytes_moved=4 * 8)


def test_an_allocation_moves_nothing_and_a_fill_writes_once() -> None:
    assert price(kind("aten.empty.memory_format", {}, tensor(8))) == OpCost()
    assert price(kind("aten.zeros.default", {}, tensor(8))) == OpCost(bytes_moved=32)
    assert price(kind("aten.ones_like.default", {"self": tensor(8)}, tensor(8))) == OpCost(bytes_moved=32)


def test_an_embedding_reads_only_the_rows_it_looks_up() -> None:
    shapes = {"weight": tensor(100_000, 64), "indices": tensor(3, dtype="int64")}
    assert price(kind("aten.embedding.default", shapes, tensor(3, 64))) == OpCost(bytes_moved=24 + 2 * 4 * 3 * 64)


def test_a_bag_of_embeddings_reads_a_row_per_index() -> None:
    shapes = {"weight": tensor(1000, 64), "indices": tensor(6, dtype="int64"), "offsets": tensor(2, dtype="int64")}
    bag = price(kind("aten.embedding_bag.default", shapes, tensor(2, 64)))
    assert bag == OpCost(vector_flops=6 * 64, bytes_moved=4 * 6 * 64 + 8 * 6 + 8 * 2 + 4 * 2 * 64)


def test_a_scatter_in_place_touches_only_what_it_writes() -> None:
    shapes = {"self": tensor(1000, 8), "indices": tensor(5, dtype="int64"), "values": tensor(5, 8)}
    in_place = kind("aten.index_put_.default", shapes, tensor(1000, 8), output_aliases=(0,), mutates=True)
    fresh = kind("aten.index_put.default", shapes, tensor(1000, 8), output_aliases=(-1,))
    touched = 8 * 5 + 2 * 4 * 40
    assert price(in_place) == OpCost(bytes_moved=touched)
    assert price(fresh) == OpCost(bytes_moved=touched + 2 * 4 * 8000)


def test_an_accumulating_scatter_reads_its_target_too() -> None:
    shapes = {"self": tensor(1000, 8), "index": tensor(5, dtype="int64"), "source": tensor(5, 8)}
    add = kind("aten.index_add_.default", shapes, tensor(1000, 8), output_aliases=(0,), mutates=True)
    assert price(add) == OpCost(vector_flops=40, bytes_moved=8 * 5 + 3 * 4 * 40)


def test_a_scattered_scalar_counts_its_indices() -> None:
    scatter = kind(
        "aten.scatter_.value",
        {"self": tensor(10, 8), "index": tensor(10, 2, dtype="int64")},
        tensor(10, 8),
        output_aliases=(0,),
        mutates=True,
    )
    fill = kind(
        "aten.index_fill_.int_Scalar",
        {"self": tensor(10, 8), "index": tensor(3, dtype="int64")},
        tensor(10, 8),
        output_aliases=(0,),
        mutates=True,
        arguments={"dim": 0},
    )
    assert price(scatter) == OpCost(bytes_moved=8 * 20 + 4 * 20)
    assert price(fill) == OpCost(bytes_moved=8 * 3 + 4 * 24)

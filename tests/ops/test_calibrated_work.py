from __future__ import annotations

import math
from typing import Any

import pytest

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.ops.table import calibrated_work_of
from llm_perf_opt.ops.vector import inner_length
from tests.costs.made_kinds import kind, tensor


def half(*shape: int) -> TensorMeta:
    return tensor(*shape, dtype="bfloat16")


def fresh(name: str, inputs: dict[str, TensorMeta], *outputs: TensorMeta, **more: Any) -> OpKind:
    return kind(name, inputs, *outputs, output_aliases=(-1,) * len(outputs), **more)


def read(op: OpKind, scattered: frozenset[int] = frozenset()) -> list[tuple[str, str, dict[str, float]]]:
    works = calibrated_work_of(op, scattered)
    assert works is not None
    return [(work.family, work.dtype, dict(work.sizes)) for work in works]


def test_a_linear_map_is_a_matmul_and_its_bias_a_write() -> None:
    op = fresh(
        "aten.linear.default",
        {"input": half(2, 5, 1280), "weight": half(896, 1280), "bias": half(896)},
        half(2, 5, 896),
    )
    assert read(op) == [
        ("matmul", "bfloat16", {"rows": 10, "columns": 896, "depth": 1280}),
        ("fill", "bfloat16", {"elements": 8960}),
    ]


@pytest.mark.parametrize(("columns", "family"), [(64, "narrow_matmul"), (5120, "matmul"), (6848, "wide_matmul")])
def test_the_width_of_a_weight_decides_its_table(columns: int, family: str) -> None:
    op = fresh("aten.linear.default", {"input": half(3, 1280), "weight": half(columns, 1280)}, half(3, columns))
    assert [name for name, _, _ in read(op)] == [family]


def test_scores_of_attention_are_a_batch_of_matmuls() -> None:
    op = fresh("aten.matmul.default", {"self": half(1, 10, 7, 128), "other": half(1, 10, 128, 9)}, half(1, 10, 7, 9))
    assert read(op) == [("batched_matmul", "bfloat16", {"batch": 10, "rows": 7, "columns": 9, "depth": 128})]


def test_a_class_token_makes_attention_odd() -> None:
    tokens = half(1, 16, 257, 64)
    op = fresh("aten.scaled_dot_product_attention.default", {"query": tokens, "key": tokens, "value": tokens}, tokens)
    assert read(op) == [("odd_attention", "bfloat16", {"heads": 16, "tokens": pytest.approx(257)})]


@pytest.mark.parametrize("masked", [False, True])
def test_fused_attention_by_heads_and_tokens(masked: bool) -> None:
    inputs = {"query": half(2, 12, 196, 128), "key": half(2, 12, 64, 128), "value": half(2, 12, 64, 128)}
    if masked:
        inputs["attn_mask"] = half(2, 12, 196, 64)
    works = calibrated_work_of(fresh("aten.scaled_dot_product_attention.default", inputs, half(2, 12, 196, 128)))
    assert works is not None
    (work,) = works
    assert work.family == ("masked_attention" if masked else "attention")
    assert work.sizes == {"heads": 24, "tokens": pytest.approx(math.sqrt(196 * 64))}
    assert work.times == 2.0  # heads twice as deep as those measured


@pytest.mark.parametrize(
    ("kernel", "stride", "family"),
    [(1, 1, "pointwise_convolution"), (3, 2, "convolution"), (16, 16, "patch_convolution")],
)
def test_the_kernel_decides_the_kind_of_convolution(kernel: int, stride: int, family: str) -> None:
    op = fresh(
        "aten.conv2d.default",
        {"input": half(1, 3, 64, 64), "weight": half(32, 3, kernel, kernel)},
        half(1, 32, 4, 4),
        arguments={"stride": [stride, stride]},
    )
    assert read(op) == [(family, "bfloat16", {"positions": 16, "columns": 32, "depth": 3 * kernel**2})]


def test_sums_of_equal_and_of_unequal_shapes() -> None:
    same = fresh("aten.add.Tensor", {"self": half(4, 8), "other": half(4, 8)}, half(4, 8))
    row = fresh("aten.mul.Tensor", {"self": half(40, 80), "other": half(40, 1)}, half(40, 80))
    outer = fresh("aten.add.Tensor", {"self": half(3, 14, 1), "other": half(3, 1, 14)}, half(3, 14, 14))
    number = fresh("aten.mul.Tensor", {"self": half(4, 8)}, half(4, 8))
    assert read(same) == [("arithmetic", "bfloat16", {"elements": 32})]
    assert read(row) == [("broadcast", "bfloat16", {"elements": 3200, "inner": 80})]
    assert read(outer) == [("outer_broadcast", "bfloat16", {"elements": 588, "inner": 14})]
    assert read(number) == [("scaling", "bfloat16", {"elements": 32})]


@pytest.mark.parametrize(
    ("result", "operands", "expected"),
    [
        ((4, 8), [(4, 8), (4, 8)], 32),
        ((4, 8), [(4, 8), (8,)], 8),
        ((4, 8), [(4, 8), (4, 1)], 8),
        ((4, 8), [(4, 8), (1, 1)], 32),
        ((2, 3, 5, 7), [(2, 3, 5, 7), (1, 1, 5, 7)], 35),
        ((9, 14, 14), [(9, 14, 1), (9, 1, 14)], 14),
        ((), [()], 1),
    ],
)
def test_the_inner_loop_ends_where_an_operand_turns(
    result: tuple[int, ...], operands: list[tuple[int, ...]], expected: int
) -> None:
    assert inner_length(result, operands) == expected


def test_what_lies_scattered_takes_the_slower_way() -> None:
    rows = half(1, 4, 4, 6)
    add = fresh("aten.add.Tensor", {"self": rows, "other": rows}, rows)
    norm = fresh("aten.layer_norm.default", {"input": rows, "weight": half(6)}, rows)
    copy = fresh("aten.contiguous.default", {"self": rows}, rows)
    one, both = frozenset({0}), frozenset({0, 1})
    assert [family for family, _, _ in read(add, one)] == ["scattered_arithmetic"]
    assert [family for family, _, _ in read(add, both)] == ["arithmetic"]
    assert [family for family, _, _ in read(norm, one)] == ["layer_norm", "scattered_copy"]
    assert [family for family, _, _ in read(copy, one)] == ["scattered_copy"]


def test_a_cast_by_its_two_dtypes_and_whole_numbers_by_their_bytes() -> None:
    down = fresh("aten.to.dtype", {"self": tensor(10)}, half(10))
    ids = fresh("aten.add.Tensor", {"self": tensor(6, dtype="int64")}, tensor(6, dtype="int64"))
    assert read(down) == [("cast_to_bfloat16", "float32", {"elements": 10})]
    assert read(ids) == [("scaling", "float32", {"elements": 12})]


def test_a_composite_op_is_its_parts() -> None:
    left, right, out = half(14, 20, 64), half(14, 64, 14), half(14, 20, 14)
    clone = fresh("aten.clone.default", {"self": left}, left)
    matmul = fresh("aten.bmm.default", {"self": left, "mat2": right}, out)
    op = fresh("aten.einsum.default", {"a": left, "b": right}, out, parts=(clone, matmul))
    assert [family for family, _, _ in read(op)] == ["regrouping", "batched_matmul"]


def test_a_view_is_a_quarter_of_four() -> None:
    works = calibrated_work_of(kind("aten.transpose.int", {"self": half(4, 8)}, half(8, 4), output_aliases=(0,)))
    assert works is not None
    assert [(work.family, work.sizes["calls"] * work.times) for work in works] == [("view", 1.0)]


def test_an_op_that_nothing_describes_is_unknown_and_not_free() -> None:
    assert calibrated_work_of(fresh("vendor.fused.default", {"x": half(4)}, half(4))) is None


def test_an_op_without_a_reading_of_its_own_is_taken_by_its_bytes() -> None:
    op = fresh("aten.roll.default", {"self": tensor(100)}, tensor(100))
    assert read(op) == [("copy", "float32", {"elements": 100})]


def test_a_record_without_shapes_is_unknown_and_no_failure() -> None:
    """A profiler sees names and times only."""
    assert [
        calibrated_work_of(kind(f"aten.{name}.default", {})) for name in ("linear", "add", "layer_norm", "cat")
    ] == [None] * 4

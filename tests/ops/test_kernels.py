"""What an op launches on a device, worked out by hand."""

from __future__ import annotations

import pytest

from llm_perf_opt.ops.op import AccessPattern, Kernel, KernelKind
from llm_perf_opt.ops.table import kernels_of
from tests.costs.made_kinds import kind, tensor

X, W = tensor(3, 5, 8, dtype="bfloat16"), tensor(16, 8, dtype="bfloat16")
LINEAR = kind("aten.linear.default", {"input": X, "weight": W}, tensor(3, 5, 16, dtype="bfloat16"))
VIEW = kind("aten.transpose.int", {"self": X}, tensor(3, 8, 5, dtype="bfloat16"), output_aliases=(0,))
HEADS = tensor(2, 10, 6, 128, dtype="bfloat16")


def test_a_view_launches_nothing_and_a_matmul_one_kernel_with_its_rows_and_weights() -> None:
    assert kernels_of(VIEW) == ()
    (kernel,) = kernels_of(LINEAR)
    assert (kernel.kind, kernel.rows, kernel.weights, kernel.flops) == (KernelKind.MATMUL, 15, 128, 2 * 15 * 128)


def convolution(dtype: str, *, channels: int = 16, has_bias: bool = False, groups: int = 1) -> tuple[Kernel, ...]:
    """Filters of 2 x 2 over two pictures of 8 x 8, without overlap."""
    image, filters = tensor(2, channels, 8, 8, dtype=dtype), tensor(16, channels // groups, 2, 2, dtype=dtype)
    inputs = {"input": image, "weight": filters} | ({"bias": tensor(16, dtype=dtype)} if has_bias else {})
    arguments = {"stride": [2, 2], "groups": groups}
    return kernels_of(kind("aten.conv2d.default", inputs, tensor(2, 16, 4, 4, dtype=dtype), arguments=arguments))


def test_a_convolution_has_one_row_per_position() -> None:
    (kernel,) = convolution("float32", channels=3)
    assert (kernel.kind, kernel.rows, kernel.weights) == (KernelKind.MATMUL, 2 * 4 * 4, 16 * 3 * 2 * 2)


def test_a_convolution_in_16_bits_copies_picture_filters_and_result_and_adds_its_bias_apart() -> None:
    """Two bytes per value, each copy reads and writes: 2 x 16 x 8 x 8, 16 x 16 x 2 x 2 and 2 x 16 x 4 x 4 values."""
    before, filters, matmul, after, bias = convolution("bfloat16", has_bias=True)
    assert [one.bytes_moved for one in (before, filters, after, bias)] == [4 * 2048, 4 * 1024, 4 * 512, 4 * 512]
    assert [one.is_helper for one in (before, filters, matmul, after, bias)] == [True, True, False, True, True]
    assert matmul.pattern is None
    assert len(convolution("bfloat16")) == 4
    assert len(convolution("bfloat16", groups=16)) == 1  # depthwise


def test_three_colours_fill_no_16_bytes() -> None:
    matmul = convolution("bfloat16", channels=3)[2]
    assert matmul.pattern is AccessPattern.UNALIGNED_CHANNELS


@pytest.mark.parametrize(
    ("columns", "pattern"), [(64, None), (65, AccessPattern.UNALIGNED), (60, AccessPattern.UNALIGNED)]
)
def test_a_matmul_in_16_bits_wants_rows_of_eight_values(columns: int, pattern: AccessPattern | None) -> None:
    def matmul(dtype: str) -> Kernel:
        left, right = tensor(12, 8, dtype=dtype), tensor(8, columns, dtype=dtype)
        (kernel,) = kernels_of(kind("aten.mm.default", {"self": left, "mat2": right}, tensor(12, columns, dtype=dtype)))
        return kernel

    assert matmul("bfloat16").pattern is pattern
    assert matmul("float32").pattern is None


@pytest.mark.parametrize(
    ("length", "pattern"),
    [
        (1023, AccessPattern.SOFTMAX),  # in registers
        (2048, AccessPattern.SOFTMAX),  # rows begin at 16 bytes
        (2049, AccessPattern.LONG_SOFTMAX),
    ],
)
def test_a_long_row_of_softmax_that_begins_anywhere_is_read_value_by_value(length: int, pattern: AccessPattern) -> None:
    scores = tensor(4, length, dtype="bfloat16")
    (kernel,) = kernels_of(kind("aten.softmax.int", {"self": scores}, scores, arguments={"dim": -1}))
    assert kernel.pattern is pattern


def test_an_operand_that_is_broadcast_is_read_value_by_value() -> None:
    row = tensor(1, 1, 8, dtype="bfloat16")
    (plain,) = kernels_of(kind("aten.add.Tensor", {"self": X, "other": X}, X))
    (broadcast,) = kernels_of(kind("aten.add.Tensor", {"self": X, "other": row}, X))
    assert (plain.pattern, broadcast.pattern) == (AccessPattern.VECTORISED, AccessPattern.INDEXED)


def test_copies_that_a_matmul_of_stacks_makes_first_are_helpers() -> None:
    heads = tensor(2, 4, 6, 8, dtype="bfloat16")
    copy = kind("aten.clone.default", {"self": heads}, heads)
    out = tensor(2, 4, 6, 6, dtype="bfloat16")
    matmul = kind("aten.bmm.default", {"self": tensor(8, 6, 8), "mat2": tensor(8, 8, 6)}, tensor(8, 6, 6))
    inputs = {"self": heads, "other": tensor(2, 4, 8, 6, dtype="bfloat16")}
    launched = kernels_of(kind("aten.matmul.default", inputs, out, parts=(copy, copy, matmul)))
    assert [(one.kind, one.is_helper) for one in launched] == [
        (KernelKind.VECTOR, True), (KernelKind.VECTOR, True), (KernelKind.MATMUL, False),
    ]  # fmt: skip


def test_a_composite_op_launches_what_its_parts_launch() -> None:
    composite = kind("vendor.both.default", {"x": X}, X, parts=(VIEW, LINEAR, LINEAR))
    assert kernels_of(composite) == 2 * kernels_of(LINEAR)


def test_an_op_without_a_price_is_one_launch_that_moves_its_tensors() -> None:
    (kernel,) = kernels_of(kind("vendor.unknown.default", {"x": X}, X))
    assert (kernel.kind, kernel.flops, kernel.bytes_moved) == (KernelKind.VECTOR, 0, 2 * 2 * 3 * 5 * 8)


@pytest.mark.parametrize(("causal", "hidden"), [(False, 0), (True, 15)])
def test_a_causal_mask_hides_the_pairs_above_the_diagonal(causal: bool, hidden: int) -> None:
    """Of 6 x 6 pairs 15 lie above the diagonal; every pair costs 4 x 128 FLOPs in each of 2 x 10 heads."""
    attention = kind(
        "aten.scaled_dot_product_attention.default",
        {"query": HEADS, "key": HEADS, "value": HEADS},
        HEADS,
        arguments={"is_causal": True} if causal else {},
    )
    (kernel,) = kernels_of(attention)
    assert kernel.flops == 36 * 4 * 128 * 20
    assert kernel.skippable_flops == hidden * 4 * 128 * 20
    assert (kernel.kind, kernel.sequences, kernel.queries) == (KernelKind.ATTENTION, 2, 6)

"""What an op launches on a device, worked out by hand."""

from __future__ import annotations

import pytest

from llm_perf_opt.ops.op import KernelKind
from llm_perf_opt.ops.table import kernels_of
from tests.analyses.made_kinds import kind, tensor

X, W = tensor(3, 5, 8, dtype="bfloat16"), tensor(16, 8, dtype="bfloat16")
LINEAR = kind("aten.linear.default", {"input": X, "weight": W}, tensor(3, 5, 16, dtype="bfloat16"))
VIEW = kind("aten.transpose.int", {"self": X}, tensor(3, 8, 5, dtype="bfloat16"), output_aliases=(0,))
HEADS = tensor(2, 10, 6, 128, dtype="bfloat16")


def test_a_view_launches_nothing_and_a_product_one_kernel_with_its_rows_and_weights() -> None:
    assert kernels_of(VIEW) == ()
    (kernel,) = kernels_of(LINEAR)
    assert (kernel.kind, kernel.rows, kernel.weights, kernel.flops) == (KernelKind.MATMUL, 15, 128, 2 * 15 * 128)


def test_a_convolution_has_one_row_per_position() -> None:
    image, filters = tensor(2, 3, 8, 8, dtype="bfloat16"), tensor(16, 3, 2, 2, dtype="bfloat16")
    arguments = {"stride": [2, 2]}
    out = tensor(2, 16, 4, 4, dtype="bfloat16")
    (kernel,) = kernels_of(kind("aten.conv2d.default", {"input": image, "weight": filters}, out, arguments=arguments))
    assert (kernel.kind, kernel.rows, kernel.weights) == (KernelKind.MATMUL, 2 * 4 * 4, 16 * 3 * 2 * 2)


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

"""Matmuls, by numbers worked out by hand."""

from __future__ import annotations

import pytest

from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.ops.cost import OpCost
from llm_perf_opt.ops.table import price
from tests.costs.made_kinds import kind, tensor


def test_a_matmul_is_two_flops_per_multiply_add_and_moves_its_three_matrices() -> None:
    mm = kind("aten.mm.default", {"self": tensor(2, 3), "mat2": tensor(3, 5)}, tensor(2, 5))
    assert price(mm) == OpCost(flops=2 * 2 * 3 * 5, bytes_moved=4 * (6 + 15 + 10))


def test_a_linear_layer_reads_its_weight_and_adds_its_bias_as_vector_work() -> None:
    linear = kind(
        "aten.linear.default",
        {"input": tensor(2, 7, 3, dtype="bfloat16"), "weight": tensor(5, 3, dtype="bfloat16"), "bias": tensor(5)},
        tensor(2, 7, 5, dtype="bfloat16"),
    )
    assert price(linear) == OpCost(flops=2 * 14 * 3 * 5, vector_flops=70, bytes_moved=2 * 42 + 2 * 15 + 4 * 5 + 2 * 70)


@pytest.mark.parametrize(
    ("op", "flops"),
    [
        (kind("aten.bmm.default", {"self": tensor(4, 2, 3), "mat2": tensor(4, 3, 5)}, tensor(4, 2, 5)), 240),
        (kind("aten.matmul.default", {"self": tensor(7, 1, 2, 3), "other": tensor(4, 3, 5)}, tensor(7, 4, 2, 5)), 1680),
        (kind("aten.matmul.default", {"self": tensor(3), "other": tensor(4, 3, 5)}, tensor(4, 5)), 120),
        (kind("aten.matmul.default", {"self": tensor(4, 2, 3), "other": tensor(3)}, tensor(4, 2)), 48),
        (kind("aten.dot.default", {"self": tensor(9), "tensor": tensor(9)}, tensor()), 18),
        (kind("aten.mv.default", {"self": tensor(4, 3), "vec": tensor(3)}, tensor(4)), 24),
        (
            kind("aten.addmm.default", {"self": tensor(5), "mat1": tensor(2, 3), "mat2": tensor(3, 5)}, tensor(2, 5)),
            60,
        ),
        (
            kind(
                "aten.addbmm.default",
                {"self": tensor(2, 5), "batch1": tensor(4, 2, 3), "batch2": tensor(4, 3, 5)},
                tensor(2, 5),
            ),
            240,
        ),
        (
            kind(
                "aten.baddbmm_.default",
                {"self": tensor(4, 2, 5), "batch1": tensor(4, 2, 3), "batch2": tensor(4, 3, 5)},
                tensor(4, 2, 5),
                output_aliases=(0,),
                mutates=True,
            ),
            240,
        ),
        (
            kind(
                "aten.tensordot.default",
                {"self": tensor(2, 3, 4), "other": tensor(4, 3, 5)},
                tensor(2, 5),
                arguments={"dims_self": [1, 2], "dims_other": [1, 0]},
            ),
            2 * 2 * 5 * 12,
        ),
        (
            kind(
                "aten.bilinear.default",
                {"input1": tensor(7, 2), "input2": tensor(7, 3), "weight": tensor(5, 2, 3)},
                tensor(7, 5),
            ),
            2 * 7 * 5 * 2 * 3 + 2 * 7 * 5 * 3,
        ),
        (
            kind("aten.linalg_vecdot.default", {"x": tensor(4, 3), "y": tensor(4, 3)}, tensor(3), arguments={"dim": 0}),
            24,
        ),
    ],
    ids=lambda op: op.name if isinstance(op, OpKind) else "",
)
def test_matmuls_of_every_shape(op: OpKind, flops: int) -> None:
    cost = price(op)
    assert cost is not None
    assert cost.flops == flops


@pytest.mark.parametrize(
    ("left", "right", "output"),
    [
        ((10, 3), (4, 3, 5), (10, 5)),  # rows sorted by group
        ((4, 10, 3), (3, 5), (10, 5)),  # columns sorted by group
        ((4, 10, 3), (4, 3, 5), (4, 10, 5)),  # a plain batch
        ((10, 3), (3, 5), (4, 10, 5)),  # the summed dimension sorted by group
    ],
)
def test_a_grouped_matmul_does_not_depend_on_how_rows_are_spread(
    left: tuple[int, ...], right: tuple[int, ...], output: tuple[int, ...]
) -> None:
    groups = 4 if (len(left), len(right)) == (3, 3) else 1
    for name in ("aten._grouped_mm.default", "transformers.grouped_mm_fallback.default"):
        cost = price(kind(name, {"self": tensor(*left), "mat2": tensor(*right)}, tensor(*output)))
        assert cost is not None
        assert cost.flops == groups * 2 * 10 * 3 * 5


def test_without_input_names_the_position_tells_the_operand() -> None:
    named = kind("aten.addmm.default", {"self": tensor(5), "mat1": tensor(2, 3), "mat2": tensor(3, 5)}, tensor(2, 5))
    unnamed = OpKind(name=named.name, inputs=named.inputs, outputs=named.outputs)
    assert price(unnamed) == price(named)


def test_a_distance_matrix_of_many_points_is_a_matmul_and_of_few_is_not() -> None:
    many = price(kind("aten.cdist.default", {"x1": tensor(100, 8), "x2": tensor(50, 8)}, tensor(100, 50)))
    few = price(kind("aten.cdist.default", {"x1": tensor(10, 8), "x2": tensor(5, 8)}, tensor(10, 5)))
    city = price(
        kind("aten.cdist.default", {"x1": tensor(100, 8), "x2": tensor(50, 8)}, tensor(100, 50), arguments={"p": 1.0})
    )
    assert (many and many.flops) == 2 * 100 * 50 * 8
    assert few is not None and city is not None
    assert (few.flops, few.vector_flops) == (0, 3 * 10 * 5 * 8)
    assert (city.flops, city.vector_flops) == (0, 3 * 100 * 50 * 8)


def test_einsum_multiplies_without_a_summed_index_and_contracts_with_one() -> None:
    def einsum(equation: str, *shapes: tuple[int, ...], output: tuple[int, ...]) -> OpCost | None:
        return price(
            OpKind(
                name="aten.einsum.default",
                inputs=tuple(tensor(*shape) for shape in shapes),
                outputs=(tensor(*output),),
                arguments={"equation": equation},
            )
        )

    outer = einsum("i,j->ij", (3,), (5,), output=(3, 5))
    matmul = einsum("...ik, ...jk -> ...ij", (7, 3, 4), (7, 5, 4), output=(7, 3, 5))
    chain = einsum("ab,bc,cd->ad", (2, 3), (3, 4), (4, 5), output=(2, 5))
    assert outer is not None and matmul is not None and chain is not None
    assert (outer.flops, outer.vector_flops) == (0, 15)
    assert matmul.flops == 2 * 7 * 3 * 5 * 4
    assert chain.flops == 2 * 2 * 3 * 4 + 2 * 2 * 4 * 5
    assert einsum("k->", (6,), output=()) == OpCost(vector_flops=6, bytes_moved=28)


def test_einsum_follows_the_path_it_was_given() -> None:
    cost = price(
        OpKind(
            name="aten.einsum.default",
            inputs=(tensor(2, 3), tensor(3, 4), tensor(4, 5)),
            outputs=(tensor(2, 5),),
            arguments={"equation": "ab,bc,cd->ad", "path": [1, 2, 0, 1]},
        )
    )
    assert cost is not None
    assert cost.flops == 2 * 3 * 4 * 5 + 2 * 2 * 3 * 5

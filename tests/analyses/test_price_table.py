"""The table of prices: what is in it, what is not, and what an unknown op may hide."""

from __future__ import annotations

import math
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.analyses.pricing import OpCost, flops_bound, price
from llm_perf_opt.analyses.pricing.memory import free
from llm_perf_opt.analyses.pricing.packet import packet_of
from llm_perf_opt.analyses.pricing.price import formula_table, merge_formulas
from llm_perf_opt.callgraph.records import OpKind
from tests.analyses.made_kinds import kind, tensor

SCRIPT = Path(__file__).parents[2] / "scripts" / "classify_aten_ops.py"
sizes = st.integers(1, 40)


@pytest.mark.parametrize(
    ("name", "packet"),
    [
        ("aten.linear.default", "aten.linear"),
        ("aten.add_.Tensor", "aten.add"),
        ("aten.__and__.Tensor", "aten.__and__"),
        ("aten._softmax.default", "aten._softmax"),
        ("flex_attention", "flex_attention"),
        ("higher_order.flex_attention", "flex_attention"),
    ],
)
def test_overloads_and_in_place_forms_share_a_price(name: str, packet: str) -> None:
    assert packet_of(name) == packet


def test_an_op_with_two_prices_is_refused() -> None:
    with pytest.raises(ValueError, match=r"aten\.mm"):
        merge_formulas({"aten.mm": free}, {"aten.mm": free, "aten.bmm": free})


def test_an_unknown_op_has_no_price() -> None:
    assert price(kind("vendor.fused_thing.default", {"x": tensor(4, 4)}, tensor(4, 4))) is None


@pytest.mark.parametrize(
    "op",
    [
        kind("aten.max_pool2d.default", {"self": tensor(1, 2, 8, 8)}, tensor(1, 2, 4, 4)),  # no kernel_size
        kind("aten.mm.default", {}, tensor(2, 2)),  # no operands
        kind("aten.linalg_inv.default", {"A": tensor(3)}, tensor(3)),  # not a matrix
        kind("aten.tensordot.default", {"self": tensor(3), "other": tensor(3)}, tensor(), arguments={"dims_self": 1}),
        kind("aten.einsum.default", {"a": tensor(3, 3)}, tensor(3), arguments={"equation": "i->i"}),
    ],
    ids=lambda op: op.name,
)
def test_a_record_that_its_formula_cannot_read_has_no_price(op: OpKind) -> None:
    assert price(op) is None


def test_a_composite_op_costs_what_its_parts_cost() -> None:
    mm = kind("aten.mm.default", {"self": tensor(2, 3), "mat2": tensor(3, 5)}, tensor(2, 5))
    relu = kind("aten.relu.default", {"self": tensor(2, 5)}, tensor(2, 5))
    whole = kind("vendor.block.default", {"x": tensor(2, 3)}, tensor(2, 5), parts=(mm, relu))
    assert price(whole) == OpCost(flops=60, vector_flops=10, bytes_moved=4 * (6 + 15 + 10) + 4 * 20)


def test_one_unknown_part_makes_the_whole_unknown() -> None:
    mm = kind("aten.mm.default", {"self": tensor(2, 3), "mat2": tensor(3, 5)}, tensor(2, 5))
    unknown = kind("vendor.other.default", {"x": tensor(2, 5)}, tensor(2, 5))
    assert price(kind("vendor.block.default", {"x": tensor(2, 3)}, tensor(2, 5), parts=(mm, unknown))) is None


@given(sizes, sizes, sizes)
def test_the_bound_of_an_unknown_op_is_exact_for_a_matrix_product(rows: int, inner: int, columns: int) -> None:
    op = kind("vendor.mm.default", {"a": tensor(rows, inner), "b": tensor(inner, columns)}, tensor(rows, columns))
    assert flops_bound(op) == 2 * rows * inner * columns


@given(sizes, sizes, sizes, sizes)
def test_the_bound_of_an_unknown_op_is_above_a_batched_product(b: int, rows: int, inner: int, columns: int) -> None:
    op = kind(
        "vendor.bmm.default", {"a": tensor(b, rows, inner), "b": tensor(b, inner, columns)}, tensor(b, rows, columns)
    )
    truth = 2 * b * rows * inner * columns
    assert truth <= flops_bound(op) <= math.ceil(truth * math.sqrt(b)) + 2


def test_the_bound_with_fewer_tensors() -> None:
    assert flops_bound(kind("vendor.gram.default", {"a": tensor(5, 3)}, tensor(5, 5))) == 2 * 75
    assert flops_bound(kind("vendor.write.default", {"a": tensor(4, 4), "b": tensor(4, 4)})) == 2 * 64
    assert flops_bound(kind("vendor.make.default", {}, tensor(9))) == 2 * 3
    assert flops_bound(kind("vendor.nothing.default", {})) == 0


def test_pricing_needs_no_torch() -> None:
    code = "import sys; from llm_perf_opt.analyses.pricing.price import formula_table as t; t(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "numpy"}.isdisjoint(done.stdout.split())


def test_the_table_of_classes_is_what_the_script_makes() -> None:
    script = runpy.run_path(str(SCRIPT))
    assert script["TABLE"].read_text(encoding="utf-8") == script["rendered"](script["classified"]())


def test_no_priced_aten_op_is_misspelt() -> None:
    torch = pytest.importorskip("torch")
    known = {packet_of(name.replace("::", ".")) for name in torch._C._dispatch_get_all_op_names()}
    assert [packet for packet in formula_table() if packet.startswith("aten.") and packet not in known] == []

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

from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.source_figures import family_of
from llm_perf_opt.ops.cost import OpCost, packet_of
from llm_perf_opt.ops.memory import free
from llm_perf_opt.ops.op import Op, joined, registered
from llm_perf_opt.ops.table import op_table, price, registered_ops
from llm_perf_opt.ops.unpriced import flops_bound
from tests.costs.made_kinds import kind, tensor

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


def test_an_op_that_is_registered_twice_is_refused() -> None:
    op = Op(price=free)
    with pytest.raises(ValueError, match=r"aten\.mm"):
        joined([{"aten.mm": op}, {"aten.mm": op, "aten.bmm": op}])
    with pytest.raises(ValueError, match=r"aten\.mm"):
        registered({"bmm mm": op, "mm": op})


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
def test_the_bound_of_an_unknown_op_is_exact_for_a_matmul(rows: int, inner: int, columns: int) -> None:
    op = kind("vendor.mm.default", {"a": tensor(rows, inner), "b": tensor(inner, columns)}, tensor(rows, columns))
    assert flops_bound(op) == 2 * rows * inner * columns


@given(sizes, sizes, sizes, sizes)
def test_the_bound_of_an_unknown_op_is_above_a_batched_matmul(b: int, rows: int, inner: int, columns: int) -> None:
    op = kind(
        "vendor.bmm.default", {"a": tensor(b, rows, inner), "b": tensor(b, inner, columns)}, tensor(b, rows, columns)
    )
    truth = 2 * b * rows * inner * columns
    assert truth <= flops_bound(op) <= math.ceil(truth * math.sqrt(b)) + 2


def test_the_bound_with_fewer_tensors() -> None:
    assert flops_bound(kind("vendor.gram.default", {"a": tensor(5, 3)}, tensor(5, 5))) == 2 * 75
    assert flops_bound(kind("vendor.write.default", {"a": tensor(4, 4), "b": tensor(4, 4)})) == 2 * 64
    assert flops_bound(kind("vendor.make.default", {}, tensor(9))) == 2 * 3
    assert flops_bound(kind("vendor.nothing.default", {})) is None


@given(sizes, sizes, sizes, sizes, sizes, sizes)
def test_the_bound_of_an_unknown_op_is_above_attention(
    batch: int, groups: int, queries: int, keys: int, width: int, value_width: int
) -> None:
    """With `groups` heads of queries for each head of keys, in both orders of heads and tokens, and with a mask."""
    heads = 2 * groups
    truth = 2 * batch * heads * queries * keys * (width + value_width)
    shapes = (heads, queries, width), (2, keys, width), (2, keys, value_width), (heads, queries, value_width)
    query, key, value, output = (tensor(batch, *shape) for shape in shapes)
    mask = tensor(batch, 1, queries, keys)
    heads_first = {"q": query, "k": key, "v": value}
    assert truth <= flops_bound(kind("vendor.attention.default", heads_first, output))
    assert truth <= flops_bound(kind("vendor.attention.default", {**heads_first, "mask": mask}, output))
    query, key, value, output = (tensor(batch, tokens, count, size) for count, tokens, size in shapes)
    assert truth <= flops_bound(kind("vendor.attention.default", {"q": query, "k": key, "v": value}, output))


def test_the_bound_of_attention_of_a_usual_size_is_exact_and_of_one_step_not_far_off() -> None:
    """16 heads of width 64 on 4,096 tokens; of one step the matmul of keys and values would be more."""
    tokens = tensor(1, 4096, 16, 64)
    whole = kind("vendor.attention.default", {"q": tokens, "k": tokens, "v": tokens}, tokens)
    assert flops_bound(whole) == 4 * 16 * 4096 * 4096 * 64 == 68_719_476_736
    one = tensor(1, 1, 16, 64)
    step = kind("vendor.attention.default", {"q": one, "k": tokens, "v": tokens}, one)
    assert 4 * 16 * 4096 * 64 <= flops_bound(step) <= 16 * (4 * 16 * 4096 * 64)


def test_the_bound_knows_attention_with_packed_operands_and_with_pages() -> None:
    truth = 4 * 16 * 4096 * 4096 * 64
    output = tensor(1, 4096, 16, 64)
    assert truth <= flops_bound(kind("vendor.packed.default", {"qkv": tensor(1, 4096, 3, 16, 64)}, output))
    assert truth <= flops_bound(kind("vendor.flat.default", {"qkv": tensor(1, 4096, 3 * 16 * 64)}, output))
    packed = {"q": output, "kv": tensor(1, 4096, 2, 16, 64)}
    assert truth <= flops_bound(kind("vendor.kv_packed.default", packed, output))
    pages = tensor(256, 16, 16, 64)
    table = tensor(1, 256, dtype="int32")
    paged = kind("vendor.paged.default", {"q": output, "k": pages, "v": pages, "table": table}, output)
    assert truth <= flops_bound(paged)


@given(sizes, sizes, sizes, sizes, sizes, sizes)
def test_the_bound_of_an_unknown_op_is_above_a_convolution(
    batch: int, groups: int, taken: int, made: int, size: int, kernel: int
) -> None:
    kernels = tensor(groups * made, taken, kernel, kernel)
    output = tensor(batch, groups * made, size, size)
    image = tensor(batch, groups * taken, size + kernel - 1, size + kernel - 1)
    truth = 2 * batch * groups * made * size * size * taken * kernel * kernel
    assert truth <= flops_bound(kind("vendor.conv.default", {"x": image, "w": kernels}, output))
    back = kind("vendor.conv_transpose.default", {"x": output, "w": kernels}, image)
    assert truth <= flops_bound(back)


@given(sizes, sizes, sizes)
def test_the_bound_of_an_unknown_op_is_above_a_gated_mlp_and_a_recurrent_layer(
    rows: int, width: int, inner: int
) -> None:
    x, down = tensor(rows, width), tensor(width, inner)
    gate, up = tensor(inner, width), tensor(inner, width)
    mlp = kind("vendor.mlp.default", {"x": x, "gate": gate, "up": up, "down": down}, tensor(rows, width))
    assert 3 * 2 * rows * width * inner <= flops_bound(mlp)
    weights = {"w": tensor(4 * inner, width), "r": tensor(4 * inner, inner), "b": tensor(4 * inner)}
    lstm = kind("vendor.lstm.default", {"x": tensor(1, rows, width), **weights}, tensor(1, rows, inner))
    assert 2 * rows * 4 * inner * (width + inner) <= flops_bound(lstm)


def test_weights_of_four_bits_count_one_by_one_however_they_are_packed() -> None:
    """Eight of them in an int32: 16 x 64 times 64 x 32."""
    packed = {"x": tensor(16, 64), "w": tensor(8, 32, dtype="int32")}
    assert flops_bound(kind("vendor.int4_mm.default", packed, tensor(16, 32))) == 2 * 16 * 64 * 32


def test_pricing_needs_no_torch() -> None:
    code = "import sys; from llm_perf_opt.ops.table import op_table as t; t(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "numpy"}.isdisjoint(done.stdout.split())


def test_the_table_of_classes_is_what_the_script_makes() -> None:
    script = runpy.run_path(str(SCRIPT))
    assert script["TABLE"].read_text(encoding="utf-8") == script["rendered"](script["classified"]())


def test_no_priced_aten_op_is_misspelt() -> None:
    torch = pytest.importorskip("torch")
    known = {packet_of(name.replace("::", ".")) for name in torch._C._dispatch_get_all_op_names()}
    assert [packet for packet in op_table() if packet.startswith("aten.") and packet not in known] == []


def test_a_registered_family_is_the_one_that_the_name_shows() -> None:
    """Other sources list an op by its name alone, and are compared with ours family by family."""
    apart = {name for name, op in registered_ops().items() if op.family is not family_of(name)}
    assert apart == set()


def test_every_op_that_is_recorded_whole_or_without_scratch_is_one_of_torch() -> None:
    torch = pytest.importorskip("torch")
    named = [name for name, op in op_table().items() if op.is_recorded_whole or not op.has_scratch]
    assert named and [name for name in named if not hasattr(torch.ops.aten, name.removeprefix("aten."))] == []

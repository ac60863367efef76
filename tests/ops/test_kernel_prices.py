"""Convolution, attention and recurrent layers, by numbers worked out by hand."""

from __future__ import annotations

import pytest

from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.ops.cost import OpCost
from llm_perf_opt.ops.table import price
from tests.costs.made_kinds import kind, tensor


def flops_of(op: OpKind) -> int:
    cost = price(op)
    assert cost is not None
    return cost.flops


def test_a_patch_embedding() -> None:
    """3 channels, kernel 16: each of the 768 x 64 x 64 outputs takes 768 multiply-adds."""
    conv = kind(
        "aten.conv2d.default",
        {"input": tensor(1, 3, 1024, 1024), "weight": tensor(768, 3, 16, 16), "bias": tensor(768)},
        tensor(1, 768, 64, 64),
        arguments={"stride": [16, 16]},
    )
    outputs = 768 * 64 * 64
    assert price(conv) == OpCost(
        flops=2 * outputs * 768,
        vector_flops=outputs,
        bytes_moved=4 * (3 * 1024 * 1024 + 768 * 768 + 768 + outputs),
    )


def test_groups_divide_the_work() -> None:
    def conv(groups: int) -> int:
        shapes = {"input": tensor(2, 8, 10), "weight": tensor(8, 8 // groups, 3)}
        return flops_of(kind("aten.conv1d.default", shapes, tensor(2, 8, 8), arguments={"groups": groups}))

    assert conv(1) == 2 * (2 * 8 * 8) * (8 * 3)
    assert conv(8) == conv(1) // 8


def test_a_transposed_convolution_is_counted_from_its_input() -> None:
    shapes = {"input": tensor(1, 4, 5, 5), "weight": tensor(4, 6, 2, 2)}
    by_name = kind("aten.conv_transpose2d.input", shapes, tensor(1, 6, 10, 10), arguments={"stride": [2, 2]})
    by_flag = kind("aten.convolution.default", shapes, tensor(1, 6, 10, 10), arguments={"transposed": True})
    assert flops_of(by_name) == flops_of(by_flag) == 2 * (4 * 5 * 5) * (6 * 2 * 2)


@pytest.mark.parametrize("spatial", [(10,), (10, 9), (10, 9, 8)])
def test_an_unbatched_convolution_costs_what_one_sample_does(spatial: tuple[int, ...]) -> None:
    rank = len(spatial)
    weight = tensor(6, 3, *(1,) * rank)
    name = f"aten.conv{rank}d.default"
    alone = kind(name, {"input": tensor(3, *spatial), "weight": weight}, tensor(6, *spatial))
    batch = kind(name, {"input": tensor(1, 3, *spatial), "weight": weight}, tensor(1, 6, *spatial))
    assert flops_of(alone) == flops_of(batch) > 0


def test_time_first_convolution() -> None:
    shapes = {"self": tensor(12, 2, 3), "weight": tensor(5, 3, 7), "bias": tensor(7)}
    assert flops_of(kind("aten.conv_tbc.default", shapes, tensor(8, 2, 7))) == 2 * (8 * 2 * 7) * (5 * 3)


def attention(name: str, query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]) -> OpKind:
    shapes = {"query": tensor(*query), "key": tensor(*key), "value": tensor(*value)}
    return kind(name, shapes, tensor(*query[:-1], value[-1]), arguments={"is_causal": True})


def test_attention_counts_every_pair_and_stores_no_scores() -> None:
    op = attention("aten.scaled_dot_product_attention.default", (2, 4, 10, 16), (2, 4, 30, 16), (2, 4, 30, 8))
    assert price(op) == OpCost(
        flops=2 * (2 * 4 * 10 * 30) * (16 + 8),
        vector_flops=6 * (2 * 4 * 10 * 30),
        bytes_moved=4 * (2 * 4 * 10 * 16 + 2 * 4 * 30 * 16 + 2 * 4 * 30 * 8 + 2 * 4 * 10 * 8),
    )


@pytest.mark.parametrize(
    "name", ["flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention"]
)
def test_every_backend_costs_the_same(name: str) -> None:
    whole = attention("aten.scaled_dot_product_attention.default", (2, 4, 10, 16), (2, 4, 30, 16), (2, 4, 30, 16))
    backend = attention(f"aten._scaled_dot_product_{name}.default", (2, 4, 10, 16), (2, 4, 30, 16), (2, 4, 30, 16))
    flexible = attention("flex_attention", (2, 4, 10, 16), (2, 4, 30, 16), (2, 4, 30, 16))
    assert flops_of(whole) == flops_of(backend) == flops_of(flexible) == 4 * (2 * 4 * 10 * 30) * 16


def test_grouped_heads_share_memory_not_work() -> None:
    name = "aten.scaled_dot_product_attention.default"
    grouped = price(attention(name, (1, 8, 10, 16), (1, 2, 10, 16), (1, 2, 10, 16)))
    full = price(attention(name, (1, 8, 10, 16), (1, 8, 10, 16), (1, 8, 10, 16)))
    assert grouped is not None and full is not None
    assert grouped.flops == full.flops
    assert grouped.bytes_moved == full.bytes_moved - 4 * 2 * (6 * 10 * 16)


def test_packed_sequences_meet_the_longest_one() -> None:
    shapes = {"query": tensor(30, 4, 16), "key": tensor(30, 4, 16), "value": tensor(30, 4, 16), "cum_seq_k": tensor(4)}
    packed = kind("aten._flash_attention_forward.default", shapes, tensor(30, 4, 16), arguments={"max_k": 10})
    assert flops_of(packed) == 4 * (30 * 4 * 10) * 16


def test_multi_head_attention_is_projections_and_attention() -> None:
    x = tensor(2, 10, 32)
    op = kind(
        "aten._native_multi_head_attention.default",
        {"query": x, "key": x, "value": x, "qkv_weight": tensor(96, 32), "proj_weight": tensor(32, 32)},
        x,
        arguments={"embed_dim": 32, "num_head": 4},
    )
    assert flops_of(op) == 2 * (2 * 10) * 32 * (4 * 32) + 4 * (2 * 10 * 10) * 32


def test_a_recurrent_layer_meets_every_matrix_once_per_step() -> None:
    """Two directions of one LSTM layer: input 8, hidden 16, so gates of 64 rows."""
    params = (tensor(64, 8), tensor(64, 16), tensor(64), tensor(64)) * 2
    op = OpKind(
        name="aten.lstm.input",
        inputs=(tensor(5, 3, 8), tensor(2, 3, 16), tensor(2, 3, 16), *params),
        input_names=("input", "hx", "hx", *("params",) * 8),
        outputs=(tensor(5, 3, 32), tensor(2, 3, 16), tensor(2, 3, 16)),
    )
    assert flops_of(op) == 2 * (5 * 3) * 2 * (64 * 8 + 64 * 16)
    assert price(OpKind(name=op.name, inputs=op.inputs, outputs=op.outputs)) is None

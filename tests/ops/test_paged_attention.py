"""Attention of vLLM by its facts: hand-worked numbers, and torch's count of the same computation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.ops.kernel_shape import AttentionShape, MatmulShape
from llm_perf_opt.ops.table import bytes_read, kernels_of, price

ATTENTION = "vllm.unified_attention_with_output.default"
LATENT = "vllm.unified_mla_attention_with_output.default"


def meta(*shape: int, dtype: str = "bfloat16") -> TensorMeta:
    return TensorMeta(shape, dtype, "cuda:0")


def attention(sequences: int, new: int, before: int, *, cache: str = "bfloat16", **facts: Any) -> OpKind:
    """8 heads over 2 key heads of width 64."""
    rows, keys = sequences * new, before + new
    output = meta(rows, 8, 64)
    return OpKind(
        name=ATTENTION,
        inputs=(
            *(meta(rows, 8, 64), meta(rows, 2, 64), meta(rows, 2, 64), output),
            meta(sequences, keys, 2, 128, dtype=cache),
        ),
        outputs=(output,),
        input_names=("query", "key", "value", "output", "kv_cache"),
        output_aliases=(3,),
        mutates=True,
        arguments={
            "sequences": sequences,
            "new_tokens": new,
            "cached_tokens": before,
            "is_causal": True,
            "heads": 8,
            "key_heads": 2,
            "width": 64,
            "value_width": 64,
            **facts,
        },
    )


def latent(sequences: int, new: int, before: int) -> OpKind:
    """4 heads, latent rank 32, plain 16, rotary 8, value 24."""
    rows, keys = sequences * new, before + new
    output = meta(rows, 4 * 24)
    return OpKind(
        name=LATENT,
        inputs=(
            *(meta(rows, 4, 24), meta(rows, 32), meta(rows, 1, 8), output),
            *(meta(sequences, keys, 1, 40), meta(4 * 40, 32)),
        ),
        outputs=(output,),
        input_names=("q", "kv_c_normed", "k_pe", "output", "kv_cache", "kv_b_proj"),
        output_aliases=(3,),
        mutates=True,
        arguments={
            "sequences": sequences,
            "new_tokens": new,
            "cached_tokens": before,
            "heads": 4,
            "latent_rank": 32,
            "plain_width": 16,
            "rotary_width": 8,
            "value_width": 24,
        },
    )


def counted(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        run()
    return counter.get_total_flops()


def priced(kind: OpKind) -> tuple[int, int]:
    cost = price(kind)
    assert cost is not None
    return cost.flops, cost.bytes_moved


def test_a_decode_step_reads_the_cache_once_by_hand() -> None:
    flops, moved = priced(attention(3, 1, 99))
    assert flops == 3 * 100 * 8 * 2 * (64 + 64)
    assert moved == 2 * (3 * 8 * 64) * 2 + 3 * 100 * 2 * 128 * 2  # queries, results; keys and values
    assert priced(attention(3, 1, 99, cache="float8_e4m3fn"))[1] == 2 * (3 * 8 * 64) * 2 + 3 * 100 * 2 * 128


@pytest.mark.parametrize(("sequences", "new", "before"), [(1, 32, 0), (2, 16, 0), (3, 1, 99), (2, 8, 24)])
def test_attention_is_what_torch_counts_for_the_same_matmuls(sequences: int, new: int, before: int) -> None:
    def run() -> None:
        query = torch.empty(sequences * 8, new, 64)
        key = torch.empty(sequences * 8, before + new, 64)
        torch.bmm(torch.bmm(query, key.transpose(1, 2)), key)

    assert priced(attention(sequences, new, before))[0] == counted(run)


def test_a_window_limits_the_keys_and_the_mask_hides_pairs() -> None:
    whole, windowed = attention(1, 1, 99), attention(1, 1, 99, window=10)
    assert priced(windowed)[0] * 10 == priced(whole)[0]
    (kernel,) = kernels_of(attention(1, 4, 2))
    assert kernel.flops - kernel.skippable_flops == (3 + 4 + 5 + 6) * 8 * 2 * 128
    (kernel,) = kernels_of(attention(1, 4, 2, window=4))
    assert kernel.flops - kernel.skippable_flops == (3 + 4 + 4 + 4) * 8 * 2 * 128
    (kernel,) = kernels_of(attention(1, 4, 0, is_causal=False))
    assert kernel.skippable_flops == 0


def test_the_shape_of_the_kernel_is_as_tables_list_it() -> None:
    (kernel,) = kernels_of(attention(3, 1, 99))
    assert kernel.shape == AttentionShape(
        sequences=3, queries=1, keys=100, heads=8, key_heads=2, width=64, value_width=64, is_causal=True
    )


def test_a_latent_decode_step_is_the_absorbed_matmuls() -> None:
    def run() -> None:
        sequences, keys = 3, 100
        query = torch.bmm(torch.empty(4, sequences, 16), torch.empty(4, 16, 32))  # into the latent space
        assert query.shape[-1] == 32
        scores = torch.bmm(torch.empty(sequences, 4, 40), torch.empty(sequences, 40, keys))
        latents = torch.bmm(scores, torch.empty(sequences, keys, 32))
        torch.bmm(latents.transpose(0, 1), torch.empty(4, 32, 24))

    assert priced(latent(3, 1, 99))[0] == counted(run)


@pytest.mark.parametrize("before", [0, 20])
def test_a_latent_prefill_expands_the_whole_context_first(before: int) -> None:
    def run() -> None:
        sequences, new, keys = 2, 10, before + 10
        torch.empty(sequences * keys, 32) @ torch.empty(32, 4 * 40)
        scores = torch.bmm(torch.empty(sequences * 4, new, 24), torch.empty(sequences * 4, 24, keys))
        torch.bmm(scores, torch.empty(sequences * 4, keys, 24))

    assert priced(latent(2, 10, before))[0] == counted(run)


@pytest.mark.parametrize("kind", [latent(3, 1, 99), latent(2, 10, 20), attention(2, 8, 24)])
def test_the_kernels_of_an_op_add_up_to_its_price(kind: OpKind) -> None:
    kernels = kernels_of(kind)
    assert (sum(kernel.flops for kernel in kernels), sum(kernel.bytes_moved for kernel in kernels)) == priced(kind)


def test_latent_kernels_are_matmuls_around_attention_on_shared_vectors() -> None:
    into, middle, out = kernels_of(latent(3, 1, 99))
    assert into.shape == MatmulShape(rows=3, columns=32, depth=16, count=4)
    assert out.shape == MatmulShape(rows=3, columns=24, depth=32, count=4)
    assert isinstance(middle.shape, AttentionShape)
    assert (middle.shape.key_heads, middle.shape.width, middle.shape.latent_rank) == (1, 40, 32)


def test_new_keys_are_read_where_the_cache_holds_them() -> None:
    assert bytes_read(attention(3, 1, 99)) == (3 * 8 * 64 * 2, 0, 0, 0, 3 * 100 * 2 * 128 * 2)
    assert bytes_read(latent(3, 1, 99)) == (3 * 4 * 24 * 2, 0, 0, 0, 3 * 100 * 40 * 2, 160 * 32 * 2)


def test_a_cache_update_reads_what_is_new_and_writes_it_in_the_type_of_the_cache() -> None:
    kind = OpKind(
        name="vllm.unified_kv_cache_update.default",
        inputs=(meta(5, 2, 64), meta(5, 2, 64), meta(1, 100, 2, 128, dtype="float8_e4m3fn")),
        outputs=(meta(0),),
        input_names=("key", "value", "kv_cache"),
        output_aliases=(-1,),
        arguments={"sequences": 1, "new_tokens": 5, "cached_tokens": 95},
    )
    assert priced(kind) == (0, 2 * 5 * 128 * 2 + 2 * 5 * 128)
    assert bytes_read(kind) == (5 * 128 * 2, 5 * 128 * 2, 0)


def test_an_op_without_its_facts_has_no_price() -> None:
    kind = attention(1, 1, 9)
    bare = OpKind(name=kind.name, inputs=kind.inputs, outputs=kind.outputs, input_names=kind.input_names, mutates=True)
    assert price(bare) is None

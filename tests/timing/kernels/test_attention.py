"""Attention: pairs by counting, uses by their tables, windows and chunks by their work."""

from __future__ import annotations

import numpy as np
import pytest

from llm_perf_opt.ops.kernel_shape import AttentionShape
from llm_perf_opt.timing.kernels.attention import AttentionQuery, attention_pairs, attention_work
from llm_perf_opt.timing.kernels.kernel_tables import kernel_tables
from llm_perf_opt.timing.kernels.latent import SPARSE_MODELS, LatentQuery, Module
from llm_perf_opt.timing.kernels.tables import newest, read_rows
from llm_perf_opt.timing.kernels.times import TimeOrigin, Times
from tests.timing.kernels.measured_tables import needs_tables


def query(queries: int, keys: int, window: int = 0, heads: int = 8, key_heads: int = 2) -> AttentionQuery:
    one = np.ones(1)
    return AttentionQuery(
        sequences=3 * one,
        queries=queries * one,
        keys=keys * one,
        heads=heads * one,
        key_heads=key_heads * one,
        width=64 * one,
        value_width=64 * one,
        window=window * one,
    )


def counted(queries: int, keys: int, window: int) -> int:
    """Pairs one by one: query i stands at position keys - queries + i and sees itself and what comes before."""
    total = 0
    for i in range(queries):
        position = keys - queries + i
        first = 0 if not window else max(0, position - window + 1)
        total += position - first + 1
    return total


@pytest.mark.parametrize(
    ("queries", "keys", "window"), [(5, 5, 0), (5, 12, 0), (5, 12, 3), (9, 9, 4), (1, 40, 0), (1, 40, 8), (7, 9, 100)]
)
def test_causal_pairs_are_those_one_counts(queries: int, keys: int, window: int) -> None:
    assert attention_pairs(query(queries, keys, window), is_causal=True)[0] == counted(queries, keys, window)


def test_without_a_mask_every_pair_counts() -> None:
    assert attention_pairs(query(5, 12), is_causal=False)[0] == 60


def test_work_of_a_decode_step_by_hand() -> None:
    flops, moved = attention_work(query(1, 100), 1.0, is_causal=True)
    assert flops[0] == 3 * 8 * 100 * 2 * (64 + 64)
    assert moved[0] == 3 * (8 * (64 + 64) * 2 + 100 * 2 * (64 + 64) * 1)


def times(**changes: object) -> Times:
    shape = {
        "sequences": 4, "queries": 1, "keys": 4096, "heads": 32, "key_heads": 8, "width": 128, "value_width": 128,
        "is_causal": True,
    }  # fmt: skip
    return kernel_tables("h100-sxm", "vllm").times([AttentionShape(**(shape | changes))])  # type: ignore[arg-type]


@needs_tables
def test_a_measured_decode_step_comes_back() -> None:
    table = newest("h100_sxm", "generation_attention", "vllm")
    assert table is not None
    row = read_rows(
        table,
        ("batch_size",),
        where="step = 4095 and num_heads = 32 and num_key_value_heads = 8 and head_dim = 128 and window_size = 0 "
        "and kv_cache_dtype = 'bfloat16' and batch_size = 4",
    )
    found = times()
    assert found.seconds[0] == pytest.approx(row["seconds"][0])
    assert found.origins == [TimeOrigin.MEASURED]


@needs_tables
def test_heads_between_measured_ones_lie_between_their_times() -> None:
    low, between, high = (times(heads=heads, sequences=64).seconds[0] for heads in (32, 36, 40))
    assert times(heads=36).origins == [TimeOrigin.INTERPOLATED]
    assert min(low, high) * 0.95 < between < max(low, high) * 1.05


@needs_tables
def test_a_chunk_costs_more_than_its_own_square_and_less_than_the_whole() -> None:
    chunk = times(queries=1024, keys=8192, sequences=1).seconds[0]
    square, whole = (times(queries=n, keys=n, sequences=1).seconds[0] for n in (1024, 8192))
    assert square < chunk < whole
    pairs = (8192 - 1023 / 2) * 1024 / (8192 * 8193 / 2)
    assert chunk == pytest.approx(whole * pairs, rel=0.35)


@needs_tables
def test_an_encoder_reads_the_encoder_table_and_other_systems_scale_prefill() -> None:
    shape = AttentionShape(
        sequences=1, queries=1024, keys=1024, heads=16, key_heads=16, width=64, value_width=64, is_causal=False
    )
    assert kernel_tables("h100-sxm", "vllm").times([shape]).origins == [TimeOrigin.MEASURED]
    assert kernel_tables("a100-sxm-80g", "vllm").times([shape]).origins == [TimeOrigin.SCALED]


@needs_tables
def test_a_window_shortens_long_decode_steps() -> None:
    full, windowed = times(sequences=64, keys=16384), times(sequences=64, keys=16384, window=128)
    assert windowed.seconds[0] < full.seconds[0] / 5


@needs_tables
def test_latent_attention_reads_tables_of_its_own() -> None:
    found = times(sequences=64, heads=16, key_heads=1, width=576, value_width=512, latent_rank=512, keys=4096)
    moved = 64 * 4096 * 576 * 2
    assert moved / 3.35e12 < found.seconds[0] < 5 * moved / 3.35e12


@needs_tables
def test_picked_keys_cost_what_as_many_keys_cost_and_count_as_scaled() -> None:
    latent = {"heads": 16, "key_heads": 1, "width": 576, "value_width": 512, "latent_rank": 512}
    picked = times(sequences=16, keys=32768, window=2048, **latent)
    assert picked.seconds[0] == times(sequences=16, keys=2048, **latent).seconds[0]
    assert picked.origins == [TimeOrigin.SCALED]


@needs_tables
def test_a_whole_latent_module_takes_longer_than_its_attention_and_an_indexer_longer_still() -> None:
    one = np.ones(1)
    query = LatentQuery(sequences=64 * one, queries=one, keys=4097 * one, heads=128 * one, rank=512 * one)
    tables = kernel_tables("h100-sxm", "vllm")
    alone = tables.latent_attention(query, cache_format="bfloat16")
    dense = tables.latent_modules(query, cache_format="bfloat16", module=Module())
    sparse = tables.latent_modules(query, cache_format="bfloat16", module=Module(sparse_model=SPARSE_MODELS[0]))
    assert alone.seconds[0] < dense.seconds[0] < sparse.seconds[0]
    assert sparse.origins == [TimeOrigin.MEASURED]

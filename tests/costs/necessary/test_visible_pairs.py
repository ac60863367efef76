"""How many pairs of query and key are visible, counted one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.costs.necessary.attention_sites import VisibleSpan, declared_span

LIMITS = st.one_of(st.none(), st.integers(1, 12))


def seen(position: int, window: int | None, chunk: int | None) -> int:
    """Keys that a causal query sees, by looking at each of them."""
    return sum(
        (window is None or position - key < window) and (chunk is None or position // chunk == key // chunk)
        for key in range(position + 1)
    )


@given(st.integers(1, 30), st.integers(0, 30), LIMITS, st.booleans())
def test_causal_pairs_are_those_that_can_be_counted(
    queries: int, before: int, limit: int | None, chunked: bool
) -> None:
    window, chunk = (None, limit) if chunked else (limit, None)
    context = queries + before
    span = VisibleSpan(is_causal=True, window=window, chunk=chunk)
    by_hand = sum(seen(position, window, chunk) for position in range(before, context))
    assert span.pairs(queries, context) == by_hand


def test_pairs_by_hand() -> None:
    assert VisibleSpan().pairs(4, 6) == 24
    assert VisibleSpan(is_causal=True).pairs(4, 4) == 1 + 2 + 3 + 4
    assert VisibleSpan(is_causal=True).pairs(1, 1025) == 1025
    assert VisibleSpan(is_causal=True, window=2).pairs(4, 4) == 1 + 2 + 2 + 2
    assert VisibleSpan(is_causal=True, chunk=3).pairs(4, 4) == 1 + 2 + 3 + 1


def test_the_first_token_of_a_chunk_sees_only_itself_though_the_cache_still_holds_the_last_chunk() -> None:
    span = VisibleSpan(is_causal=True, chunk=8192)
    assert span.pairs(1, 8192, context=8193) == 1
    assert span.pairs(1, 8192, context=8192) == 8192


def test_a_module_declares_its_span_and_one_that_says_nothing_is_causal_if_it_caches() -> None:
    assert declared_span({"is_causal": False}, is_causal_op=False, writes_cache=True) == VisibleSpan()
    assert declared_span({}, is_causal_op=False, writes_cache=True) == VisibleSpan(is_causal=True)
    assert declared_span({}, is_causal_op=False, writes_cache=False) == VisibleSpan()
    assert declared_span({}, is_causal_op=True, writes_cache=False) == VisibleSpan(is_causal=True)
    sliding = {"is_causal": True, "sliding_window": 128, "layer_type": "sliding_attention"}
    assert declared_span(sliding, is_causal_op=False, writes_cache=True) == VisibleSpan(is_causal=True, window=128)
    full = {"is_causal": True, "sliding_window": 128, "layer_type": "full_attention"}
    assert declared_span(full, is_causal_op=False, writes_cache=True) == VisibleSpan(is_causal=True)
    sparse = declared_span({"is_causal": True, "index_topk": 2048}, is_causal_op=False, writes_cache=True)
    assert sparse == VisibleSpan(is_causal=True, chosen=2048)
    assert (sparse.pairs(1, 1000), sparse.pairs(1, 9000), sparse.is_limited) == (1000, 2048, True)
    chunked = {"is_causal": True, "attention_chunk_size": 8192, "layer_type": "chunked_attention"}
    assert declared_span(chunked, is_causal_op=False, writes_cache=True) == VisibleSpan(is_causal=True, chunk=8192)

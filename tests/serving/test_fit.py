"""Room for the cache, the largest batch and the largest context, by hand and as properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.engines import VLLM_0_19, VLLM_0_32, BatchLimits, visible_bytes
from llm_perf_opt.serving.fit import RankMemory, fit_of, serving_fit
from llm_perf_opt.serving.held_memory import CacheLayers, CachePerSequence
from tests.timing.step.made_deployments import made_cache, made_device, made_fit

sizes = st.integers(min_value=1, max_value=10**13)
counts = st.integers(min_value=1, max_value=10**6)
caches = st.builds(
    CachePerSequence,
    layers=st.lists(
        st.builds(CacheLayers, bytes_per_token=st.integers(1, 10**6), window=st.none() | st.integers(1, 10**5)),
        min_size=1,
        max_size=3,
    ).map(tuple),
    state_bytes=st.integers(0, 10**8),
    block_tokens=st.sampled_from((1, 16, 128)),
)


def test_the_room_is_the_share_in_use_less_weights_working_memory_and_what_is_outside_pytorch() -> None:
    fit = made_fit(batch=2, context=2500)
    assert (fit.budget_bytes, fit.room_bytes) == (9_000_000, 5_000_000)
    assert (fit.cache_bytes, fit.fits) == (5_000_000, True)
    assert (fit.largest_batch, fit.largest_context) == (2, 2500)
    assert made_fit(batch=2, context=2501).fits is False


def test_a_window_stops_the_cache_and_blocks_round_it_up() -> None:
    cache = CachePerSequence(
        layers=(CacheLayers(bytes_per_token=10), CacheLayers(bytes_per_token=100, window=40)),
        state_bytes=7,
        block_tokens=16,
    )
    assert cache.bytes_at(17) == 7 + 110 * 32
    assert cache.bytes_at(1000) == 7 + 10 * 1008 + 100 * 48


def test_weights_that_are_too_much_leave_negative_room_and_no_sequence() -> None:
    fit = made_fit(weights_bytes=8_000_000)
    assert (fit.room_bytes, fit.fits, fit.largest_batch, fit.largest_context) == (-1_000_000, False, 0, 0)


def test_what_is_not_known_makes_the_answer_unknown() -> None:
    fit = made_fit(working_bytes=None)
    assert (fit.room_bytes, fit.fits, fit.largest_batch, fit.largest_context) == (None,) * 4
    unread = serving_fit(weights_bytes=1, working_bytes=1, cache=None, device=made_device(), batch=1, context=1)
    assert unread.room_bytes is not None
    assert (unread.cache_bytes, unread.fits, unread.largest_batch, unread.context_limit) == (None,) * 4


def test_a_context_ends_at_memory_at_the_trained_length_or_nowhere() -> None:
    assert (made_fit().largest_context, made_fit().context_limit) == (5000, "memory")
    trained = made_fit(trained_context=4096)
    assert (trained.largest_context, trained.context_limit) == (4096, "trained length")
    windowed = made_fit(cache=made_cache(window=100))
    assert (windowed.largest_context, windowed.context_limit) == (None, "nothing")
    assert made_fit(cache=made_cache(window=100), batch=60).largest_context == 83  # 83,333 bytes for each


def test_room_is_counted_in_whole_blocks_whatever_the_length_of_a_sequence() -> None:
    """1,000 bytes for each token: 100,015 bytes hold six blocks of 16, and the seventh only in part."""
    cache = CachePerSequence(layers=(CacheLayers(bytes_per_token=1000),))
    assert {cache.tokens_in(100_015, context) for context in (1, 15, 16, 17, 1225)} == {96}
    assert cache.tokens_in(15_999, 1) == 0
    assert cache.tokens_in(-1, 1) == 0
    assert CachePerSequence(layers=()).tokens_in(100, 1) is None


def test_a_state_and_a_window_are_paid_once_for_each_sequence() -> None:
    """64 tokens at 10 bytes, 360 of state, a window of 16 at 10: 1,160 bytes. 5,800 hold five of them: 320 tokens."""
    layers = (CacheLayers(bytes_per_token=10), CacheLayers(bytes_per_token=10, window=16))
    cache = CachePerSequence(layers=layers, state_bytes=360)
    assert cache.bytes_at(64) == 640 + 160 + 360
    assert cache.tokens_in(5_800, 64) == 320
    assert cache.tokens_in(5_800, 16) == 8 * 16  # 680 bytes each: eight whole sequences and half of one


def test_the_share_of_the_memory_is_the_default_of_the_version() -> None:
    """0.9 until 0.20; then 0.92, of which captured graphs take their part."""
    needs = RankMemory(
        plan=ParallelPlan(),
        engine=VLLM_0_19,
        limits=BatchLimits(chunk_tokens=1, sequences=1),
        weights=(),
        working=None,
        cache=None,
        trained_context=None,
    )
    h100 = find_device("h100-sxm")
    older, newer = (fit_of(replace(needs, engine=one), h100, batch=1, context=1) for one in (VLLM_0_19, VLLM_0_32))
    assert (older.utilisation, newer.utilisation) == (0.9, 0.92)
    assert older.budget_bytes == int(0.9 * (81559 - 512) * 2**20)
    assert newer.budget_bytes == int(0.92 * (81559 - 512) * 2**20)
    assert (newer.outside_torch_bytes or 0) - (older.outside_torch_bytes or 0) == 2**29


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"context": 0}, {"devices": 0}, {"utilisation": 1.2}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="fit"):
        serving_fit(
            weights_bytes=1,
            working_bytes=1,
            cache=made_cache(),
            device=made_device(),
            **{"batch": 1, "context": 1, **wrong},  # type: ignore[arg-type]
        )


def test_the_driver_keeps_half_a_gibibyte_of_what_it_reports_and_nothing_of_a_nominal_figure() -> None:
    h100 = find_device("h100-sxm")
    assert visible_bytes(h100) == (81559 - 512) * 2**20
    assert visible_bytes(replace(h100, memory_bytes=80 * 10**9, nominal_memory_bytes=None)) == 80 * 10**9
    mi300x = find_device("mi300x")
    assert visible_bytes(mi300x) == mi300x.memory_bytes


@settings(deadline=None)
@given(cache=caches, memory=sizes, batch=counts, context=counts)
def test_the_largest_batch_fits_and_one_more_does_not(
    cache: CachePerSequence, memory: int, batch: int, context: int
) -> None:
    most = made_fit(cache=cache, memory_bytes=memory, batch=batch, context=context).largest_batch
    assert most is not None
    assert made_fit(cache=cache, memory_bytes=memory, batch=most + 1, context=context).fits is False
    if most:
        assert made_fit(cache=cache, memory_bytes=memory, batch=most, context=context).fits is True


@settings(deadline=None)
@given(cache=caches, memory=sizes, batch=counts)
def test_the_largest_context_fits_and_one_more_does_not(cache: CachePerSequence, memory: int, batch: int) -> None:
    fit = made_fit(cache=cache, memory_bytes=memory, batch=batch)
    if fit.context_limit == "nothing":
        assert made_fit(cache=cache, memory_bytes=memory, batch=batch, context=10**9).fits is True
        return
    longest = fit.largest_context
    assert longest is not None
    assert made_fit(cache=cache, memory_bytes=memory, batch=batch, context=longest + 1).fits is False
    if longest:
        assert made_fit(cache=cache, memory_bytes=memory, batch=batch, context=longest).fits is True


@settings(deadline=None)
@given(cache=caches, memory=sizes, batch=counts, context=counts, more=counts)
def test_more_memory_never_holds_less_and_a_larger_batch_never_fits_better(
    cache: CachePerSequence, memory: int, batch: int, context: int, more: int
) -> None:
    fit = made_fit(cache=cache, memory_bytes=memory, batch=batch, context=context)
    richer = made_fit(cache=cache, memory_bytes=memory + more, batch=batch, context=context)
    assert (richer.largest_batch or 0) >= (fit.largest_batch or 0)
    assert bool(richer.fits) >= bool(fit.fits)
    longer = made_fit(cache=cache, memory_bytes=memory, batch=batch, context=context + more)
    assert (longer.largest_batch or 0) <= (fit.largest_batch or 0)
    wider = made_fit(cache=cache, memory_bytes=memory, batch=batch + more, context=context)
    assert bool(wider.fits) <= bool(fit.fits)
    assert _length(wider.largest_context) <= _length(fit.largest_context)


def _length(context: int | None) -> float:
    return float("inf") if context is None else context

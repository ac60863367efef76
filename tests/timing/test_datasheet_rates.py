"""How long a kernel keeps a device busy, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.priors import efficiency_priors
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.datasheet_rates import LARGE_WEIGHTS, SMALL_WEIGHTS, kernel_time
from llm_perf_opt.timing.lower_bound import BoundBy
from llm_perf_opt.timing.rates import Band

PRIORS = efficiency_priors()
CARD = Device(
    id="card",
    name="Card",
    vendor="nobody",
    arch="none",
    peak_flops_per_s={"bf16": 10**14, "fp32": 10**13},
    bandwidth_bytes_per_s=10**12,
    memory_bytes=10**10,
    l2_bytes=10**6,
)


def matmul(rows: int, weights: int, **more: int) -> Kernel:
    return Kernel(
        kind=KernelKind.MATMUL,
        dtype="bfloat16",
        flops=2 * rows * weights,
        skippable_flops=0,
        bytes_moved=more.pop("bytes_moved", 0),
        rows=rows,
        weights=weights,
        **more,
    )


def vector(bytes_moved: int, avoidable_bytes: int = 0) -> Kernel:
    return Kernel(
        kind=KernelKind.VECTOR,
        dtype="bfloat16",
        flops=0,
        skippable_flops=0,
        bytes_moved=bytes_moved,
        avoidable_bytes=avoidable_bytes,
    )


def test_a_large_matmul_takes_its_flops_at_a_share_of_the_peak_and_a_fixed_cost() -> None:
    kernel = matmul(8192, LARGE_WEIGHTS)
    time = kernel_time(kernel, CARD, PRIORS)
    full_s = kernel.flops / 1e14
    assert time.band.low == pytest.approx(2.84e-6 + full_s / 0.973)
    assert time.band.high == pytest.approx(4.61e-6 + full_s / 0.675)
    assert time.bound_by is BoundBy.COMPUTE


@pytest.mark.parametrize(
    ("weights", "rows", "low", "high"),
    [
        (SMALL_WEIGHTS, 1024, 0.416, 0.708),
        (SMALL_WEIGHTS + 1, 1024, 0.416, 0.971),
        (LARGE_WEIGHTS, 1024, 0.729, 0.971),
        (SMALL_WEIGHTS, 10, 0.259, 0.889),
    ],
)
def test_small_matmuls_reach_less_of_the_peak(weights: int, rows: int, low: float, high: float) -> None:
    time = kernel_time(matmul(rows, weights), CARD, PRIORS)
    full_s = 2 * rows * weights / 1e14
    assert time.band.low == pytest.approx(2.84e-6 + full_s / high)
    assert time.band.high == pytest.approx(4.61e-6 + full_s / low)


def test_nothing_exceeds_the_best_matmul_measured_on_the_device() -> None:
    card = replace(CARD, achieved_flops_per_s={"bf16": 5 * 10**13})
    kernel = matmul(8192, LARGE_WEIGHTS)
    band = kernel_time(kernel, card, PRIORS).band
    assert band.low == pytest.approx(2.84e-6 + kernel.flops / 1e14 / 0.5)
    assert band.high == pytest.approx(4.61e-6 + kernel.flops / 1e14 / 0.5)


def test_bytes_beyond_the_cache_come_from_memory_at_the_low_edge_and_all_of_them_at_the_high_edge() -> None:
    time = kernel_time(vector(5_000_000), CARD, PRIORS)
    assert time.band.low == pytest.approx(4e6 / 1e12 / 0.946)
    assert time.band.high == pytest.approx(3e-6 + 5e6 / 1e12 / 0.5)
    assert time.bound_by is BoundBy.BANDWIDTH
    assert kernel_time(vector(5_000_000, 4_500_000), CARD, PRIORS).band.low == 0
    assert kernel_time(vector(1000), CARD, PRIORS).bound_by is BoundBy.LAUNCHES


@pytest.mark.parametrize(("sequences", "share"), [(1, 0.083), (8, 0.584), (100, 0.736)])
def test_a_cache_of_few_sequences_is_read_slowly_at_worst(sequences: int, share: float) -> None:
    kernel = Kernel(
        kind=KernelKind.ATTENTION,
        dtype="bfloat16",
        flops=1000,
        skippable_flops=0,
        bytes_moved=10**8,
        sequences=sequences,
        queries=1,
    )
    assert kernel_time(kernel, CARD, PRIORS).band.high == pytest.approx(26.3e-6 + 1e8 / 1e12 / share)


def test_float32_runs_at_its_own_rate_at_worst() -> None:
    """Without tf32 the two edges differ only by the shares."""
    kernel = replace(matmul(8192, LARGE_WEIGHTS), dtype="float32")
    band = kernel_time(kernel, CARD, PRIORS).band
    assert band.high == pytest.approx(4.61e-6 + kernel.flops / 1e13 / 0.675)
    with_tf32 = replace(CARD, peak_flops_per_s={**CARD.peak_flops_per_s, "tf32": 5 * 10**13})
    faster = kernel_time(kernel, with_tf32, PRIORS).band
    assert faster.high == band.high
    assert faster.low == pytest.approx(2.84e-6 + kernel.flops / 5e13 / 0.973)


def test_bands_add_and_meet_at_both_ends() -> None:
    assert Band(1, 3) + Band(2, 2) == Band(3, 5)
    assert Band(1, 3).times(2) == Band(2, 6)
    assert Band(1, 3).slower(Band(2, 2)) == Band(2, 3)
    assert Band(1, 3).at_least(2) == Band(2, 3)
    assert Band(1, 4).middle == 2
    assert Band(1, 3).holds(1) and Band(1, 3).holds(3) and not Band(1, 3).holds(3.01)
    with pytest.raises(ValueError, match="from low to high"):
        Band(2, 1)

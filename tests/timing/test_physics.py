"""Each gate refuses what no device can do, and lets pass what one just can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import Device, find_device
from llm_perf_opt.timing.efficiency import MEASURED_SLACK, StageEfficiency, check_physics, stage_efficiency

CARD = find_device("rtx-5090")
PEAK, BANDWIDTH = 209_500_000_000_000, 1_792_000_000_000
MEASURED = replace(CARD, is_measured=True)


def stage(
    *, flops: int = 0, weight_bytes: int = 0, seconds: float = 1.0, device: Device = CARD, skippable_flops: int = 0
) -> StageEfficiency:
    return stage_efficiency(
        "decode",
        flops=flops,
        bytes_moved=weight_bytes,
        weight_bytes=weight_bytes,
        seconds=seconds,
        device=device,
        dtype="bfloat16",
        required_by_dtype={"bfloat16": flops - skippable_flops},
    )


def test_an_mfu_above_one_is_refused() -> None:
    check_physics([stage(flops=PEAK)], CARD)
    with pytest.raises(PerfOptError, match=r"MFU of 1\.01"):
        check_physics([stage(flops=PEAK * 101 // 100)], CARD)


def test_pairs_that_a_mask_hides_may_carry_the_mfu_above_one() -> None:
    check_physics([stage(flops=PEAK * 3 // 2, skippable_flops=PEAK * 3 // 4)], CARD)
    with pytest.raises(PerfOptError, match=r"MFU of 2\.50"):
        check_physics([stage(flops=PEAK * 5 // 2, skippable_flops=PEAK * 5 // 4)], CARD)


def test_an_mbu_above_one_is_refused() -> None:
    check_physics([stage(weight_bytes=BANDWIDTH)], CARD)
    with pytest.raises(PerfOptError, match=r"MBU of 1\.00"):
        check_physics([stage(weight_bytes=BANDWIDTH + CARD.l2_bytes // 2)], CARD)  # type: ignore[operator]


def test_a_decode_faster_than_its_bytes_is_refused() -> None:
    """1,148,190,720 bytes of active weights: 641 us on this card, of which the cache may save 56."""
    check_physics([stage(weight_bytes=1_148_190_720, seconds=0.00065)], CARD)
    with pytest.raises(PerfOptError, match="takes at least 585 us"):
        check_physics([stage(weight_bytes=1_148_190_720, seconds=0.0005)], CARD)


def test_weights_in_the_cache_may_be_read_at_any_speed() -> None:
    check_physics([stage(weight_bytes=90 * 2**20, seconds=1e-6)], CARD)


def test_a_measured_peak_may_be_beaten_by_the_noise_of_measuring_and_no_more() -> None:
    check_physics([stage(flops=int(PEAK * (1 + MEASURED_SLACK * 0.9)), device=MEASURED)], MEASURED)
    with pytest.raises(PerfOptError, match="MFU"):
        check_physics([stage(flops=int(PEAK * (1 + MEASURED_SLACK * 1.1)), device=MEASURED)], MEASURED)

"""MFU, MBU and what limits, by numbers small enough to work out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import Device, find_device
from llm_perf_opt.core.report import Kind
from llm_perf_opt.timing.efficiency import efficiency_table, roofline_chart, roofline_of_bands, stage_efficiency
from llm_perf_opt.timing.lower_bound import BoundBy, lower_bound

CARD = Device(
    id="card",
    name="Card",
    vendor="nobody",
    arch="none",
    peak_flops_per_s={"bf16": 1000, "fp32": 100, "tf32": 400},
    bandwidth_bytes_per_s=10,
    memory_bytes=1000,
    l2_bytes=5,
    launch_overhead_ns=1_000_000_000,
)


def test_a_stage_by_hand() -> None:
    """500 FLOPs, 20 bytes moved and 55 bytes of weights in 8 s, on a card with a cache of 5 bytes."""
    stage = stage_efficiency(
        "s", flops=500, bytes_moved=20, weight_bytes=55, seconds=8.0, device=CARD, dtype="bfloat16", launches=1
    )
    assert stage.mfu == 500 / 8 / 1000
    assert stage.mbu == 55 / 8 / 10
    assert stage.intensity == 25
    assert stage.attainable_flops_per_s == 250
    assert stage.achieved_flops_per_s == 62.5
    assert stage.of_attainable == 0.25
    assert stage.lower_bound_s == (55 - 5) / 10
    assert stage.bound_by is BoundBy.BANDWIDTH


@pytest.mark.parametrize(
    ("flops", "bytes_moved", "launches", "bound_by"),
    [(5000, 20, 1, BoundBy.COMPUTE), (500, 20, 1, BoundBy.BANDWIDTH), (500, 20, 3, BoundBy.LAUNCHES)],
)
def test_the_slowest_of_three_clocks_limits(flops: int, bytes_moved: int, launches: int, bound_by: BoundBy) -> None:
    stage = stage_efficiency(
        "s",
        flops=flops,
        bytes_moved=bytes_moved,
        weight_bytes=0,
        seconds=10.0,
        device=CARD,
        dtype="bfloat16",
        launches=launches,
    )
    assert stage.bound_by is bound_by


def test_without_a_figure_of_its_own_a_device_launches_as_eager_pytorch_does_at_best() -> None:
    """5 us per launch: 1,000 of them take 5 ms, more than 1 TFLOP on an RTX 5090."""
    stage = stage_efficiency(
        "s",
        flops=10**12,
        bytes_moved=0,
        weight_bytes=0,
        seconds=1.0,
        device=find_device("rtx-5090"),
        dtype="bfloat16",
        launches=1000,
    )
    assert stage.bound_by is BoundBy.LAUNCHES
    assert stage.intensity is None


def test_what_is_unknown_stays_unknown() -> None:
    stage = stage_efficiency(
        "s", flops=None, bytes_moved=None, weight_bytes=None, seconds=1.0, device=CARD, dtype="bfloat16"
    )
    assert (stage.mfu, stage.mbu, stage.intensity, stage.of_attainable) == (None, None, None, None)
    assert (stage.lower_bound_s, stage.bound_by) == (None, None)
    assert efficiency_table([stage]).rows[0][1:4] == (1.0, None, None)


def test_weights_that_a_cache_may_hold_have_no_mbu() -> None:
    """Of 40 bytes a cache of 5 may hold more than a tenth; of 60 it may not."""

    def mbu(weight_bytes: int, forwards: int = 1) -> float | None:
        return stage_efficiency(
            "s",
            flops=0,
            bytes_moved=0,
            weight_bytes=weight_bytes,
            seconds=10.0,
            device=CARD,
            dtype="bfloat16",
            forwards=forwards,
        ).mbu

    assert mbu(40) is None
    assert mbu(60) == 0.6
    assert mbu(60, forwards=2) is None


def test_a_time_that_is_no_time_is_refused() -> None:
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite and above zero"):
            stage_efficiency(
                "s", flops=1, bytes_moved=1, weight_bytes=1, seconds=seconds, device=CARD, dtype="bfloat16"
            )


def test_the_speed_of_light_adds_dtypes_and_takes_the_slower_clock() -> None:
    light = lower_bound({"bfloat16": 2000, "float32": 800}, 65, CARD)
    assert light.compute_s == 2000 / 1000 + 800 / 400, "float32 may run as tf32"
    assert light.bandwidth_s == 6.0
    assert light.seconds == 6.0
    assert lower_bound({}, 130, CARD, forwards=2).bandwidth_s == 12.0


def test_half_precision_may_accumulate_in_half_precision() -> None:
    """A program may allow it, and a bound must hold then too; MFU is held against what PyTorch does by itself."""
    card = find_device("rtx-5090")
    assert lower_bound({"float16": 419 * 10**12}, 0, card).compute_s == 1.0
    assert lower_bound({"bfloat16": 419 * 10**12}, 0, card).compute_s == 2.0
    stage = stage_efficiency(
        "s", flops=419 * 10**11, bytes_moved=1, weight_bytes=0, seconds=1.0, device=card, dtype="float16"
    )
    assert stage.mfu == 0.2


def test_a_dtype_without_a_rate_is_bound_by_the_next_narrower_one() -> None:
    card = replace(CARD, peak_flops_per_s={"bf16": 1000})
    assert lower_bound({"float32": 2000}, 0, card).compute_s == 2.0
    with pytest.raises(PerfOptError, match="No peak rate"):
        lower_bound({"float16": 2000}, 0, card)


def test_the_chart_has_two_roofs_that_meet_and_a_point_per_stage() -> None:
    stage = stage_efficiency("a", flops=500, bytes_moved=20, weight_bytes=0, seconds=4.0, device=CARD, dtype="bfloat16")
    nothing = stage_efficiency("b", flops=0, bytes_moved=0, weight_bytes=0, seconds=4.0, device=CARD, dtype="bfloat16")
    chart = roofline_chart([stage, nothing], CARD, "bfloat16")
    slope, flat, scatter = chart.lines
    assert slope.points[1] == flat.points[0] == (100.0, 1000.0)
    assert slope.points[0][1] / slope.points[0][0] == CARD.bandwidth_bytes_per_s
    assert (scatter.style, scatter.points) == ("scatter", ((25.0, 125.0),))
    assert [(mark.x, mark.y, mark.text) for mark in chart.marks] == [(25.0, 125.0, "a")]
    assert (chart.x.is_log, chart.y.is_log, chart.x.kind) == (True, True, Kind.FLOPS_PER_BYTE)
    bands = roofline_of_bands({"a": (25.0, 50.0, 200.0)}, CARD, "bfloat16")
    assert bands.lines[2].points == ((25.0, 50.0), (25.0, 200.0))


def test_a_table_row_holds_what_the_record_holds() -> None:
    stage = stage_efficiency(
        "a", flops=500, bytes_moved=20, weight_bytes=60, seconds=8.0, device=CARD, dtype="bfloat16", launches=2
    )
    (row,) = efficiency_table([stage]).rows
    assert row == ("a", 8.0, 5.5, 500, 20, 25.0, 62.5, 0.0625, 0.75, 0.25, 2, "bandwidth")

"""Times of PyTorch's own kernels, worked out by hand from the rates of the file."""

from __future__ import annotations

import csv
import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.hardware.priors import EagerRates, eager_rates
from llm_perf_opt.ops.kernel_shape import AttentionShape, MatmulShape
from llm_perf_opt.ops.op import AccessPattern, Kernel, KernelKind
from llm_perf_opt.ops.table import kernels_of
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.timing.eager_time import SOURCE, eager_time, launched_alone
from llm_perf_opt.timing.rate_sources import RecordedRates, recorded_rates
from llm_perf_opt.timing.rates import Band

FACTS = Path(__file__).parents[1] / "facts"

H100, MI300X, A100 = (find_device(name) for name in ("h100-sxm", "mi300x", "a100-sxm-80g"))
MEBI = 2**20


def recorded_kinds(device: str) -> list[tuple[OpKind, float]]:
    """The ops of the recordings that the rates were read from, with the recorded microseconds."""
    found: list[tuple[OpKind, float]] = []
    with (FACTS / "eager_kernels.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["device"] == device:
                metas = map(tensor_of, json.loads(row["shapes"]), row["dtypes"].split("+"))
                found.append((recorded_kind(row["op"], list(metas)), float(row["median_us"])))
    return found


def tensor_of(shape: list[int], dtype: str) -> TensorMeta:
    return TensorMeta(tuple(shape), dtype, "cuda:0")


def recorded_kind(op: str, inputs: list[TensorMeta]) -> OpKind:
    """The op with the result that it makes of these inputs; a copy writes into its first."""
    largest = max(inputs, key=lambda meta: math.prod(meta.shape))
    names = {"addmm": ("self", "mat1", "mat2"), "mm": ("self", "mat2")}
    arguments: dict[str, object] = {}
    match op:
        case "addmm" | "mm":
            out = replace(largest, shape=(inputs[-2].shape[0], inputs[-1].shape[1]))
        case "mean" | "all":
            out = replace(largest, shape=(*largest.shape[:-1], 1))
        case "index_select":
            out = replace(inputs[0], shape=(inputs[1].shape[0], inputs[0].shape[1]))
        case "copy_":
            return OpKind(name="aten._to_copy.default", inputs=(inputs[1],), outputs=(inputs[0],))
        case _:
            out, arguments = largest, {"dim": -1}
    name = f"aten.{op}.default"
    return OpKind(name=name, inputs=tuple(inputs), outputs=(out,), arguments=arguments, input_names=names.get(op, ()))


@pytest.mark.parametrize(("device", "kinds", "median_error"), [("h100-sxm", 10, 0.15), ("mi300x", 80, 0.25)])
def test_the_recordings_that_the_rates_were_read_from_are_given_back(
    device: str, kinds: int, median_error: float
) -> None:
    """Matmuls of the H100 are left to the tables. Of one kernel of each kind four in five lie in their band."""
    errors, inside = [], []
    for kind, recorded_us in recorded_kinds(device):
        times = [eager_time(kernel, find_device(device)) for kernel in kernels_of(kind)]
        for time in times:
            if time is not None and time.band.expected is not None:
                errors.append(abs(time.band.expected * 1e6 / recorded_us - 1))
                inside.append(time.band.holds(recorded_us * 1e-6))
    assert len(errors) >= kinds
    assert statistics.median(errors) <= median_error
    assert sum(inside) >= 0.8 * len(inside)


def rates_of(device: str) -> EagerRates:
    rates = eager_rates(find_device(device))
    assert rates is not None
    return rates


def vector(pattern: AccessPattern, bytes_moved: int, dtype: str = "bfloat16") -> Kernel:
    kind = KernelKind.VECTOR
    return Kernel(kind=kind, dtype=dtype, flops=0, skippable_flops=0, bytes_moved=bytes_moved, pattern=pattern)


def matmul(rows: int, columns: int, depth: int, count: int = 1, pattern: AccessPattern | None = None) -> Kernel:
    return Kernel(
        kind=KernelKind.MATMUL,
        dtype="bfloat16",
        flops=2 * rows * columns * depth * count,
        skippable_flops=0,
        bytes_moved=2 * count * (rows * depth + columns * depth + rows * columns),
        rows=rows * count,
        weights=columns * depth,
        shape=MatmulShape(rows=rows, columns=columns, depth=depth, count=count),
        pattern=pattern,
    )


def expected_us(kernel: Kernel, device: str) -> float:
    time = eager_time(kernel, find_device(device))
    assert time is not None
    assert time.band.expected is not None
    return time.band.expected * 1e6


@pytest.mark.parametrize("device", ["h100-sxm", "mi300x"])
def test_a_vector_kernel_takes_its_floor_and_its_bytes(device: str) -> None:
    rate = rates_of(device).vector["vectorised"]
    bandwidth = find_device(device).bandwidth_bytes_per_s
    by_hand = rate.floor_us + 1e6 * 64 * MEBI / (bandwidth * rate.bandwidth_share)
    assert expected_us(vector(AccessPattern.VECTORISED, 64 * MEBI), device) == pytest.approx(by_hand)


def test_going_value_by_value_takes_as_long_for_four_bytes_as_for_two() -> None:
    """Unless the bytes themselves take longer: then at the share of plain kernels."""
    narrow = expected_us(vector(AccessPattern.INDEXED, 64 * MEBI), "h100-sxm")
    wide = expected_us(vector(AccessPattern.INDEXED, 128 * MEBI, "float32"), "h100-sxm")
    floor = rates_of("h100-sxm").vector["indexed"].floor_us
    plain = rates_of("h100-sxm").vector["vectorised"].bandwidth_share
    by_bytes = 1e6 * 128 * MEBI / (H100.bandwidth_bytes_per_s * plain)
    assert wide == pytest.approx(max(narrow, floor + by_bytes))
    assert wide < floor + 2 * (narrow - floor)


def test_on_another_device_values_go_with_units_and_clock_and_the_band_is_wider() -> None:
    kernel = vector(AccessPattern.LONG_SOFTMAX, 1024 * MEBI)
    here, there = eager_time(kernel, H100), eager_time(kernel, A100)
    assert here is not None
    assert there is not None
    floor = rates_of("h100-sxm").vector["long_softmax"].floor_us * 1e-6
    assert here.band.expected is not None
    assert there.band.expected is not None
    slower = (there.band.expected - floor * 1830 / 1410) / (here.band.expected - floor)
    assert slower == pytest.approx(132 * 1830 / (108 * 1410))
    assert there.band.high / there.band.low > here.band.high / here.band.low


def test_an_unaligned_matmul_takes_a_share_of_the_peak_on_whole_tiles() -> None:
    """96 matmuls of 3,137 rows fill the device; 4 tiles of 128 x 128 keep 4 of 132 units busy."""
    rate = rates_of("h100-sxm").matmul
    large = matmul(3137, 3137, 64, count=96, pattern=AccessPattern.UNALIGNED)
    computing = 1e6 * large.flops / (H100.peak("bfloat16") * rate.unaligned_odd)
    assert expected_us(large, "h100-sxm") == pytest.approx(rate.floor_us + computing)
    small = matmul(256, 254, 768, pattern=AccessPattern.UNALIGNED)
    computing = 1e6 * small.flops / (H100.peak("bfloat16") * rate.unaligned_even * 4 / 132)
    assert expected_us(small, "h100-sxm") == pytest.approx(rate.floor_us + computing)


def test_a_stack_of_tiny_matmuls_takes_its_time_per_matrix() -> None:
    rate = rates_of("mi300x").matmul
    kernel = matmul(8, 8, 64, count=37632)
    by_hand = rate.floor_us + 37632 * rate.small_matrix_us / 304
    assert expected_us(kernel, "mi300x") == pytest.approx(by_hand)


def test_plain_matmuls_of_nvidia_are_left_to_the_tables_and_those_of_amd_go_by_size() -> None:
    kernel = matmul(4096, 4096, 4096)
    assert eager_time(kernel, H100) is None
    assert expected_us(kernel, "mi300x") > 1e6 * kernel.flops / MI300X.achieved_flops_per_s["bf16"]


def test_flash_attention_works_on_whole_tiles_and_a_causal_mask_halves_them() -> None:
    """197 tokens are two tiles of 128 each way: 4 x 256 x 256 x 64 FLOPs for each of 12 x 4 heads."""
    shape = AttentionShape(
        sequences=4, queries=197, keys=197, heads=12, key_heads=12, width=64, value_width=64, is_causal=False
    )
    flops = 4 * 197 * 197 * 64 * 48
    kernel = Kernel(
        kind=KernelKind.ATTENTION, dtype="bfloat16", flops=flops, skippable_flops=0, bytes_moved=1, shape=shape
    )
    rate = rates_of("h100-sxm").attention
    tiles = 4 * 256 * 256 * 64 * 48
    peak = H100.peak("bfloat16")
    plain = rate.floor_us + 1e6 * tiles / (peak * rate.plain[0][1])
    assert expected_us(kernel, "h100-sxm") == pytest.approx(plain)
    causal = rate.floor_us + 1e6 * tiles / 2 / (peak * rate.causal[0][1])
    masked = replace(kernel, shape=replace(shape, is_causal=True))
    assert expected_us(masked, "h100-sxm") == pytest.approx(causal)
    assert eager_time(replace(kernel, shape=replace(shape, queries=1)), H100) is None


def test_a_matmul_launched_alone_takes_longer_than_in_a_table_and_its_library_may_be_another() -> None:
    table = Band(8e-6, 12e-6, 10e-6)
    rate = rates_of("h100-sxm").matmul
    release, gap = rate.release_spread, rate.table_gap_us
    assert release is not None
    assert gap is not None
    alone = launched_alone(table, matmul(128, 512, 512), H100)
    assert alone.low == pytest.approx(8e-6 * release.low + gap.low * 1e-6)
    assert alone.high == pytest.approx(12e-6 * release.high + gap.high * 1e-6)
    assert alone.expected == pytest.approx(10e-6 + gap.expected * 1e-6)
    one_row = launched_alone(table, matmul(1, 512, 512), H100)
    assert one_row.low == pytest.approx(8e-6 * release.low)
    elsewhere = launched_alone(table, matmul(128, 512, 512), A100)
    assert elsewhere.low == pytest.approx(8e-6 * release.low)
    assert launched_alone(table, matmul(128, 512, 512), MI300X) == table
    assert launched_alone(table, vector(AccessPattern.VECTORISED, 8), H100) == table


def test_recordings_lie_above_the_data_sheet_where_no_table_does() -> None:
    below = DataSheetRates(MI300X)
    rates = recorded_rates(below)
    assert isinstance(rates, RecordedRates)
    known = rates.duration(vector(AccessPattern.VECTORISED, MEBI))
    assert known is not None
    assert known[0].source == SOURCE == rates.name
    unknown = Kernel(kind=KernelKind.MATMUL, dtype="float32", flops=10**9, skippable_flops=0, bytes_moved=10**6, rows=8)
    (time,) = rates.duration(unknown) or ()
    (plain,) = below.duration(unknown) or ()
    assert (time.band.low, time.band.high) == (plain.band.low, plain.band.high)
    assert time.band.expected == plain.band.middle
    assert recorded_rates(DataSheetRates(MI300X, Execution.FUSED)) is None
    assert recorded_rates(DataSheetRates(find_device("apple-m2-ultra-76"))) is None

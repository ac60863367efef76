"""Times of the kernels that PyTorch launches op by op, and that no table of an engine's kernels describes.

Vector kernels by how they go through memory; matmuls with rows that the matrix engines cannot load whole; stacks of
tiny matmuls; PyTorch's flash attention; on AMD GPUs every matmul. The figures are read off recordings of other models
on an H100 and an MI300X (`core/hardware/eager_rates.toml`). Other GPUs of the two vendors are scaled, with a wider
band.
"""

from __future__ import annotations

import math

from llm_perf_opt.core.callgraph.records import TensorMeta
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.priors import (
    AttentionRate,
    EagerRates,
    MatmulRate,
    VectorRate,
    clock_ratio,
    eager_rates,
    issue_ratio,
    on_curve,
    recorded_device,
)
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.ops.kernel_shape import AttentionShape, MatmulShape
from llm_perf_opt.ops.op import AccessPattern, Kernel, KernelKind
from llm_perf_opt.timing.lower_bound import BoundBy, is_known
from llm_perf_opt.timing.rates import Band, RateTime

SOURCE = "eager recordings"
RECORDED = "recorded rates"  # the origin of a time by rates that recordings of other models gave
_TILE = 128  # rows and columns that one compute unit multiplies at a time
_SMALL = 16  # rows and columns up to which a matrix of a stack is one tile, however small
_NARROW = 8  # columns below which a matmul is a sum over rows: bound by its bytes
_MICRO = 1e-6


def eager_time(kernel: Kernel, device: Device) -> RateTime | None:
    """The device time of one launch of eager PyTorch; None: recordings do not describe it, and a table may."""
    rates = eager_rates(device)
    if rates is None:
        return None
    match kernel.kind:
        case KernelKind.VECTOR:
            vector = _vector(kernel, device, rates)
        case KernelKind.MATMUL:
            vector = _matmul(kernel, device, rates)
        case KernelKind.ATTENTION:
            vector = _attention(kernel, device, rates.attention)
        case _:
            return None
    if vector is None:
        return None
    seconds, rate, bound_by = vector
    spread = rates.spread if device.id == rates.device else rates.scaled_spread
    band = Band(seconds * spread.low, seconds * spread.high, seconds * spread.expected)
    return RateTime(source=SOURCE, rate=rate, band=band, bound_by=bound_by, origin=RECORDED)


def launched_alone(band: Band, kernel: Kernel, device: Device) -> Band:
    """The time of one matmul that eager PyTorch launches, from a table of matmuls in a captured graph.

    It takes longer by a gap, and the release of the library may differ from the table's. Part of the gap is an older
    library: on a device where nothing was recorded there may be none.
    """
    rates = eager_rates(device)
    if rates is None or kernel.kind is not KernelKind.MATMUL:
        return band
    gap = rates.matmul.one_row_gap_us if kernel.rows == 1 else rates.matmul.table_gap_us
    release = rates.matmul.release_spread
    if release is not None and band.expected is not None:
        band = Band(band.low * release.low, band.high * release.high, band.expected * release.expected)
    if gap is None:
        return band
    low = gap.low if device.id == rates.device else 0.0
    return band + Band(low * _MICRO, gap.high * _MICRO, gap.expected * _MICRO)


_Found = tuple[float, str, BoundBy]


def _vector(kernel: Kernel, device: Device, rates: EagerRates) -> _Found | None:
    rate = rates.vector.get(str(kernel.pattern))
    if rate is None:
        return None
    moving_s = _moving_s(kernel, device, rates, rate)
    floor_s = rate.floor_us * _MICRO / clock_ratio(device, recorded_device(rates))  # as many cycles on any device
    bound_by = BoundBy.BANDWIDTH if moving_s > floor_s else BoundBy.LAUNCHES
    return floor_s + moving_s, f"{kernel.kind}, {kernel.pattern}", bound_by


def _moving_s(kernel: Kernel, device: Device, rates: EagerRates, rate: VectorRate) -> float:
    """Bytes at a share of the bandwidth; value by value, as many two-byte values, and never faster than the bytes."""
    if not rate.by_value:
        return kernel.bytes_moved / (device.bandwidth_bytes_per_s * rate.bandwidth_share)
    recorded = recorded_device(rates)
    per_second = recorded.bandwidth_bytes_per_s * rate.bandwidth_share * issue_ratio(device, recorded)
    two_bytes = kernel.bytes_moved * min(1.0, 2 / tensor_bytes(TensorMeta((1,), kernel.dtype, "cuda")))
    best = rates.vector[str(AccessPattern.VECTORISED)].bandwidth_share
    return max(two_bytes / per_second, kernel.bytes_moved / (device.bandwidth_bytes_per_s * best))


def _matmul(kernel: Kernel, device: Device, rates: EagerRates) -> _Found | None:
    shape, rate = kernel.shape, rates.matmul
    if not isinstance(shape, MatmulShape) or not _is_half(kernel, device):
        return None
    floor_s, moving_s = rate.floor_us * _MICRO, _streaming_s(kernel, device, rates)
    if min(shape.columns, shape.depth) < _NARROW and shape.count == 1:
        return floor_s + moving_s, f"{kernel.kind}, narrow", BoundBy.BANDWIDTH
    units = _units(device)
    if shape.count > 1 and max(shape.rows, min(shape.columns, shape.depth)) <= _SMALL:
        if units is None:
            return None
        matrices_s = shape.count * rate.small_matrix_us * _MICRO / units
        return floor_s + max(matrices_s, moving_s), f"{kernel.kind}, batch of small ones", BoundBy.COMPUTE
    if kernel.pattern is not None:
        if units is None:
            return None
        share, word = _unaligned_share(kernel.pattern, shape, rate), str(kernel.pattern)
        busy = min(1.0, _tiles(shape) / units)  # a tile takes its time on a device that is mostly idle, too
        computing_s = kernel.flops / (device.peak(kernel.dtype) * share * busy)
    elif rate.shares:
        share, word = on_curve(rate.shares, kernel.flops), "by size"
        computing_s = kernel.flops / (device.peak(kernel.dtype) * share)
    else:
        return None
    bound_by = BoundBy.COMPUTE if computing_s > moving_s else BoundBy.BANDWIDTH
    return floor_s + max(computing_s, moving_s), f"{kernel.kind}, {word}", bound_by


def _is_half(kernel: Kernel, device: Device) -> bool:
    return kernel.dtype in ("bfloat16", "float16") and is_known(kernel.dtype, device)


def _streaming_s(kernel: Kernel, device: Device, rates: EagerRates) -> float:
    share = rates.vector[str(AccessPattern.VECTORISED)].bandwidth_share
    return kernel.bytes_moved / (device.bandwidth_bytes_per_s * share)


def _unaligned_share(pattern: AccessPattern, shape: MatmulShape, rate: MatmulRate) -> float:
    if pattern is AccessPattern.UNALIGNED_CHANNELS:
        return rate.unaligned_channels
    return rate.unaligned_odd if shape.columns % 2 or shape.depth % 2 else rate.unaligned_even


def _units(device: Device) -> float | None:
    """Compute units; None: not known."""
    units = device.facts.get("compute_units")
    return None if units is None else float(units)


def _tiles(shape: MatmulShape) -> int:
    return shape.count * math.ceil(shape.rows / _TILE) * math.ceil(shape.columns / _TILE)


def _attention(kernel: Kernel, device: Device, rate: AttentionRate) -> _Found | None:
    """Whole tiles of queries and keys; a causal mask halves them. One query over a cache is another kernel."""
    shape = kernel.shape
    if not isinstance(shape, AttentionShape) or shape.queries == 1 or not _is_half(kernel, device):
        return None
    padded = math.ceil(shape.queries / _TILE) * math.ceil(shape.keys / _TILE) * _TILE**2
    flops = 2 * padded * shape.heads * shape.sequences * (shape.width + shape.value_width)
    halved = flops / 2 if shape.is_causal else flops
    share = on_curve(rate.causal if shape.is_causal else rate.plain, shape.keys)
    seconds = rate.floor_us * _MICRO + halved / (device.peak(kernel.dtype) * share)
    return seconds, f"{kernel.kind}, flash", BoundBy.COMPUTE

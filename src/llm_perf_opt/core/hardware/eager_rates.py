"""What PyTorch's own kernels reach in eager mode, by vendor; figures and sources are in `eager_rates.toml`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import pairwise

from llm_perf_opt.core.hardware.device import Device
from llm_perf_opt.core.hardware.table import load_devices
from llm_perf_opt.core.reading import FileKind, as_record, parse_toml

_RATES_FILE = FileKind(name="eager rates file", fix="install llm-perf-opt again")
Curve = tuple[tuple[float, float], ...]  # size -> share, by size


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerBand:
    """A low, an expected and a high estimate: factors on an expected time, or microseconds."""

    low: float
    expected: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorRate:
    """Of one pattern of access. `by_value`: the time goes with the number of values and not with their bytes."""

    floor_us: float
    bandwidth_share: float
    by_value: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRate:
    """Products that no table lists: `unaligned` ones, stacks of tiny ones, and by `shares` of the peak all others.

    `table_gap_us` is what one launched alone takes beyond its time in a table, `one_row_gap_us` likewise for a vector
    times a matrix; None: there are no tables. `release_spread` is how far another release of the library may lie off.
    """

    floor_us: float
    unaligned_odd: float
    unaligned_even: float
    unaligned_channels: float
    small_matrix_us: float
    table_gap_us: EagerBand | None = None
    one_row_gap_us: EagerBand | None = None
    release_spread: EagerBand | None = None
    shares: Curve = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRate:
    """Shares of the peak by the number of keys."""

    floor_us: float
    plain: Curve
    causal: Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerRates:
    """The rates of one vendor's GPUs, recorded on `device`; `scaled_spread` holds for its other GPUs."""

    device: str
    spread: EagerBand
    scaled_spread: EagerBand
    product: ProductRate
    attention: AttentionRate
    vector: Mapping[str, VectorRate] = field(default_factory=dict)  # by pattern of access


@cache
def _by_vendor() -> Mapping[str, EagerRates]:
    document = parse_toml(resources.files(__package__).joinpath("eager_rates.toml").read_bytes(), _RATES_FILE)
    return {vendor: as_record(rates, EagerRates, _RATES_FILE) for vendor, rates in document.items()}


def eager_rates(device: Device) -> EagerRates | None:
    """The rates of a GPU; None: nothing was recorded on a GPU of its vendor."""
    return _by_vendor().get(device.vendor.lower())


def recorded_device(rates: EagerRates) -> Device:
    """The device that the rates were recorded on."""
    return load_devices().devices[rates.device]


def issue_ratio(device: Device, recorded: Device) -> float:
    """How many times as many values a device goes through: compute units and clock, or bandwidth where not known."""
    mine, theirs = (_issue(one) for one in (device, recorded))
    if mine is None or theirs is None:
        return device.bandwidth_bytes_per_s / recorded.bandwidth_bytes_per_s
    return mine / theirs


def clock_ratio(device: Device, recorded: Device) -> float:
    """How many times as fast a device is clocked; 1 where one of the clocks is not known."""
    mine, theirs = (device.facts.get("boost_mhz") for device in (device, recorded))
    return 1.0 if mine is None or theirs is None else float(mine) / float(theirs)


def _issue(device: Device) -> float | None:
    units, clock = device.facts.get("compute_units"), device.facts.get("boost_mhz")
    return None if units is None or clock is None else float(units) * float(clock)


def on_curve(curve: Curve, size: float) -> float:
    """The share at a size: log-linear between two points, and that of the last one beyond."""
    if size <= curve[0][0]:
        return curve[0][1]
    for (low, first), (high, second) in pairwise(curve):
        if size <= high:
            return first * math.exp(math.log(second / first) * math.log(size / low) / math.log(high / low))
    return curve[-1][1]

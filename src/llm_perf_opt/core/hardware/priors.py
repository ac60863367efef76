"""What real kernels and frameworks reach, as bands with their sources; the figures are in `priors.toml`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import pairwise

from llm_perf_opt.core.hardware.device import Device, load_devices
from llm_perf_opt.core.hardware.links import LinkKind
from llm_perf_opt.core.reading import FileKind, as_record, parse_toml

_PRIORS_FILE = FileKind(name="priors file", fix="install llm-perf-opt again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """A band that sources found on several devices: a share of a peak, or microseconds where the name says so."""

    low: float
    high: float
    source: str
    note: str = ""
    at_least: int = 0  # the number of rows or sequences from which on the band holds, in a list of bands

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ValueError(f"a band runs from low to high, not from {self.low} to {self.high}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficiencyPriors:
    """Every band a prediction rests on. The lists are ordered by size: the last that applies holds."""

    eager_launch_us: Prior
    matmul_floor_us: Prior
    attention_floor_us: Prior
    vector_floor_us: Prior
    weight_bandwidth: Prior
    vector_bandwidth: Prior
    attention_fraction: Prior
    attention_bandwidth: tuple[Prior, ...]
    small_matmul_fraction: tuple[Prior, ...]
    large_matmul_fraction: tuple[Prior, ...]

    def named(self) -> tuple[tuple[str, Prior], ...]:
        """Every band with its name in the file, entries of a list with the size at which they begin."""
        priors: list[tuple[str, Prior]] = []
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, Prior):
                priors.append((name, value))
            else:
                priors += [(f"{name} from {prior.at_least:,}", prior) for prior in value]
        return tuple(priors)


def applying(bands: tuple[Prior, ...], size: int) -> Prior:
    """The last band that begins at or below `size`; below the first, the first."""
    return next((prior for prior in reversed(bands) if prior.at_least <= size), bands[0])


@cache
def efficiency_priors() -> EfficiencyPriors:
    """The bands that come with the package."""
    document = parse_toml(resources.files(__package__).joinpath("priors.toml").read_bytes(), _PRIORS_FILE)
    for bands in document.values():
        for band in bands if isinstance(bands, list) else ():
            band["at_least"] = band.pop("rows", 0) or band.pop("sequences", 0)
    return as_record(document, EfficiencyPriors, _PRIORS_FILE)


_LINK_PRIORS_FILE = FileKind(name="link priors file", fix="install llm-perf-opt again")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPriors:
    """Every band that the time of a collective rests on. The lists are ordered by ranks: the last that applies holds.

    `fixed_us` is what a collective costs without any byte, `engine_fixed_us` the same of an engine's own kernels for
    short all-reduces, `step_factor` multiplies the latency of a link, and the fractions are shares of its rate in one
    direction.
    """

    fixed_us: Prior
    engine_fixed_us: Prior
    step_factor: Prior
    in_switch_fraction: Prior
    nvlink_fraction: tuple[Prior, ...]
    pcie_fraction: tuple[Prior, ...]
    infinity_fabric_fraction: tuple[Prior, ...]
    network_fraction: tuple[Prior, ...]

    def fraction(self, kind: LinkKind, ranks: int) -> Prior:
        """The share of a link that a group of this many ranks reaches."""
        by_kind = {
            LinkKind.NVLINK: self.nvlink_fraction,
            LinkKind.CHIP_TO_CHIP: self.nvlink_fraction,
            LinkKind.PCIE: self.pcie_fraction,
            LinkKind.INFINITY_FABRIC: self.infinity_fabric_fraction,
        }
        return applying(by_kind.get(kind, self.network_fraction), ranks)


@cache
def link_priors() -> LinkPriors:
    """The bands that come with the package."""
    document = parse_toml(resources.files(__package__).joinpath("link_priors.toml").read_bytes(), _LINK_PRIORS_FILE)
    for bands in document.values():
        for band in bands if isinstance(bands, list) else ():
            band["at_least"] = band.pop("ranks")
    return as_record(document, LinkPriors, _LINK_PRIORS_FILE)


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
class MatmulRate:
    """Matmuls that no table lists: `unaligned` ones, stacks of tiny ones, and by `shares` of the peak all others.

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
    matmul: MatmulRate
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
    mine, theirs = (_issue(which) for which in (device, recorded))
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
    """The share at a size: log-linear between two points, and constant beyond the last one."""
    if size <= curve[0][0]:
        return curve[0][1]
    for (low, first), (high, second) in pairwise(curve):
        if size <= high:
            return first * math.exp(math.log(second / first) * math.log(size / low) / math.log(high / low))
    return curve[-1][1]

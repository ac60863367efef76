"""What real kernels and frameworks reach, as bands with their sources; the figures are in `priors.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

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
        found: list[tuple[str, Prior]] = []
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, Prior):
                found.append((name, value))
            else:
                found += [(f"{name} from {prior.at_least:,}", prior) for prior in value]
        return tuple(found)


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
        """The share of a link that a group of so many ranks reaches."""
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

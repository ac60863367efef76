"""What collectives reach of a link, as bands with their sources; the figures are in `link_priors.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from llm_perf_opt.core.hardware.links import LinkKind
from llm_perf_opt.core.hardware.priors import Prior, applying
from llm_perf_opt.core.reading import FileKind, as_record, parse_toml

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

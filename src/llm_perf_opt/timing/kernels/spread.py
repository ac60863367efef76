"""How far measured times lie from ours: quantiles of rows that were left out, kept in `spread.json`.

`benchmarks/kernels/held_out.py` measures them and writes the file.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Annotated

import msgspec
import numpy as np

from llm_perf_opt.timing.kernels.systems import SystemForDevice
from llm_perf_opt.timing.kernels.times import CODE, ORIGINS, Estimate, TimeOrigin, Times

ANY_SYSTEM = "any"
MOST_DIMENSIONS = 3  # more unmeasured dimensions count as so many


class Family(StrEnum):
    """The kinds of kernels that have tables."""

    PRODUCTS = "products"
    ATTENTION = "attention"
    LATENT = "latent attention"
    EXPERTS = "experts"
    EXCHANGES = "exchanges"
    RECURRENT = "recurrent layers"


class HeldOutSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Measured over expected time: the 10 % and the 90 % quantile, and from how many rows."""

    system: str
    family: Family
    origin: TimeOrigin
    off_grid: int
    low: Annotated[float, msgspec.Meta(gt=0)]
    high: Annotated[float, msgspec.Meta(gt=0)]
    rows: int


class SpreadFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file: which tables it was measured on, by what, and the quantiles."""

    tables: str
    measured_by: str
    spreads: tuple[HeldOutSpread, ...]


@cache
def load_spreads() -> dict[tuple[str, Family, TimeOrigin, int], HeldOutSpread]:
    """System, family, origin and number of unmeasured dimensions -> quantiles."""
    text = resources.files("llm_perf_opt.timing.kernels").joinpath("spread.json").read_bytes()
    spreads = msgspec.json.decode(text, type=SpreadFile).spreads
    return {(one.system, one.family, one.origin, one.off_grid): one for one in spreads}


def spread_of(system: str, family: Family, origin: TimeOrigin, off_grid: int) -> HeldOutSpread | None:
    """The quantiles that come nearest: of this system, else of all; of as many dimensions, else of fewer or more.

    A measured row without quantiles of its own kind takes those of interpolation, which are wider.
    """
    known = load_spreads()
    first = min(off_grid, MOST_DIMENSIONS)
    nearest = [*range(first, -1, -1), *range(first + 1, MOST_DIMENSIONS + 1)]
    origins = (origin, TimeOrigin.INTERPOLATED) if origin is TimeOrigin.MEASURED else (origin,)
    for wanted in origins:
        for place in (system, ANY_SYSTEM):
            for dimensions in nearest:
                if (found := known.get((place, family, wanted, dimensions))) is not None:
                    return found
    return None


def with_spread(system: SystemForDevice, family: Family, estimate: Estimate) -> Times:
    """An estimate with the factors around it; NaN where nothing was measured of its kind."""
    low, high = np.full(len(estimate.seconds), np.nan), np.full(len(estimate.seconds), np.nan)
    pairs = estimate.origin_codes.astype(np.int64) * 256 + estimate.off_grid
    for pair in np.unique(pairs).tolist():
        origin = ORIGINS[pair // 256]
        if CODE[origin] < CODE[TimeOrigin.ROOFLINE]:
            name = system.system if system.is_own else ANY_SYSTEM
            if (spread := spread_of(name, family, origin, pair % 256)) is not None:
                here = pairs == pair
                low[here], high[here] = spread.low, spread.high
    return Times(estimate.seconds, estimate.origin_codes, estimate.off_grid, low, high)

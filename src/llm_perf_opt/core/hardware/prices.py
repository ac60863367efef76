"""What it costs to rent a device for an hour, as a provider published it on a day; the figures are in `prices.toml`.

A price is one offer of one provider, not the market: it compares devices and gives an order of magnitude. A device
without a row has no known price, which is not a price of zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from types import MappingProxyType

from llm_perf_opt.core.reading import FileKind, as_record, parse_toml
from llm_perf_opt.core.report import Level, Note

_PRICES_FILE = FileKind(name="price table", fix="install llm-perf-opt again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One device for one hour on demand, with its share of the host; storage, traffic and taxes are extra."""

    device: str  # an id of the device table
    per_hour: float
    currency: str
    provider: str
    instance: str  # as the provider calls it, how many devices it has, and where
    as_of: date
    source: str

    def __post_init__(self) -> None:
        if self.per_hour <= 0:
            raise ValueError(f"a price is positive, not {self.per_hour}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _PriceTable:
    prices: dict[str, Price]


@cache
def shipped_prices() -> Mapping[str, Price]:
    """The prices that come with the package, by the id of the device; one without a published price is not in it."""
    document = parse_toml(resources.files(__package__).joinpath("prices.toml").read_bytes(), _PRICES_FILE)
    rows = {device: {**row, "device": device} for device, row in document["prices"].items()}
    return MappingProxyType(as_record({"prices": rows}, _PriceTable, _PRICES_FILE).prices)


def hourly_price(device: str, given: Mapping[str, float] | None = None) -> float | None:
    """What was given for the device, else what the table of list prices has; None: neither."""
    if given is not None and device in given:
        return given[device]
    listed = shipped_prices().get(device)
    return None if listed is None else listed.per_hour


def price_notes(used: Mapping[str, float | None]) -> Iterator[Note]:
    """Where each price that was used is from, by device, and which device has none."""
    origins: dict[str, list[str]] = {}
    for device, per_hour in used.items():
        row = shipped_prices().get(device)
        if row is not None and per_hour == row.per_hour:
            origins.setdefault(f"{row.provider} on {row.as_of}", []).append(f"{device} ${row.per_hour:g}")
    if origins:
        texts = (f"{', '.join(names)} ({origin})" for origin, names in origins.items())
        yield Note(f"On-demand list prices per GPU hour: {'; '.join(texts)}. --price sets your own.")
    missing = [device for device, per_hour in used.items() if per_hour is None]
    if missing:
        yield Note(f"No list price is known for {', '.join(missing)}: set one with --price.", Level.WARNING)

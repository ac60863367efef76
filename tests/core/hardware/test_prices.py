"""Prices are of known devices, dated, sourced, and in the order that the devices have."""

from __future__ import annotations

from datetime import date
from itertools import pairwise

import pytest

from llm_perf_opt.core.hardware import load_devices
from llm_perf_opt.core.hardware.prices import Price, shipped_prices

PRICES = shipped_prices()


@pytest.mark.parametrize("device", PRICES)
def test_a_row_says_what_was_offered_when_and_where_it_was_read(device: str) -> None:
    price = PRICES[device]
    assert device in load_devices().devices
    assert price.device == device
    assert price.currency == "USD"
    assert price.provider and price.source.startswith("https://")
    assert date(2026, 1, 1) <= price.as_of <= date(2027, 12, 31)
    assert "1 GPU)" in price.instance or "in all)" in price.instance or "1 chip)" in price.instance
    assert 0.1 < price.per_hour < 20, "of one device by the hour, not of an instance or of a month"


def test_the_usual_devices_of_a_server_have_a_price() -> None:
    usual = {"l4", "l40s", "a10", "a100-sxm-40g", "a100-sxm-80g", "h100-sxm", "h200-sxm", "b200-sxm", "gb200", "mi300x"}
    assert usual <= PRICES.keys()


def test_a_device_that_nobody_prices_has_no_row() -> None:
    """Unknown is not free, and no other device stands in for it."""
    assert {"gb300", "mi325x", "mi355x", "h800-sxm", "apple-m4-max-40"} & PRICES.keys() == set()


def test_of_one_provider_the_larger_device_costs_more() -> None:
    rising = ("l4", "l40", "l40s", "a100-pcie-80g", "a100-sxm-80g", "h100-pcie", "h100-sxm", "h200-sxm", "b200-sxm")
    assert len({(PRICES[device].provider, PRICES[device].as_of) for device in rising}) == 1
    assert all(PRICES[less].per_hour < PRICES[more].per_hour for less, more in pairwise(rising))


def test_an_instance_of_several_devices_is_divided_by_their_number() -> None:
    assert PRICES["gb200"].per_hour == pytest.approx(42 / 4)
    assert PRICES["v100-sxm2-32g"].per_hour == pytest.approx(31.212 / 8)
    assert PRICES["tpu-v5p"].per_hour == pytest.approx(16.8 / 4)


def test_a_price_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        Price(
            device="l4",
            per_hour=0,
            currency="USD",
            provider="P",
            instance="I",
            as_of=date(2026, 8, 22),
            source="https://example.org",
        )


def test_the_table_cannot_be_changed_by_its_readers() -> None:
    with pytest.raises(TypeError):
        PRICES["l4"] = PRICES["a10"]  # type: ignore[index]

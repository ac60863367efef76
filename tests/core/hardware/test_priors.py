"""The bands are what their sources say: those from kernel tables are recomputed here from the tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.hardware.priors import Prior, applying, efficiency_priors

FACTS = json.loads((Path(__file__).parents[2] / "facts" / "published.json").read_text("utf-8"))["efficiency_priors"]
SYSTEMS: dict[str, dict[str, Any]] = FACTS["kernel_tables_from_aiconfigurator"]["systems"]
SMALL, LARGE = "gemm_bf16_small_1-4M_weights", "gemm_bf16_large_>60M_weights"
PREFILL, DECODE = "prefill_attention_mha8_12_16_hd128_causal", "decode_attention_mha8_hd128"
PRIORS = efficiency_priors()


def floor_us(tables: dict[str, Any]) -> float:
    """What one row takes beyond reading the weights at the bandwidth that large matmuls reach."""
    one_row = tables[SMALL]["1"]
    return float(one_row["us"] * (1 - one_row["mbu"] / tables[LARGE]["1"]["mbu"]))


def runs_from_cache(tables: dict[str, Any]) -> bool:
    return any(tables[SMALL][rows]["mbu"] > tables[LARGE][rows]["mbu"] for rows in ("2", "8", "16", "32"))


def span(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def band(prior: Prior) -> tuple[float, float]:
    return prior.low, prior.high


def test_the_fixed_cost_of_a_matmul() -> None:
    floors = [floor_us(tables) for tables in SYSTEMS.values() if not runs_from_cache(tables)]
    assert len(floors) == 5
    assert band(PRIORS.matmul_floor_us) == pytest.approx(span(floors), abs=0.005)


@pytest.mark.parametrize("prior", PRIORS.small_matmul_fraction, ids=lambda prior: str(prior.at_least))
def test_the_share_of_the_peak_that_small_matmuls_reach(prior: Prior) -> None:
    shares = []
    for tables in SYSTEMS.values():
        entry = tables[SMALL][str(prior.at_least)]
        shares.append(entry["mfu"] * entry["us"] / (entry["us"] - floor_us(tables)))
    assert band(prior) == pytest.approx(span(shares), abs=0.001)


@pytest.mark.parametrize("prior", PRIORS.large_matmul_fraction, ids=lambda prior: str(prior.at_least))
def test_the_share_of_the_peak_that_large_matmuls_reach(prior: Prior) -> None:
    entries = [tables[LARGE][str(prior.at_least)] for tables in SYSTEMS.values()]
    assert prior.low == min(entry["mfu"] for entry in entries)
    assert prior.high == max(entry["max_mfu_any_shape"] for entry in entries)


def test_the_bandwidth_at_which_weights_stream() -> None:
    assert band(PRIORS.weight_bandwidth) == span([tables[LARGE]["1"]["mbu"] for tables in SYSTEMS.values()])


@pytest.mark.parametrize("prior", PRIORS.attention_bandwidth, ids=lambda prior: str(prior.at_least))
def test_the_bandwidth_at_which_a_cache_is_read(prior: Prior) -> None:
    lowest = min(tables[DECODE][f"(8, {prior.at_least}, 8192)"]["mbu"] for tables in SYSTEMS.values())
    assert prior.low == lowest
    assert prior.high == max(tables[DECODE]["(8, 128, 8192)"]["mbu"] for tables in SYSTEMS.values())


def test_the_share_of_the_peak_and_the_fixed_cost_of_attention() -> None:
    long = [entry["mfu"] for tables in SYSTEMS.values() for key, entry in tables[PREFILL].items() if "8192" in key]
    flash = next(entry for entry in FACTS["general"] if entry["what"] == "FlashAttention")["values"]
    assert PRIORS.attention_fraction.low == min(long)
    assert PRIORS.attention_fraction.high == flash["FA3 H100 fp16 best"] > max(long)
    shortest = min(entry["us"] for tables in SYSTEMS.values() for entry in tables[DECODE].values())
    one_of_256 = [tables[PREFILL][f"({heads}, 1, 256)"]["us"] for tables in SYSTEMS.values() for heads in (8, 12, 16)]
    assert band(PRIORS.attention_floor_us) == (shortest, max(one_of_256))


def test_the_bandwidth_of_vector_ops() -> None:
    assert PRIORS.vector_bandwidth.high == max(tables[DECODE]["(8, 128, 8192)"]["mbu"] for tables in SYSTEMS.values())


def test_every_band_names_its_source() -> None:
    assert all(prior.source for _, prior in PRIORS.named())
    assert len(PRIORS.named()) == 7 + 4 + 4 + 4


def test_the_last_band_that_begins_at_or_below_the_size_applies() -> None:
    bands = tuple(Prior(low=0, high=1, source="made up", at_least=size) for size in (8, 32))
    assert [applying(bands, size).at_least for size in (1, 8, 31, 32, 1000)] == [8, 8, 8, 32, 32]


def test_a_band_that_is_upside_down_is_refused() -> None:
    with pytest.raises(ValueError, match="from low to high"):
        Prior(low=2, high=1, source="made up")

from __future__ import annotations

import pytest

from llm_perf_opt.core import units


@pytest.mark.parametrize(
    ("flops", "text"),
    [
        (0, "0 FLOP"),
        (999, "999 FLOP"),
        (1000, "1.00 kFLOP"),
        (999_499, "999 kFLOP"),
        (999_500, "1.00 MFLOP"),  # not "1000 kFLOP"
        (1_139_967_033_344, "1.14 TFLOP"),
        (388_149_837_824, "388 GFLOP"),
        (12_345_678_901, "12.3 GFLOP"),
        (9_996_000, "10.0 MFLOP"),  # not "10.00"
        (5 * 10**21, "5000 EFLOP"),
    ],
)
def test_tera_is_ten_to_the_twelfth(flops: int, text: str) -> None:
    assert units.format_flops(flops) == text


def test_a_mac_is_named_as_one() -> None:
    assert units.format_macs(569_983_516_672) == "570 GMAC"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (61_440, "60.0 KiB"),  # the KV cache of one DeepSeek-OCR token in bfloat16
        (1023 * 1024 + 600, "1.00 MiB"),  # 1023.59 KiB, not "1024 KiB"
        (6_672_212_480, "6.21 GiB"),  # 3,336,106,240 parameters of two bytes; 6.67 GB in decimal
        (2**40, "1.00 TiB"),
    ],
)
def test_gibi_is_two_to_the_thirtieth(size_bytes: int, text: str) -> None:
    assert units.format_bytes(size_bytes) == text


def test_a_short_count_has_three_digits() -> None:
    assert [units.format_short_count(count) for count in (0, 999, 1280, 3_336_106_240)] == [
        "0",
        "999",
        "1.28 k",
        "3.34 G",
    ]


def test_parameters_are_told_as_people_tell_them() -> None:
    sizes = (562_000_000, 3_336_106_240, 671_026_404_352, 1_026_408_232_448)
    assert [units.format_parameters(count) for count in sizes] == ["562M", "3.34B", "671B", "1.03T"]


def test_counts_are_exact() -> None:
    assert units.format_count(3_336_106_240) == "3,336,106,240"
    assert units.format_count(2**53 + 1) == "9,007,199,254,740,993"  # no float holds it


def test_a_mean_of_counts_has_three_digits() -> None:
    assert [units.format_count(count) for count in (4.0, 10 / 3, 1e6 / 3)] == ["4", "3.33", "333,333"]


def test_bandwidth_has_decimal_prefixes() -> None:
    assert [units.format_bytes_per_s(rate) for rate in (0, 3.35e12, 819.2e9)] == ["0 B/s", "3.35 TB/s", "819 GB/s"]


def test_intensity_has_no_prefix() -> None:
    shown = [units.format_flops_per_byte(value) for value in (0, 0.25, 1.0, 295.34, 12_345.6)]
    assert shown == ["0 FLOP/B", "0.25 FLOP/B", "1.00 FLOP/B", "295 FLOP/B", "12,346 FLOP/B"]


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0, "0 %"),
        (0.4127, "41.3 %"),
        (1, "100 %"),
        (0.0999951, "10.0 %"),  # not "10.00 %"
        (12.5, "1,250 %"),
        (-0.0523, "-5.23 %"),
        (0.000123, "0.0123 %"),
    ],
)
def test_a_ratio_of_one_is_the_whole(ratio: float, text: str) -> None:
    assert units.format_ratio(ratio) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (90, "90.0 s"),
        (1.5, "1.50 s"),
        (0.9996, "1.00 s"),  # not "1000 ms"
        (0.2184, "218 ms"),
        (12.3e-6, "12.3 us"),
        (3e-9, "3.00 ns"),
        (4e-12, "4e-12 s"),
    ],
)
def test_durations_take_the_unit_that_fits(seconds: float, text: str) -> None:
    assert units.format_seconds(seconds) == text

"""How numbers are printed. Tera is 10^12, gibi is 2^30; a value stays an integer until it arrives here."""

from __future__ import annotations

_DECIMAL_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_BINARY_PREFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_BEYOND_PREFIXES = 1e9  # no prefix makes it short, so it has an exponent
_SECOND_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def macs_of(flops: int | None) -> int | None:
    """Multiply-adds, each of which is two FLOPs."""
    return None if flops is None else flops // 2


def format_count(count: float) -> str:
    """`3,336,106,240`: exact, with thousands separators; a mean of counts has three significant digits."""
    if isinstance(count, int):
        return f"{count:,}"
    return f"{count:,.0f}" if count.is_integer() else _significant(count)


def format_number_of(count: int, noun: str) -> str:
    """`1 time`, `2,000 times`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_short_count(count: float) -> str:
    """`3.34 G`: decimal prefixes, three significant digits, for a picture without room for every digit."""
    return _scaled(count, 1000, _DECIMAL_PREFIXES, "").rstrip()


def format_parameters(count: float) -> str:
    """`671B`, `574M`: as people speak of the size of a model."""
    return format_short_count(count).replace(" ", "").replace("G", "B")


def format_flops(flops: float) -> str:
    """`4.58 TFLOP`: decimal prefixes, three significant digits."""
    return _scaled(flops, 1000, _DECIMAL_PREFIXES, "FLOP")


def format_flops_per_s(rate: float) -> str:
    """`61.4 TFLOP/s`: decimal prefixes, three significant digits."""
    return _scaled(round(rate), 1000, _DECIMAL_PREFIXES, "FLOP/s")


def format_macs(macs: float) -> str:
    """`2.29 TMAC`: multiply-adds, each of which is two FLOPs."""
    return _scaled(macs, 1000, _DECIMAL_PREFIXES, "MAC")


def format_bytes(size_bytes: float) -> str:
    """`6.21 GiB`: binary prefixes, three significant digits."""
    return _scaled(size_bytes, 1024, _BINARY_PREFIXES, "B")


def format_bytes_per_s(rate: float) -> str:
    """`3.35 TB/s`: decimal prefixes, as makers of memory state it; three significant digits."""
    return _scaled(round(rate), 1000, _DECIMAL_PREFIXES, "B/s")


def format_flops_per_byte(intensity: float) -> str:
    """`295 FLOP/B`: three significant digits, no prefixes."""
    return f"{_significant(intensity)} FLOP/B"


def format_ratio(ratio: float) -> str:
    """`41.3 %`: one is the whole; three significant digits."""
    return f"{_significant(ratio * 100)} %"


def format_seconds(seconds: float) -> str:
    """`218 ms`: the largest unit that leaves a figure of at least one, three significant digits."""
    for step, unit in _SECOND_STEPS:
        if abs(seconds) >= step * 0.9995:  # 999.6 ms would print as 1000 ms
            return f"{_three_digits(seconds / step)} {unit}"
    return "0 s" if seconds == 0 else f"{seconds:.2g} s"


def _scaled(value: float, base: int, prefixes: tuple[str, ...], unit: str) -> str:
    """Exact below `base`, otherwise with the prefix that leaves a figure from 1 to just under `base`."""
    if abs(value) < base:
        return f"{format_count(value)} {unit}"
    exponent = 1
    while exponent < len(prefixes) - 1 and abs(value) / base**exponent >= base - 0.5:  # 999.5 k would print as 1000 k
        exponent += 1
    return f"{_three_digits(value / base**exponent)} {prefixes[exponent]}{unit}"


def _significant(value: float) -> str:
    """Three significant digits at any size; 0 is `0`, and only what is below a ten-thousandth has an exponent."""
    if value == 0 or abs(value) >= 0.9995:
        is_long = 999.5 <= abs(value) < _BEYOND_PREFIXES
        return f"{value:,.0f}" if value == 0 or is_long else _three_digits(value)
    return f"{value:.3g}"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= _BEYOND_PREFIXES:
        return f"{value:.3g}"
    decimals = 2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0
    return f"{value:.{decimals}f}"

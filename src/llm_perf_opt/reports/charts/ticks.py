"""Round values for an axis, and how they read: `200 GFLOP`, `1.5 GiB`, `50 ms`, `40 %`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from llm_perf_opt.document import Kind
from llm_perf_opt.reports.charts.scale import Range

_DECIMAL = tuple((10.0 ** (3 * power), prefix) for power, prefix in enumerate(("", "k", "M", "G", "T", "P", "E")))
_BINARY = tuple((2.0 ** (10 * power), prefix) for power, prefix in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")))
_SECONDS = ((1e-9, "n"), (1e-6, "u"), (1e-3, "m"), (1.0, ""))
_PER_CENT = ((0.01, ""),)
Units = tuple[tuple[float, str], ...]
# What stands behind the number, and its multiples from small to large. Intensity has its unit in the name of the axis.
_UNITS: MappingProxyType[Kind, tuple[str, Units]] = MappingProxyType(
    {
        Kind.FLOPS: ("FLOP", _DECIMAL),
        Kind.MACS: ("MAC", _DECIMAL),
        Kind.BYTES: ("B", _BINARY),
        Kind.SECONDS: ("s", _SECONDS),
        Kind.FLOPS_PER_S: ("FLOP/s", _DECIMAL),
        Kind.BYTES_PER_S: ("B/s", _DECIMAL),
        Kind.RATIO: ("%", _PER_CENT),
    }
)
_COUNTED = ("", _DECIMAL)
_PLAIN_COUNT = 10_000  # below it a count is written out
_LARGEST, _FINEST = 1e6, 7  # beyond the units, and finer than anyone reads: with an exponent
_STEPS = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Tick:
    """A value on an axis and its label."""

    value: float
    text: str


def ticks(kind: Kind, shown: Range, most: int) -> list[Tick]:
    """At most `most` round values inside the range, ascending."""
    if shown.is_log:
        found = _log_ticks(kind, shown, most)
        if len(found) > 1 or most < 2:
            return found
    return _even_ticks(kind, shown, most)


def fitting_ticks(kind: Kind, shown: Range, most: int, fits: Callable[[list[Tick]], bool]) -> list[Tick]:
    """As many as have room, which `fits` decides; none if not even one has."""
    tries = (ticks(kind, shown, count) for count in range(most, 0, -1))
    return next((found for found in tries if fits(found)), [])


def _even_ticks(kind: Kind, shown: Range, most: int) -> list[Tick]:
    magnitude = max(abs(shown.low), abs(shown.high))
    is_plain = kind not in _UNITS and magnitude < _PLAIN_COUNT
    unit, name = (1.0, "") if is_plain else _unit_for(kind, magnitude)
    step = _round_step((shown.high - shown.low) / unit / max(most, 1))
    if kind is Kind.COUNT and unit == 1:
        step = max(step, 1.0)
    first = math.ceil(shown.low / unit / step - 1e-9)
    last = math.floor(shown.high / unit / step + 1e-9)
    if last - first + 1 > most:
        first += 1  # a step that fits the length may still have both ends inside
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    values = [place * step for place in range(first, last + 1)]
    return [Tick(value * unit, f"{_written(value, decimals)} {name}".rstrip() if value else "0") for value in values]


def _log_ticks(kind: Kind, shown: Range, most: int) -> list[Tick]:
    """Powers of ten, of two for bytes; in a short range also 2 and 5 of each ten."""
    base = 2 if kind is Kind.BYTES else 10
    lowest = math.ceil(math.log(shown.low, base) - 1e-9)
    highest = math.floor(math.log(shown.high, base) + 1e-9)
    count = highest - lowest + 1
    if base == 10 and count < 3 and most >= 4:
        fine = [digit * 10.0**power for power in range(lowest - 1, highest + 1) for digit in (1, 2, 5)]
        inside = [value for value in fine if shown.low <= value <= shown.high]
        if 1 < len(inside) <= most:
            return [Tick(value, _plain(kind, value)) for value in inside]
    stride = next((stride for stride in (1, 2, 3, 5, 6, 10, 20, 30) if math.ceil(count / stride) <= most), count)
    first = math.ceil(lowest / stride) * stride
    return [
        Tick(float(base) ** power, _plain(kind, float(base) ** power)) for power in range(first, highest + 1, stride)
    ]


def _written(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}" if abs(value) < _LARGEST and decimals < _FINEST else f"{value:.4g}"


def _plain(kind: Kind, value: float) -> str:
    unit, name = _unit_for(kind, value)
    return f"{value / unit:,.6g} {name}".rstrip()


def _unit_for(kind: Kind, magnitude: float) -> tuple[float, str]:
    """The largest multiple of the unit that leaves a figure of at least one, or the smallest."""
    name, multiples = _UNITS.get(kind, _COUNTED)
    unit, prefix = next((pair for pair in reversed(multiples) if magnitude >= pair[0] * (1 - 1e-9)), multiples[0])
    return unit, prefix + name


def _round_step(least: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))

"""What a chart is drawn into, the legend over it, and the colour of each name."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from types import MappingProxyType

from llm_perf_opt.core.report import Axis, Kind, Report
from llm_perf_opt.formats.svg_style import escaped, number, rectangle, stage_colours, text
from llm_perf_opt.formats.visible_text import fitted, text_width, visible

NARROW = 340.0  # pixels, for a phone
WIDE = 860.0
_LINE = 20.0
_SIGN = 14.0


@dataclass(frozen=True, slots=True)
class Picture:
    """Elements, the room they take, and what could not be drawn."""

    elements: str
    width: float
    height: float
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend; `sign` is `block`, `line`, `dashed` or `dot`."""

    name: str
    hue: int
    sign: str = "block"


@dataclass(frozen=True, slots=True)
class Legend:
    """Elements, and the height they take."""

    elements: str
    height: float


def legend(keys: Sequence[Key], width: float) -> Legend:
    """One after the other, on the next line where they do not fit."""
    parts: list[str] = []
    x, y = 0.0, _LINE - 6
    for key in keys:
        name = shortened_label(visible(key.name), width - _SIGN - 8)
        length = _SIGN + 6 + text_width(name, SIZE)
        if x and x + length > width:
            x, y = 0.0, y + _LINE
        parts.append(hued(key.hue, _sign(key.sign, x, y)) + text(x + _SIGN + 6, y, name, SIZE, classes="key"))
        x += length + 18
    return Legend("".join(parts), y + 10 if keys else 0.0)


def hued(hue: int, elements: str, title: str = "") -> str:
    """Elements in one colour of the palette, with a tooltip."""
    tooltip = f"<title>{escaped(title)}</title>" if title else ""
    return f'<g class="hue-{hue}">{tooltip}{elements}</g>'


def nothing_to_draw(width: float) -> Picture:
    """In place of a chart without a single number."""
    return Picture(text(width / 2, 40, "Nothing to draw.", SIZE, classes="soft", anchor="middle"), width, 70)


def _sign(sign: str, x: float, y: float) -> str:
    if sign == "block":
        return rectangle(x, y - 10, 12, 12, "bar", radius=2)
    if sign == "dot":
        return f'<circle class="dot" cx="{number(x + 6)}" cy="{number(y - 4)}" r="4"/>'
    return f'<path class="curve {sign}" d="M{number(x)} {number(y - 4)}h14"/>'


HUES = 7  # colours of the palette; beyond that they come round again


@dataclass(frozen=True, slots=True)
class Hues:
    """Stage -> its number in the palette."""

    stages: dict[str, int] = field(default_factory=dict)

    def know(self, names: Sequence[str]) -> bool:
        """Whether they are stages: at least half of them stand in the graph, and there are colours for all."""
        distinct = set(names)
        return 0 < len(distinct) <= HUES and 2 * len(distinct & self.stages.keys()) >= len(distinct)

    def of(self, names: Sequence[str]) -> list[int]:
        """One number each: stages have theirs and other names one that is free; without stages they count up."""
        known = {name: self.stages[name] for name in names if name in self.stages} if self.know(names) else {}
        free = cycle([number for number in range(HUES) if number not in known.values()] or range(HUES))
        numbers = {name: known[name] if name in known else next(free) for name in dict.fromkeys(names)}
        return [numbers[name] for name in names]


def hues_of(report: Report) -> Hues:
    """From the first graph in the report or its chapters; without one every chart counts for itself."""
    if report.graph is not None:
        return Hues({stage: number % HUES for number, stage in enumerate(stage_colours(report.graph))})
    return next((hues for hues in map(hues_of, report.chapters) if hues.stages), Hues())


_MARGIN = 0.05  # of the range, that stays free beyond the data
_ROUNDING = 1e-12  # of its values: a difference this small has no steps in it
_LEAST = sys.float_info.min / sys.float_info.epsilon  # what is below it ends at zero when it is divided into steps


@dataclass(frozen=True, slots=True)
class Range:
    """What an axis shows; `low` is below `high`, and above zero where the axis is logarithmic."""

    low: float
    high: float
    is_log: bool = False
    base: int = 10  # of the powers that a logarithmic axis names

    def shows(self, value: float) -> bool:
        """A logarithmic axis has no place for zero and below."""
        return value > 0 or not self.is_log


@dataclass(frozen=True, slots=True)
class Scale:
    """Puts `range` between the pixels `start` and `end`, which may run either way."""

    range: Range
    start: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a value; one beyond the range lands on its edge."""
        low, high = self.range.low, self.range.high
        inside = min(max(value, low), high)
        if self.range.is_log:
            low, high, inside = math.log(low), math.log(high), math.log(inside)
        part = (inside - low) / (high - low)
        return self.start + part * (self.end - self.start)


def range_from_zero(values: Sequence[float]) -> Range:
    """Holds zero and every value, with room above the highest: for lengths and heights."""
    low, high = min([0.0, *values]), max([0.0, *values])
    if _is_a_point(low, high):
        return Range(0.0, 1.0)
    margin = (high - low) * _MARGIN
    return Range(low - margin if low < 0 else low, high + margin if high > 0 else high)


def range_around(values: Sequence[float], *, is_padded: bool) -> Range:
    """From the lowest to the highest value: for places along an axis."""
    low, high = min(values), max(values)
    if _is_a_point(low, high):
        around = max(abs(low), abs(high)) / 2
        margin = around if around > _LEAST else 1.0
        return Range(low - margin, high + margin)
    margin = (high - low) * _MARGIN if is_padded else 0.0
    return Range(low - margin, high + margin)


def log_range(values: Sequence[float], base: int = 10) -> Range:
    """Holds every value above zero with room on both sides; the others have no place on it."""
    shown = [value for value in values if value > 0] or [1.0]
    low, high = min(shown), max(shown)
    factor = max(math.exp((math.log(high) - math.log(low)) * _MARGIN), 1.05) if high > low else 4.0
    low = max(low / factor, sys.float_info.min)
    return Range(low, min(max(high, low) * factor, sys.float_info.max), is_log=True, base=base)


def _is_a_point(low: float, high: float) -> bool:
    """Whether too little lies between the two to be divided into steps."""
    return high - low <= max(_ROUNDING * max(abs(low), abs(high)), _LEAST)


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
        log_ticks = _log_ticks(kind, shown, most)
        if len(log_ticks) > 1 or most < 2:
            return log_ticks
    return _even_ticks(kind, shown, most)


def fitting_ticks(kind: Kind, shown: Range, most: int, fits: Callable[[list[Tick]], bool]) -> list[Tick]:
    """As many as have room, which `fits` decides; none if not even one has."""
    tries = (ticks(kind, shown, count) for count in range(most, 0, -1))
    return next((tried for tried in tries if fits(tried)), [])


def _even_ticks(kind: Kind, shown: Range, most: int) -> list[Tick]:
    magnitude = max(abs(shown.low), abs(shown.high))
    is_plain = kind not in _UNITS and magnitude < _PLAIN_COUNT
    unit, name = (1.0, "") if is_plain else _unit_for(kind, magnitude)
    step = _round_step((shown.high - shown.low) / unit / max(most, 1))
    if kind is Kind.COUNT and unit == 1:
        step = max(step, 1.0)
    slack = 1e-9 * min((shown.high - shown.low) / unit / step, 1.0)
    first = math.ceil(shown.low / unit / step - slack)
    last = math.floor(shown.high / unit / step + slack)
    if last - first + 1 > most:
        first += 1  # a step that fits the length may still have both ends inside
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    values = [place * step for place in range(first, last + 1)]
    return [Tick(value * unit, f"{_written(value, decimals)} {name}".rstrip() if value else "0") for value in values]


def _log_ticks(kind: Kind, shown: Range, most: int) -> list[Tick]:
    """Powers of ten, of two for bytes; in a short range also 2 and 5 of each ten."""
    base = 2 if kind is Kind.BYTES else shown.base
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
    name = _whole if kind is Kind.COUNT and base == 2 and lowest >= 0 else _plain
    return [Tick(float(base) ** power, name(kind, float(base) ** power)) for power in range(first, highest + 1, stride)]


def _written(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}" if abs(value) < _LARGEST and decimals < _FINEST else f"{value:.4g}"


def _whole(kind: Kind, value: float) -> str:
    """A power of two has every digit: 131.072 k would be none that anyone knows."""
    return f"{value:,.0f}" if value < _LARGEST else _plain(kind, value)


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


SIZE = 12.0  # of every text in a chart
AXIS_HEIGHT = 22.0  # of the labels under a chart
_GAP = 10.0
_MOST_ACROSS = 10
_PIXELS_PER_TICK_UP = 42.0


def axis_name(axis: Axis) -> str:
    """With the unit, where the labels have none."""
    return f"{axis.name} (FLOP/B)" if axis.kind is Kind.FLOPS_PER_BYTE else axis.name


def shortened_label(text: str, room: float) -> str:
    """What fits into `room`, with a little to spare: a picture that is scaled rounds each letter anew."""
    return fitted(text, SIZE, room * 0.98)


def ticks_up(kind: Kind, shown: Range, height: float) -> list[Tick]:
    """Labels for an upright axis of this height."""
    return ticks(kind, shown, max(2, int(height / _PIXELS_PER_TICK_UP)))


def widest(shown: Sequence[Tick]) -> float:
    """Of the labels."""
    return max((text_width(tick.text, SIZE) for tick in shown), default=0.0)


def bottom_axis(kind: Kind, scale: Scale, top: float, bottom: float, width: float) -> str:
    """Upright grid lines and the labels under them, inside a picture of this width."""

    def middle(tick: Tick) -> float:
        half = text_width(tick.text, SIZE) / 2 + 1
        return min(max(scale.at(tick.value), half), width - half)

    def fits(shown: list[Tick]) -> bool:
        edges = [(middle(tick), text_width(tick.text, SIZE) / 2) for tick in shown]
        return all(
            right - right_half - left - left_half >= _GAP for (left, left_half), (right, right_half) in pairwise(edges)
        )

    shown = fitting_ticks(kind, scale.range, _MOST_ACROSS, fits)
    lines = [upright(scale.at(tick.value), top, bottom, "grid") for tick in shown]
    labels = [text(middle(tick), bottom + 16, tick.text, SIZE, classes="soft tick", anchor="middle") for tick in shown]
    return "".join([*lines, *labels])


def left_axis(shown: Sequence[Tick], scale: Scale, left: float, right: float) -> str:
    """Level grid lines and the labels left of them."""
    lines = [level(scale.at(tick.value), left, right, "grid") for tick in shown]
    labels = [
        text(left - 8, scale.at(tick.value) + 4, tick.text, SIZE, classes="soft tick", anchor="end") for tick in shown
    ]
    return "".join([*lines, *labels])


def upright(x: float, top: float, bottom: float, classes: str) -> str:
    """A line from top to bottom."""
    return f'<path class="{classes}" d="M{number(x)} {number(top)}V{number(bottom)}"/>'


def level(y: float, left: float, right: float, classes: str) -> str:
    """A line from left to right."""
    return f'<path class="{classes}" d="M{number(left)} {number(y)}H{number(right)}"/>'

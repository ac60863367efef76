"""The two axes of a chart: grid lines, and labels that never touch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from llm_perf_opt.document import Axis, Kind
from llm_perf_opt.reports.charts.scale import Range, Scale
from llm_perf_opt.reports.charts.ticks import Tick, fitting_ticks, ticks
from llm_perf_opt.reports.svg_shapes import number, text
from llm_perf_opt.reports.text_width import fitted, text_width

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


def widest(found: Sequence[Tick]) -> float:
    """Of the labels."""
    return max((text_width(tick.text, SIZE) for tick in found), default=0.0)


def bottom_axis(kind: Kind, scale: Scale, top: float, bottom: float, width: float) -> str:
    """Upright grid lines and the labels under them, inside a picture of this width."""

    def middle(tick: Tick) -> float:
        half = text_width(tick.text, SIZE) / 2 + 1
        return min(max(scale.at(tick.value), half), width - half)

    def fits(found: list[Tick]) -> bool:
        edges = [(middle(tick), text_width(tick.text, SIZE) / 2) for tick in found]
        return all(
            right - right_half - left - left_half >= _GAP for (left, left_half), (right, right_half) in pairwise(edges)
        )

    found = fitting_ticks(kind, scale.range, _MOST_ACROSS, fits)
    lines = [upright(scale.at(tick.value), top, bottom, "grid") for tick in found]
    labels = [text(middle(tick), bottom + 16, tick.text, SIZE, classes="soft tick", anchor="middle") for tick in found]
    return "".join([*lines, *labels])


def left_axis(found: Sequence[Tick], scale: Scale, left: float, right: float) -> str:
    """Level grid lines and the labels left of them."""
    lines = [level(scale.at(tick.value), left, right, "grid") for tick in found]
    labels = [
        text(left - 8, scale.at(tick.value) + 4, tick.text, SIZE, classes="soft tick", anchor="end") for tick in found
    ]
    return "".join([*lines, *labels])


def upright(x: float, top: float, bottom: float, classes: str) -> str:
    """A line from top to bottom."""
    return f'<path class="{classes}" d="M{number(x)} {number(top)}V{number(bottom)}"/>'


def level(y: float, left: float, right: float, classes: str) -> str:
    """A line from left to right."""
    return f'<path class="{classes}" d="M{number(left)} {number(y)}H{number(right)}"/>'

"""Named points on a chart; where there is no room for a name stands a number, and the name below the chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.reports.charts.axes import SIZE, shortened_label
from llm_perf_opt.reports.charts.label_places import Area, LabelPlaces
from llm_perf_opt.reports.charts.line_paths import Point
from llm_perf_opt.reports.svg_shapes import escaped, number, text
from llm_perf_opt.reports.text_width import fitted, text_width
from llm_perf_opt.reports.visible_text import visible

_WIDEST = 0.5  # of the picture, for one label
_TAIL = 0.35  # of a label that is cut: its beginning says which peak it is and how high
_LINE = 18.0
_MOST_LISTED = 12
_NEAR = 12.0  # pixels, from which on a label needs a thread to its point


@dataclass(frozen=True, slots=True)
class PlacedMark:
    """Where a mark is, what stands beside it, and what its tooltip says."""

    at: Point
    name: str
    told: str
    has_dot: bool  # a mark on a dot of a line needs none of its own


@dataclass(frozen=True, slots=True)
class DrawnMarks:
    """Elements, and the lower edge of the list under the chart."""

    elements: str
    bottom: float


def draw_marks(marks: Sequence[PlacedMark], places: LabelPlaces, width: float, foot: float) -> DrawnMarks:
    """Every mark is a dot; its name is beside it or in a list that begins at `foot`."""
    parts: list[str] = []
    listed: list[str] = []
    for mark in marks:
        name = fitted(visible(mark.name), SIZE, width * _WIDEST, keep=_TAIL)
        area = places.place(mark.at, text_width(name, SIZE))
        parts.append(f"<g><title>{escaped(mark.told)}</title>{_dot(mark.at) if mark.has_dot else ''}")
        if area is not None:
            parts.append(_thread(mark.at, area) + text(area.left, area.bottom - 3.5, name, SIZE, classes="mark-name"))
        else:
            listed.append(visible(mark.name))
            parts.append(_number(mark.at, str(len(listed)), places))
        parts.append("</g>")
    lines = [f"{place}  {name}" for place, name in enumerate(listed[:_MOST_LISTED], start=1)]
    if len(listed) > _MOST_LISTED:
        lines.append(f"and {len(listed) - _MOST_LISTED:,} more in the table")
    rows = [text(0, foot + 14 + place * _LINE, shortened_label(line, width), SIZE) for place, line in enumerate(lines)]
    return DrawnMarks("".join([*parts, *rows]), foot + len(lines) * _LINE)


def _number(at: Point, figure: str, places: LabelPlaces) -> str:
    """Beside the mark, if even that has room."""
    area = places.place(at, text_width(figure, SIZE))
    return "" if area is None else text(area.left, area.bottom - 3.5, figure, SIZE, classes="mark-name")


def _dot(at: Point) -> str:
    return f'<circle class="mark" cx="{number(at[0])}" cy="{number(at[1])}" r="4"/>'


def _thread(at: Point, label: Area) -> str:
    """From a point to the nearest edge of a label that is not right beside it."""
    x = min(max(at[0], label.left), label.right)
    y = min(max(at[1], label.top), label.bottom)
    if abs(x - at[0]) + abs(y - at[1]) <= _NEAR:
        return ""
    return f'<path class="thread" d="M{number(at[0])} {number(at[1])}L{number(x)} {number(y)}"/>'

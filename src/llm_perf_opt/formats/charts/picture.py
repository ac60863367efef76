"""What a chart is drawn into, the legend over it, and the colour of each name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle

from llm_perf_opt.core.report import Report
from llm_perf_opt.formats.charts.axes import SIZE, shortened_label
from llm_perf_opt.formats.svg_style import escaped, number, rectangle, stage_colours, text
from llm_perf_opt.formats.visible_text import text_width, visible

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

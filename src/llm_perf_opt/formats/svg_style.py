"""Colours, type and the few SVG elements that pictures are made of; text is escaped where it enters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from llm_perf_opt.core.graph_view import BoxLoop, GraphView
from llm_perf_opt.formats.box_routes import Point
from llm_perf_opt.formats.visible_text import FONTS, text_width, visible


@dataclass(frozen=True, slots=True, kw_only=True)
class StageColour:
    """Hexadecimal colours: a strong line and a pale tint on white; the line again on black."""

    line: str
    tint: str
    line_on_dark: str


# Told apart by people with any of the usual kinds of colour blindness, two neighbours at a time.
_PALETTE = (
    StageColour(line="#0b6bb5", tint="#e3f0fa", line_on_dark="#58a9e8"),
    StageColour(line="#c2570c", tint="#fdeee2", line_on_dark="#f0944d"),
    StageColour(line="#0f7f5f", tint="#e0f4ee", line_on_dark="#3fbf98"),
    StageColour(line="#7a3fb0", tint="#f1e9f9", line_on_dark="#b88ae6"),
    StageColour(line="#9a7400", tint="#f8f1d8", line_on_dark="#d9b13b"),
    StageColour(line="#b02a6b", tint="#fae6f0", line_on_dark="#e678ad"),
    StageColour(line="#4d6370", tint="#e8edf0", line_on_dark="#93aab8"),
)


def stage_colours(view: GraphView) -> dict[str, StageColour]:
    """Stage -> colour, in the order of the view; beyond the palette colours come round again."""
    named = dict.fromkeys([*view.stages, *(box.stage for box in view.visible())])
    return dict(zip(named, palette(len(named)), strict=True))


def palette(count: int) -> list[StageColour]:
    """The colours of this many stages."""
    return [_PALETTE[number % len(_PALETTE)] for number in range(count)]


def mixed(colour: str, ground: str, part: float) -> str:
    """`part` of `colour` in `ground`, all hexadecimal."""
    pairs = zip(bytes.fromhex(colour[1:]), bytes.fromhex(ground[1:]), strict=True)
    return "#" + bytes(round(over * part + under * (1 - part)) for over, under in pairs).hex()


TITLE_SIZE = 17.0
CLASS_SIZE = 11.5
TEXT_SIZE = 10.5
BADGE_SIZE = 10.0
_TINTS = (0.04, 0.08, 0.12, 0.16, 0.2)  # how much of the stage's colour is in the ground, by depth

_LIGHT = """
text { font-family: %(fonts)s; fill: #1b1f24; }
.page { fill: #ffffff; }
.soft { fill: #57606a; }
.leaf { fill: #ffffff; stroke-width: 1.2; }
.group { stroke-width: 1.2; }
.card { fill: none; stroke-width: 1; }
.track { fill: #d5dae0; }
.wire { fill: none; stroke: #57606a; stroke-width: 1.3; }
.head { fill: #57606a; }
.for { fill: #1b1f24; }
.parfor { fill: #ffffff; stroke: #1b1f24; stroke-width: 1; }
.on-for { fill: #ffffff; }
.on-parfor { fill: #1b1f24; }
"""
_DARK = """
text { fill: #e6edf3; }
.page { fill: #0d1117; }
.soft { fill: #9ba6b2; }
.track { fill: #3a424d; }
.leaf { fill: #161b22; }
.wire { stroke: #9ba6b2; }
.head { fill: #9ba6b2; }
.for { fill: #e6edf3; }
.parfor { fill: #161b22; stroke: #e6edf3; }
.on-for { fill: #0d1117; }
.on-parfor { fill: #e6edf3; }
"""


def style_sheet(colours: Iterable[StageColour]) -> str:
    """The content of the style element: `line-N` and `fill-N` are stage N's colour, `tint-N-D` its tint at depth D.

    Tints are opaque, so that a nested picture costs a renderer no blending.
    """
    colours = list(colours)
    light = "".join(_stage_rules(number, colour.line, "#ffffff") for number, colour in enumerate(colours))
    dark = "".join(_stage_rules(number, colour.line_on_dark, "#0d1117") for number, colour in enumerate(colours))
    return f"{_LIGHT % {'fonts': FONTS}}{light}@media (prefers-color-scheme: dark) {{{_DARK}{dark}}}\n"


def scoped_style_sheet(colours: Iterable[StageColour], scope: str) -> str:
    """The same for a picture inside a page, below the selector `scope`: the page's own switch decides on dark.

    The page says its choice in `data-theme` of its root; a printed page is light.
    """
    colours = list(colours)
    light = "".join(_stage_rules(number, colour.line, "#ffffff") for number, colour in enumerate(colours))
    dark = _DARK + "".join(
        _stage_rules(number, colour.line_on_dark, "#0d1117") for number, colour in enumerate(colours)
    )
    return (
        f"{scope} {{{_LIGHT % {'fonts': FONTS}}{light}}}\n"
        f'@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {scope} {{{dark}}} }}\n'
        f'@media screen {{ :root[data-theme="dark"] {scope} {{{dark}}} }}\n'
    )


def tint_class(stage: int, depth: int) -> str:
    """The class for a box with boxes inside; the deeper, the stronger, up to a point."""
    return f"tint-{stage}-{min(depth, len(_TINTS) - 1)}"


def _stage_rules(number: int, colour: str, ground: str) -> str:
    tints = [f".tint-{number}-{depth} {{ fill: {mixed(colour, ground, part)}; }}" for depth, part in enumerate(_TINTS)]
    return "\n".join([f".line-{number} {{ stroke: {colour}; }}", f".fill-{number} {{ fill: {colour}; }}", *tints, ""])


BADGE_HEIGHT = 15.0
_CORNER = 5.0


def escaped(text: str) -> str:
    """Text for content and attributes: markup escaped, what XML forbids made visible."""
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def number(value: float) -> str:
    """Two decimals at most, so that the same picture has the same bytes everywhere."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text(
    x: float, y: float, content: str, size: float, *, classes: str = "", bold: bool = False, anchor: str = ""
) -> str:
    """One line of text, its baseline at `y`; `anchor` is the part of it that stands at `x`: start, middle or end."""
    return (
        f'<text x="{number(x)}" y="{number(y)}" font-size="{number(size)}"'
        + (f' text-anchor="{anchor}"' if anchor else "")
        + (f' class="{classes}"' if classes else "")
        + (' font-weight="bold"' if bold else "")
        + f">{escaped(content)}</text>"
    )


def rectangle(x: float, y: float, width: float, height: float, classes: str, radius: float = 5) -> str:
    """A rounded rectangle."""
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
        f'rx="{number(radius)}" class="{classes}"/>'
    )


def card_edges(width: float, height: float, offset: float, classes: str) -> str:
    """What shows of a sheet that lies behind a box of this size, moved right and down by `offset`."""
    lower = f"M{_pair((offset + 4, height))}v{number(offset)}H{number(width + offset)}"
    return f'<path class="{classes}" d="{lower}V{number(offset + 4)}h-{number(offset)}"/>'


def badge_width(loop: BoxLoop) -> float:
    """Of the pill that says `for 12`."""
    return text_width(loop.text, BADGE_SIZE, bold=True) + 14


def badge(x: float, y: float, loop: BoxLoop) -> str:
    """A pill with its left upper corner at (x, y): filled for a chain, an outline for independent uses."""
    pill = rectangle(x, y, badge_width(loop), BADGE_HEIGHT, loop.kind, radius=BADGE_HEIGHT / 2)
    return pill + text(x + 7, y + 11, loop.text, BADGE_SIZE, classes=f"on-{loop.kind}", bold=True)


def wire(points: Sequence[Point]) -> str:
    """An arrow along `points` with round corners, its head at the last one, pointing right."""
    (x, y), *corners = points
    end_x, end_y = corners[-1]
    path = [f"M{number(x)} {number(y)}"]
    for corner, after in pairwise(corners):
        before, behind = _near(corner, (x, y)), _near(corner, after)
        path.append(f"L{_pair(before)}Q{_pair(corner)} {_pair(behind)}")
        x, y = corner
    path.append(f"L{_pair((end_x - 5, end_y))}")
    head = f"M{_pair((end_x - 0.5, end_y))}l-7 -3.6v7.2z"
    return f'<path class="wire" d="{"".join(path)}"/><path class="head" d="{head}"/>'


def _near(corner: Point, other: Point) -> Point:
    """A point on the way from `corner` to `other`, where the rounding begins."""
    (x, y), (other_x, other_y) = corner, other
    length = abs(other_x - x) + abs(other_y - y)  # lines are level or upright
    part = min(_CORNER, length / 2) / length if length else 0.0
    return x + (other_x - x) * part, y + (other_y - y) * part


def _pair(point: Point) -> str:
    return f"{number(point[0])} {number(point[1])}"

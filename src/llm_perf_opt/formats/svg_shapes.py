"""The few SVG elements the picture is made of, with text escaped where it enters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from llm_perf_opt.core.report import Loop
from llm_perf_opt.formats.box_routes import Point
from llm_perf_opt.formats.svg_style import BADGE_SIZE
from llm_perf_opt.formats.visible_text import text_width, visible

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


def badge_width(loop: Loop) -> float:
    """Of the pill that says `for 12`."""
    return text_width(loop.text, BADGE_SIZE, bold=True) + 14


def badge(x: float, y: float, loop: Loop) -> str:
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

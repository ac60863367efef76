"""Colours and type of pictures: one colour per stage, light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llm_perf_opt.core.report import GraphView
from llm_perf_opt.formats.visible_text import FONTS


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
    """The colours of so many stages."""
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

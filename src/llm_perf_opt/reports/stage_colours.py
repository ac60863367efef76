"""One colour per stage, the same in every picture of a view."""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.document import GraphView


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

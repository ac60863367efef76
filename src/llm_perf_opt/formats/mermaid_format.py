"""A Mermaid flowchart: renders inside a README on the usual code hosts and in many editors."""

from __future__ import annotations

import re

from llm_perf_opt.core.graph_view import Box, GraphView
from llm_perf_opt.core.units import format_count
from llm_perf_opt.formats.box_figures import (
    WeighedDrawing,
    collectives_text,
    cost_text,
    hidden_text,
    loops_text,
    second_text,
)
from llm_perf_opt.formats.svg_style import stage_colours
from llm_perf_opt.formats.visible_text import shortened, visible

_LONGEST_LABEL = 90  # Mermaid refuses texts over 50,000 characters
_CONFIG = (
    "config:",
    "  flowchart:",
    "    wrappingWidth: 900",
    "    subGraphTitleMargin:",
    "      top: 2",
    "      bottom: 14",
)

# Mermaid reads labels as Markdown and as HTML. A character that means something to either becomes `#code;`, its own
# escape; an underscore does so only where it could start or end emphasis.
_ACTIVE = re.compile(r"""[#&<>"'`\\*|{}~;$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])""")


class MermaidDrawing(WeighedDrawing):
    """Boxes in boxes as subgraphs, loops and costs in the labels, colours by stage.

    An arrow of more than one call carries their number.
    """

    suffix = ".mmd"

    def render(self, view: GraphView) -> str:
        """The boxes of the default picture; the title goes into the front matter, the caption into comments."""
        shown = view.visible()
        names = {box.id: f"b{number}" for number, box in enumerate(shown)}
        lines = ["---", f"title: {_title(view.title)}", *_CONFIG, "---", "flowchart TB"]
        lines += [f"  %% {_escaped(line)}" for line in view.caption]
        for root in view.roots:
            lines += self._box_lines(root, view, names, "  ")
        return "\n".join([*lines, *_colour_lines(view, shown, names)]) + "\n"

    def _box_lines(self, box: Box, view: GraphView, names: dict[str, str], indent: str) -> list[str]:
        texts = [_escaped(text) for text in self._label_lines(box, view)]
        if not (box.is_open and box.children):
            return [f'{indent}{names[box.id]}["{"<br>".join(texts)}"]']
        lines = [f'{indent}subgraph {names[box.id]}["{", ".join(texts)}"]']  # the title of a subgraph has one line
        for child in box.children:
            lines += self._box_lines(child, view, names, indent + "  ")
        for arrow in box.arrows:
            calls = f"|{format_count(arrow.calls)}|" if arrow.calls > 1 else ""
            lines.append(f"{indent}  {names[arrow.source]} -->{calls} {names[arrow.target]}")
        return [*lines, f"{indent}end"]

    def _label_lines(self, box: Box, view: GraphView) -> list[str]:
        texts = [
            shortened(box.label, _LONGEST_LABEL),
            loops_text(box),
            f"{cost_text(box, view, self._metric)}, {second_text(box, self._metric)}",
            collectives_text(box),
            hidden_text(box),
        ]
        return [text for text in texts if text]


def _colour_lines(view: GraphView, shown: list[Box], names: dict[str, str]) -> list[str]:
    lines = []
    for number, (stage, colour) in enumerate(stage_colours(view).items()):
        members = [names[box.id] for box in shown if box.stage == stage]
        if members:
            lines.append(f"  classDef stage{number} fill:{colour.tint},stroke:{colour.line},color:#1b1f24")
            lines.append(f"  class {','.join(members)} stage{number}")
    return lines


def _escaped(text: str) -> str:
    return _ACTIVE.sub(lambda sign: f"#{ord(sign[0])};", visible(text))


def _title(text: str) -> str:
    """A YAML string in double quotes, in which only letters, digits and a few signs stand for themselves."""
    plain = shortened(visible(text), 200)
    return '"' + re.sub(r"[^\w ,.()@/:+=-]", lambda sign: f"\\U{ord(sign[0]):08x}", plain) + '"'

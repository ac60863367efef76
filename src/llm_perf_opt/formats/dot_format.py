"""Graphviz DOT: boxes in boxes as clusters, for `dot` and every tool that reads its language.

A view in which nothing is folded becomes the graph of calls: one node per module, one edge per caller and callee.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from llm_perf_opt.core.graph_view import Arrow, Box, GraphView
from llm_perf_opt.core.units import format_count
from llm_perf_opt.formats.box_figures import (
    WeighedDrawing,
    collectives_text,
    cost_text,
    facts_of,
    hidden_text,
    loops_text,
    second_text,
)
from llm_perf_opt.formats.box_layout import is_opened
from llm_perf_opt.formats.svg_style import StageColour, stage_colours
from llm_perf_opt.formats.visible_text import shortened, visible

_LONGEST_LABEL = 90
_LONGEST_TOOLTIP = 2000  # some versions of dot refuse strings over 16 KiB
_LONGEST_FACT = 300


class DotDrawing(WeighedDrawing):
    """An arrow between two clusters runs between a box in each and is cut at the borders (`compound`)."""

    suffix = ".dot"

    def render(self, view: GraphView) -> str:
        """The boxes of the default picture; the caption goes into comments. The number at an arrow counts calls."""
        lines = [*(f"// {visible(line)}" for line in view.caption), "digraph view {", *_settings(view)]
        colours = stage_colours(view)
        if view.is_ungrouped:
            lines += self._call_lines(view, colours)
        else:
            names = {box.id: f"b{number}" for number, box in enumerate(view.visible())}
            for root in view.roots:
                lines += self._box_lines(root, view, names, colours, "  ")
        return "\n".join([*lines, "}"]) + "\n"

    def _box_lines(
        self, box: Box, view: GraphView, names: dict[str, str], colours: dict[str, StageColour], indent: str
    ) -> list[str]:
        label = "\\n".join(_escaped(text) for text in self._label_lines(box, view))
        paint = _paint(colours[box.stage], _tooltip(box))
        if not is_opened(box):
            return [f'{indent}{names[box.id]} [label="{label}", {paint}];']
        lines = [f"{indent}subgraph cluster_{names[box.id]} {{"]
        lines.append(f'{indent}  graph [label="{label}", style="rounded,filled", {paint}];')
        for child in box.children:
            lines += self._box_lines(child, view, names, colours, indent + "  ")
        children = {child.id: child for child in box.children}
        lines += [f"{indent}  {_arrow_text(arrow, children, names)}" for arrow in box.arrows]
        return [*lines, f"{indent}}}"]

    def _label_lines(self, box: Box, view: GraphView) -> list[str]:
        figures = f"{cost_text(box, view, self._metric)}, {second_text(box, self._metric)}"
        label = shortened(box.label, _LONGEST_LABEL)
        texts = [label, loops_text(box), figures, collectives_text(box), hidden_text(box)]
        return [text for text in texts if text]

    def _call_lines(self, view: GraphView, colours: dict[str, StageColour]) -> Iterator[str]:
        """One node per module, however many callers it has; edges carry the calls from one module to the other."""
        calls = _calls_of(view)
        for node in calls.nodes.values():
            box = node.boxes[0]
            total = sum(box.calls for box in node.boxes)
            texts = [
                shortened(box.class_name, _LONGEST_LABEL),
                shortened(box.label.partition(": ")[2] if box.is_left_out else box.path or "(root)", _LONGEST_LABEL),
                f"{format_count(total)} call{'' if total == 1 else 's'}",
            ]
            label = "\\n".join(map(_escaped, texts))
            yield f'  {node.name} [label="{label}", {_paint(colours[box.stage], _tooltip(box))}];'
        for (source, target), count in calls.edges.items():
            look = "style=dashed" if count is None else _count_label(count)
            yield f"  {source} -> {target} [{look}];"


@dataclass(slots=True)
class _Node:
    name: str
    boxes: list[Box] = field(default_factory=list)  # one for each caller


@dataclass(slots=True)
class _Calls:
    nodes: dict[str, _Node] = field(default_factory=dict)
    edges: dict[tuple[str, str], int | None] = field(default_factory=dict)  # names of caller and callee -> calls


def _calls_of(view: GraphView) -> _Calls:
    """The tree of boxes put together by module: a shared module has one node and several callers."""
    calls = _Calls()
    waiting: list[tuple[Box, str | None]] = [(root, None) for root in reversed(view.roots)]
    while waiting:
        box, caller = waiting.pop()
        key = f"left out {box.id}" if box.is_left_out else f"module {box.path}"
        node = calls.nodes.setdefault(key, _Node(f"m{len(calls.nodes)}"))
        node.boxes.append(box)
        if caller is not None and box.is_left_out:
            calls.edges[caller, node.name] = None  # what was left out also called each other
        elif caller is not None:
            calls.edges[caller, node.name] = (calls.edges.get((caller, node.name)) or 0) + box.calls
        if box.is_open:
            waiting.extend((child, node.name) for child in reversed(box.children))
    return calls


def _settings(view: GraphView) -> list[str]:
    """A graph of calls runs from left to right and may have thousands of nodes, so it stands close."""
    if view.is_ungrouped:
        layout = "rankdir=LR, ranksep=1, nodesep=0.05, overlap=prism, outputorder=edgesfirst"
    else:
        layout = "compound=true, rankdir=TB, nodesep=0.2, ranksep=0.3"
    return [
        f"  graph [label={_quoted(view.title, 200)}, labelloc=t, {layout},",
        '    fontname="Helvetica", fontsize=12];',
        '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=10, margin="0.12,0.06"];',
        '  edge [color="#57606a", arrowsize=0.7, fontname="Helvetica", fontsize=8, fontcolor="#57606a"];',
    ]


def _count_label(calls: int) -> str:
    """With room on both sides, so that it does not touch the line."""
    return f'label=" {format_count(calls)} "'


def _arrow_text(arrow: Arrow, children: dict[str, Box], names: dict[str, str]) -> str:
    source, target = children[arrow.source], children[arrow.target]
    attributes = [_count_label(arrow.calls)]
    if is_opened(source):
        attributes.append(f"ltail=cluster_{names[source.id]}")
    if is_opened(target):
        attributes.append(f"lhead=cluster_{names[target.id]}")
    return f"{names[_end_of(source, -1).id]} -> {names[_end_of(target, 0).id]} [{', '.join(attributes)}];"


def _end_of(box: Box, place: int) -> Box:
    """The first or last box inside that is drawn as a node."""
    return _end_of(box.children[place], place) if is_opened(box) else box


def _paint(colour: StageColour, tooltip: str) -> str:
    return f'color="{colour.line}", fillcolor="{colour.tint}", tooltip="{tooltip}"'


def _tooltip(box: Box) -> str:
    """The label, figures, configuration, inputs and outputs, a line each, as far as there is room."""
    lines = [_escaped(shortened(box.label, _LONGEST_TOOLTIP // 2))]
    room = _LONGEST_TOOLTIP - len(lines[0])
    for name, value in facts_of(box):
        line = _escaped(shortened(f"{name}: {value}", _LONGEST_FACT))
        room -= len(line) + 2
        if room < 0:
            break
        if value:
            lines.append(line)
    return "\\n".join(lines)


def _quoted(text: str, length: int) -> str:
    return f'"{_escaped(shortened(text, length))}"'


def _escaped(text: str) -> str:
    """Quotes and backslashes for the language, ampersands for the entities that labels may hold."""
    return visible(text).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')

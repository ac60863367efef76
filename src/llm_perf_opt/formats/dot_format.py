"""Graphviz DOT: boxes in boxes as clusters, for `dot` and every tool that reads its language."""

from __future__ import annotations

from llm_perf_opt.core.graph_view import Arrow, Box, GraphView
from llm_perf_opt.formats.box_figures import cost_text, hidden_text, loops_text, metric_named, second_text
from llm_perf_opt.formats.svg_style import StageColour, stage_colours
from llm_perf_opt.formats.visible_text import shortened, visible

_LONGEST_LABEL = 90
_LONGEST_TOOLTIP = 2000  # some versions of dot refuse strings over 16 KiB


class DotDrawing:
    """An arrow between two clusters runs between a box in each and is cut at the borders (`compound`)."""

    suffix = ".dot"

    def __init__(self, metric: str = "flops") -> None:
        self._metric = metric_named(metric)

    def render(self, view: GraphView) -> str:
        """The boxes of the default picture; the caption goes into comments."""
        names = {box.id: f"b{number}" for number, box in enumerate(view.visible())}
        lines = [
            *(f"// {visible(line)}" for line in view.caption),
            "digraph view {",
            f"  graph [label={_quoted(view.title, 200)}, labelloc=t, compound=true, rankdir=TB,",
            '    fontname="Helvetica", fontsize=12, nodesep=0.2, ranksep=0.3];',
            '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=10, margin="0.12,0.06"];',
            '  edge [color="#57606a", arrowsize=0.7];',
        ]
        colours = stage_colours(view)
        for root in view.roots:
            lines += self._box_lines(root, view, names, colours, "  ")
        return "\n".join([*lines, "}"]) + "\n"

    def _box_lines(
        self, box: Box, view: GraphView, names: dict[str, str], colours: dict[str, StageColour], indent: str
    ) -> list[str]:
        label = "\\n".join(_escaped(text) for text in self._label_lines(box, view))
        colour = colours[box.stage]
        paint = f'color="{colour.line}", fillcolor="{colour.tint}", tooltip={_quoted(box.label, _LONGEST_TOOLTIP)}'
        if not _is_cluster(box):
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
        texts = [shortened(box.label, _LONGEST_LABEL), loops_text(box), figures, hidden_text(box)]
        return [text for text in texts if text]


def _is_cluster(box: Box) -> bool:
    return box.is_open and bool(box.children)


def _arrow_text(arrow: Arrow, children: dict[str, Box], names: dict[str, str]) -> str:
    source, target = children[arrow.source], children[arrow.target]
    ends = []
    if _is_cluster(source):
        ends.append(f"ltail=cluster_{names[source.id]}")
    if _is_cluster(target):
        ends.append(f"lhead=cluster_{names[target.id]}")
    attributes = f" [{', '.join(ends)}]" if ends else ""
    return f"{names[_end_of(source, -1).id]} -> {names[_end_of(target, 0).id]}{attributes};"


def _end_of(box: Box, place: int) -> Box:
    """The first or last box inside that is drawn as a node."""
    return _end_of(box.children[place], place) if _is_cluster(box) else box


def _quoted(text: str, length: int) -> str:
    return f'"{_escaped(shortened(text, length))}"'


def _escaped(text: str) -> str:
    """Quotes and backslashes for the language, ampersands for the entities that labels may hold."""
    return visible(text).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')

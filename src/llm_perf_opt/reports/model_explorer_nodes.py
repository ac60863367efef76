"""A view in the terms of Google's Model Explorer: nodes in nested namespaces, edges between nodes only.

A box with boxes inside becomes a namespace, any other box a node. The ops that run directly in a box with boxes inside
become one more node in its namespace, so that the costs of all nodes add up to the total. An arrow that begins or
ends at a namespace is drawn from the last node in it, or to the first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from llm_perf_opt.document import Box, GraphView
from llm_perf_opt.reports.box_facts import loops_text
from llm_perf_opt.reports.visible_text import shortened, visible

GRAPH_ID = "view"  # node data refers to it
_LONGEST_NAME = 120
_OWN = ":own"  # what the id of a box is followed by where its own ops are meant


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerNode:
    """`is_own`: the box's own ops, not what it calls."""

    id: str
    label: str
    namespace: str
    box: Box
    is_own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerGraph:
    """Nodes in call order, the box behind every namespace, and the ids of the nodes that feed each node."""

    nodes: tuple[ExplorerNode, ...]
    namespaces: dict[str, Box]
    sources: dict[str, list[str]]


def explorer_graph(view: GraphView) -> ExplorerGraph:
    """All boxes of the view, open or not: the viewer opens and closes them itself."""
    nodes: list[ExplorerNode] = []
    namespaces: dict[str, Box] = {}
    _collect(view.roots, "", nodes, namespaces)
    sources: defaultdict[str, list[str]] = defaultdict(list)
    for box in namespaces.values():
        children = {child.id: child for child in box.children}
        for arrow in box.arrows:
            sources[_end_of(children[arrow.target], 0)].append(_end_of(children[arrow.source], -1))
    return ExplorerGraph(nodes=tuple(nodes), namespaces=namespaces, sources=dict(sources))


def _collect(boxes: tuple[Box, ...], outer: str, nodes: list[ExplorerNode], namespaces: dict[str, Box]) -> None:
    for box, name in zip(boxes, _names(boxes), strict=True):
        if not box.children:
            nodes.append(ExplorerNode(id=box.id, label=name, namespace=outer, box=box, is_own=False))
            continue
        namespace = f"{outer}/{name}" if outer else name
        namespaces[namespace] = box
        nodes.append(
            ExplorerNode(
                id=box.id + _OWN,
                label=f"{shortened(visible(box.class_name), _LONGEST_NAME)}, own ops",
                namespace=namespace,
                box=box,
                is_own=True,
            )
        )
        _collect(box.children, namespace, nodes, namespaces)


def _names(boxes: tuple[Box, ...]) -> list[str]:
    """Labels that differ among siblings; a slash would part namespaces, so it is written as an escape."""
    seen: Counter[str] = Counter()
    names = []
    for box in boxes:
        loops = loops_text(box)
        name = shortened(visible(box.label).replace("/", "\\x2f"), _LONGEST_NAME) + (f" ({loops})" if loops else "")
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return names


def _end_of(box: Box, place: int) -> str:
    """The id of the first or last node in the box."""
    return _end_of(box.children[place], place) if box.children else box.id

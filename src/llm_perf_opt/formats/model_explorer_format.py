"""The view for Google's Model Explorer (`pip install ai-edge-model-explorer`): a graph, and data for its nodes.

A box with boxes inside becomes a namespace, any other box a node. The ops that run directly in a box with boxes inside
become one more node in its namespace, so that the costs of all nodes add up to the total. An arrow that begins or
ends at a namespace is drawn from the last node in it, or to the first.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass

from llm_perf_opt.core.graph_view import Box, GraphView, Metric, inclusive, metric_named, own
from llm_perf_opt.formats.box_figures import WeighedDrawing, facts_of, loops_text, own_text
from llm_perf_opt.formats.svg_style import StageColour, stage_colours
from llm_perf_opt.formats.visible_text import shortened, visible

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


_GRADIENT = ((0.0, "#ffffff"), (0.3, "#ffd8a8"), (1.0, "#e8590c"))


class ModelExplorerDataDrawing(WeighedDrawing):
    """Goes with the graph of `model-explorer`; `metric` is the figure. What is unknown has no entry."""

    suffix = ".node-data.json"

    def render(self, view: GraphView) -> str:
        """The values of all nodes add up to the total of the view."""
        values = {
            node.id: (own if node.is_own else inclusive)(node.box, self._metric) for node in explorer_graph(view).nodes
        }
        document = {
            GRAPH_ID: {
                "name": str(self._metric),
                "results": {name: {"value": value} for name, value in values.items() if value is not None},
                "gradient": [{"stop": stop, "bgColor": colour} for stop, colour in _GRADIENT],
            }
        }
        return json.dumps(document, allow_nan=False) + "\n"


class ModelExplorerDrawing:
    """A graph collection. It holds every figure; `model-explorer-data` colours the nodes by one of them."""

    suffix = ".model-explorer.json"

    def __init__(self, metric: str = "flops") -> None:
        metric_named(metric)

    def render(self, view: GraphView) -> str:
        """Every box at any depth, with all facts for the side panel."""
        graph = explorer_graph(view)
        colours = stage_colours(view)
        document = {
            "label": visible(view.title),
            "graphs": [
                {
                    "id": GRAPH_ID,
                    "nodes": [_node(node, graph.sources.get(node.id, []), colours) for node in graph.nodes],
                    "groupNodeAttributes": {
                        "": {"caption": visible(" ".join(view.caption))},
                        **{namespace: dict(_facts(box)) for namespace, box in graph.namespaces.items()},
                    },
                    "layoutConfigs": {"keepLayersWithASingleChild": True},
                }
            ],
        }
        return json.dumps(document, allow_nan=False) + "\n"


def _node(node: ExplorerNode, sources: list[str], colours: dict[str, StageColour]) -> dict[str, object]:
    colour = colours.get(node.box.stage)
    style = {"style": {"backgroundColor": colour.tint, "borderColor": colour.line}} if colour else {}
    return {
        "id": node.id,
        "label": node.label,
        "namespace": node.namespace,
        "attrs": [{"key": name, "value": value} for name, value in (_own_facts if node.is_own else _facts)(node.box)],
        "incomingEdges": [
            {"sourceNodeId": source, "sourceNodeOutputId": "0", "targetNodeInputId": str(number)}
            for number, source in enumerate(sources)
        ],
        **style,
    }


def _facts(box: Box) -> list[tuple[str, str]]:
    return [(visible(name), visible(value)) for name, value in facts_of(box) if value]


def _own_facts(box: Box) -> list[tuple[str, str]]:
    metrics = (Metric.FLOPS, Metric.BYTES, Metric.PARAMETERS, Metric.ACTIVATIONS)
    return [(f"own {metric.words}", own_text(box, metric)) for metric in metrics]

"""The view as a graph for Google's Model Explorer (`pip install ai-edge-model-explorer`)."""

from __future__ import annotations

import json

from llm_perf_opt.document import Box, GraphView
from llm_perf_opt.reports.box_facts import facts_of
from llm_perf_opt.reports.model_explorer_nodes import GRAPH_ID, ExplorerNode, explorer_graph
from llm_perf_opt.reports.stage_colours import StageColour, stage_colours
from llm_perf_opt.reports.view_metric import Metric, metric_named, own_text
from llm_perf_opt.reports.visible_text import visible


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
    metrics = (Metric.FLOPS, Metric.BYTES, Metric.PARAMETERS)
    return [(f"own {metric}", own_text(box, metric)) for metric in metrics]

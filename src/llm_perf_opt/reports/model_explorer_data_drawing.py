"""Node data for Google's Model Explorer: one figure per node, which the viewer colours and adds up."""

from __future__ import annotations

import json

from llm_perf_opt.document import GraphView
from llm_perf_opt.reports.model_explorer_nodes import GRAPH_ID, explorer_graph
from llm_perf_opt.reports.view_metric import inclusive, metric_named, own

_GRADIENT = ((0.0, "#ffffff"), (0.3, "#ffd8a8"), (1.0, "#e8590c"))


class ModelExplorerDataDrawing:
    """Goes with the graph of `model-explorer`; `metric` is the figure. What is unknown has no entry."""

    suffix = ".node-data.json"

    def __init__(self, metric: str = "flops") -> None:
        self._metric = metric_named(metric)

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

"""A flame graph for https://www.speedscope.app, in its own file format: one profile per metric in one file."""

from __future__ import annotations

import json

from llm_perf_opt.document import GraphView
from llm_perf_opt.reports.box_stacks import box_stacks
from llm_perf_opt.reports.view_metric import Metric, metric_named
from llm_perf_opt.reports.visible_text import visible

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_NAMES = {Metric.FLOPS: "FLOPs", Metric.BYTES: "bytes moved", Metric.PARAMETERS: "parameters", Metric.CALLS: "calls"}


class SpeedscopeDrawing:
    """`metric` is the profile that opens first; the viewer's menu has the others."""

    suffix = ".speedscope.json"

    def __init__(self, metric: str = "flops") -> None:
        self._metric = metric_named(metric)

    def render(self, view: GraphView) -> str:
        """Each box is a sample whose weight is its own cost, so a frame's width is its inclusive cost."""
        frames: dict[str, int] = {}
        document = {
            "$schema": _SCHEMA,
            "name": view.title,
            "activeProfileIndex": list(Metric).index(self._metric),
            "exporter": "llm-perf-opt",
            "profiles": [_profile(view, metric, frames) for metric in Metric],
            "shared": {"frames": [{"name": name} for name in frames]},
        }
        return json.dumps(document, allow_nan=False) + "\n"


def _profile(view: GraphView, metric: Metric, frames: dict[str, int]) -> dict[str, object]:
    """What is unknown has no sample; the profile's name says how many boxes that leaves out."""
    samples: list[list[int]] = []
    weights: list[int] = []
    unknown = 0
    for stack in box_stacks(view, metric):
        unknown += stack.weight is None
        if stack.weight:
            samples.append([frames.setdefault(visible(name), len(frames)) for name in stack.frames])
            weights.append(stack.weight)
    return {
        "type": "sampled",
        "name": _NAMES[metric] + (f" ({unknown} boxes unknown)" if unknown else ""),
        "unit": "bytes" if metric is Metric.BYTES else "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }

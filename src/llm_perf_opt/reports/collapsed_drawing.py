"""Collapsed stacks, the line format of flame-graph tools: `outer;inner weight`."""

from __future__ import annotations

from llm_perf_opt.document import GraphView
from llm_perf_opt.reports.box_stacks import box_stacks
from llm_perf_opt.reports.view_metric import metric_named
from llm_perf_opt.reports.visible_text import visible


class CollapsedDrawing:
    """One line per box that has a cost of its own; `metric` is the weight. Boxes of unknown cost have no line."""

    suffix = ".collapsed.txt"

    def __init__(self, metric: str = "flops") -> None:
        self._metric = metric_named(metric)

    def render(self, view: GraphView) -> str:
        """The lines in call order; their weights add up to the total of the view."""
        stacks = box_stacks(view, self._metric)
        return "".join(f"{';'.join(map(_frame, stack.frames))} {stack.weight}\n" for stack in stacks if stack.weight)


def _frame(name: str) -> str:
    """A semicolon parts frames, so within a name it is written as an escape."""
    return visible(name).replace(";", "\\x3b")

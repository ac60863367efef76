"""A view as call stacks: from the outermost box down, each with the cost of the innermost one's own ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llm_perf_opt.document import Box, GraphView
from llm_perf_opt.reports.box_facts import loops_text
from llm_perf_opt.reports.view_metric import Metric, own


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """`frames` are names, outermost first; a `weight` of None is unknown."""

    frames: tuple[str, ...]
    weight: int | None


def box_stacks(view: GraphView, metric: Metric) -> list[Stack]:
    """One stack per box at any depth, in call order: weights are own costs, so they add up to the total."""
    return [stack for root in view.roots for stack in _stacks(root, (), metric)]


def _stacks(box: Box, outer: tuple[str, ...], metric: Metric) -> Iterator[Stack]:
    loops = loops_text(box)
    frames = (*outer, box.label + (f" ({loops})" if loops else ""))
    yield Stack(frames=frames, weight=own(box, metric))
    for child in box.children:
        yield from _stacks(child, frames, metric)

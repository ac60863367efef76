"""Flame graphs: call stacks in the format of https://www.speedscope.app and as collapsed lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from llm_perf_opt.core.graph_view import Box, GraphView, Metric, own
from llm_perf_opt.formats.box_figures import WeighedDrawing, loops_text
from llm_perf_opt.formats.visible_text import visible


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


_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class SpeedscopeDrawing(WeighedDrawing):
    """`metric` is the profile that opens first; the viewer's menu has the others."""

    suffix = ".speedscope.json"

    def render(self, view: GraphView) -> str:
        """Each box is a sample with its own cost as the weight, so a frame's width is its inclusive cost."""
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
        "name": metric.words + (f" ({unknown} boxes unknown)" if unknown else ""),
        "unit": "bytes" if metric in (Metric.BYTES, Metric.ACTIVATIONS) else "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


class CollapsedDrawing(WeighedDrawing):
    """One line per box that has a cost of its own; `metric` is the weight. Boxes of unknown cost have no line."""

    suffix = ".collapsed.txt"

    def render(self, view: GraphView) -> str:
        """The lines in call order; their weights add up to the total of the view."""
        stacks = box_stacks(view, self._metric)
        return "".join(f"{';'.join(map(_frame, stack.frames))} {stack.weight}\n" for stack in stacks if stack.weight)


def _frame(name: str) -> str:
    """A semicolon parts frames, so within a name it is written as an escape."""
    return visible(name).replace(";", "\\x3b")

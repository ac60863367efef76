"""Which boxes stand open, so that the picture fits on a page."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.document import Box, GraphView


def open_to_depth(view: GraphView, depth: int) -> GraphView:
    """Exactly `depth` levels below the roots, however many boxes that is."""
    levels: dict[str, int] = {}
    waiting = [(root, 0) for root in view.roots]
    while waiting:
        box, level = waiting.pop()
        levels[box.id] = level
        waiting.extend((child, level + 1) for child in box.children)
    return _with_open(view, {box_id for box_id, level in levels.items() if level < depth})


def open_to_fit(view: GraphView, max_boxes: int, metric: str = "flops") -> GraphView:
    """As many boxes as fit: first those that lead to a family, then what shows a new class, then the rest.

    Among equals the outer comes before the inner, and the costly before the cheap. A box whose inside does not fit
    stays shut, and smaller ones after it may still open.
    """
    leads_to_family = _boxes_around_families(view)
    opened: set[str] = set()
    classes: set[str] = set()
    levels = {root.id: 0 for root in view.roots}
    waiting = [root for root in view.roots if root.children]
    shown = len(view.roots)
    while waiting:
        box = min(waiting, key=lambda box: _rank(box, levels[box.id], leads_to_family, classes, metric))
        waiting.remove(box)
        if shown + len(box.children) <= max_boxes:
            opened.add(box.id)
            classes.add(box.class_name)
            shown += len(box.children)
            waiting.extend(child for child in box.children if child.children)
            levels.update((child.id, levels[box.id] + 1) for child in box.children)
    return _with_open(view, opened)


def _rank(
    box: Box, level: int, leads_to_family: set[str], classes: set[str], metric: str
) -> tuple[bool, bool, bool, int, int, int]:
    """The smallest opens next. Parts by cost come last: they are the finer level of a loop that already shows."""
    return (
        box.id not in leads_to_family,
        box.is_split,
        box.class_name in classes,
        level,
        -weight_of(box, metric),
        int(box.id[1:]),
    )


def weight_of(box: Box, metric: str) -> int:
    """What the box weighs by the metric; an unknown figure gives way to calls, which are always known."""
    figures = {"flops": box.figures.flops, "bytes": box.figures.bytes_moved, "parameters": box.figures.parameters}
    figure = figures.get(metric)
    return box.calls if figure is None else figure


def _boxes_around_families(view: GraphView) -> set[str]:
    """Boxes that somewhere inside hold a family. Parts told apart by cost are the family around them."""
    around: set[str] = set()
    for root in view.roots:
        for box in reversed(list(root.walk())):  # inner before outer
            inner = () if box.is_split else box.children
            if any(_is_family(child, box) or child.id in around for child in inner):
                around.add(box.id)
    return around


def _is_family(box: Box, caller: Box) -> bool:
    """With a loop over instances; where a trace cannot tell loops, with more instances than the caller."""
    return any(loop.over == "instances" for loop in box.loops) or box.instances > caller.instances


def _with_open(view: GraphView, opened: set[str]) -> GraphView:
    return replace(view, roots=tuple(_set_open(root, opened) for root in view.roots))


def _set_open(box: Box, opened: set[str]) -> Box:
    children = tuple(_set_open(child, opened) for child in box.children)
    return replace(box, children=children, is_open=box.id in opened or not children)

"""The picture as a tree of text: one line per box, 100 columns wide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.core.graph_metric import Metric, inclusive, metric_named, share, total
from llm_perf_opt.core.graph_view import Box, GraphView
from llm_perf_opt.formats.box_figures import (
    collectives_text,
    figure_texts,
    has_collectives,
    hidden_text,
    inclusive_text,
    loops_text,
    metric_text,
    share_text,
)
from llm_perf_opt.formats.one_screen import SCREEN_LINES
from llm_perf_opt.formats.text_table import PAGE_WIDTH, broken
from llm_perf_opt.formats.visible_text import ELLIPSIS, shortened, visible_ascii

_LONGEST_CAPTION = 400
_SETTINGS = ("Workload", "Runtime")  # captions that say how the trace was made
_SHORTEST_LABEL = 24
_GAP = "  "
_SHOWN_PARTS = 3  # of the picture, in its answer
_NAMED_SHARE = 0.02  # from which on such a part is named


class TextDrawing:
    """ASCII only, 100 columns wide. `metric` decides what the last column is a share of."""

    suffix = ".txt"

    def __init__(self, metric: str = "flops") -> None:
        self._metric = metric_named(metric)

    def render(self, view: GraphView) -> str:
        """Where most of it is, title and caption, then one line per box of the default picture, with all figures."""
        branches = _tree(view)
        trees = [_aligned(self._rows(view, branches)), _aligned(self._further_rows(view, branches))]
        opening = [*self._answer(view), "", *_caption((view.title, *view.caption))]
        return "\n".join([*opening, "", *trees[0], "", *trees[1]]) + "\n"

    def one_screen(self, view: GraphView) -> str:
        """The same without the lesser figures and the later boxes; the last line says what is left out."""
        told = [text for text in view.caption if not text.startswith(_SETTINGS)]
        opening = [*self._answer(view), "", *_caption(told)]
        lines = _aligned(self._rows(view, _tree(view)))
        room = SCREEN_LINES - len(opening) - 3
        missing = len(lines) - room
        left = f"{missing:,} box{'es' if missing > 1 else ''}, " if missing > 0 else ""
        closing = f"Left out: {left}the workload, instances, activations, parameters. --verbose shows all."
        return "\n".join([*opening, "", *lines[:room], "", closing]) + "\n"

    def _answer(self, view: GraphView) -> list[str]:
        """How much there is, and which parts have most of it."""
        whole = total(view, self._metric)
        figures = [metric_text(total(view, one), one) for one in (Metric.FLOPS, Metric.BYTES, Metric.PARAMETERS)]
        lines = [f"{_ascii(view.title, 60)}: {figures[0]}, {figures[1]} moved, {figures[2]}."]
        parts = sorted(_first_parts(view), key=lambda box: -(inclusive(box, self._metric) or 0))[:_SHOWN_PARTS]
        shares = [share(inclusive(box, self._metric), whole) or 0.0 for box in parts]
        shown = zip(_names(parts), shares, strict=True)
        named = [f"{name} {share_text(part)}" for name, part in shown if part >= _NAMED_SHARE]
        if named:
            lines += broken(f"Most {self._metric.words}: {', '.join(named)}.", PAGE_WIDTH)[:2]
        return lines

    def _rows(self, view: GraphView, branches: Sequence[_Branch]) -> _Rows:
        """Calls, FLOPs, bytes and the share of what the picture weighs by, which stands before it if it is another."""
        whole, weighs_by = total(view, self._metric), self._metric
        is_other = weighs_by in (Metric.PARAMETERS, Metric.ACTIVATIONS)
        heading = ["calls", "FLOPs", "bytes moved", *([weighs_by.value] if is_other else []), "share"]
        rows: _Rows = [(None, heading)]
        for branch in branches:
            _, calls, flops, moved, *_, part = figure_texts(branch.box, weighs_by, whole)
            other = [inclusive_text(branch.box, weighs_by).removesuffix(" params")] if is_other else []
            rows.append((branch, [calls, flops, moved, *other, part]))
        return rows

    def _further_rows(self, view: GraphView, branches: Sequence[_Branch]) -> _Rows:
        exchanges = has_collectives(view)
        rows: _Rows = [(None, ["instances", "activations", "params", *(["collectives"] if exchanges else [])])]
        for branch in branches:
            figures = figure_texts(branch.box, self._metric, None)
            other = [collectives_text(branch.box)] if exchanges else []
            rows.append((branch, [figures[0], figures[4], figures[5], *other]))
        return rows


@dataclass(frozen=True, slots=True)
class _Branch:
    """A box, and how it hangs in the tree: its class, its path below the box around it, its loops."""

    box: Box
    lines: str
    label: str
    loops: str

    def text(self, width: int) -> str:
        """At most so wide; the label gives way."""
        return self.lines + _ascii(self.label, max(width - len(self.lines) - len(self.loops), 8)) + self.loops

    @property
    def width(self) -> int:
        return len(self.lines) + len(visible_ascii(self.label)) + len(self.loops)


def _ascii(text: str, length: int) -> str:
    """One line; where it is shortened stand three dots, since the one-character ellipsis is not ASCII."""
    shown = visible_ascii(text)
    return shown if len(shown) <= length else shortened(shown, length - 2).replace(ELLIPSIS, "...")


def _caption(texts: Sequence[str]) -> list[str]:
    return [line for text in texts for line in broken(_ascii(text, _LONGEST_CAPTION), PAGE_WIDTH)]


def _tree(view: GraphView) -> list[_Branch]:
    return [branch for root in view.roots for branch in _branches(root, "", "", ())]


def _branches(box: Box, first: str, rest: str, outer: tuple[str, ...]) -> list[_Branch]:
    """The box and, where it is open, those inside; `outer` are the paths of the boxes around it."""
    loops, hidden = loops_text(box), hidden_text(box).replace(" boxes", "").replace(" box", "")
    rows = [_Branch(box, first, _label(box, outer), f", {loops}" * bool(loops) + f" ({hidden})" * bool(hidden))]
    children = box.children if box.is_open else ()
    for child in children:
        is_last = child is children[-1]
        lines = (rest + ("`- " if is_last else "|- "), rest + ("   " if is_last else "|  "))
        rows += _branches(child, *lines, (*outer, box.path))
    return rows


def _label(box: Box, outer: Sequence[str]) -> str:
    """`Linear @ .q_proj`: the path from the innermost box around it that it begins with."""
    around = next((path for path in reversed(outer) if path and box.path.startswith(f"{path}.")), None)
    if box.is_left_out or around is None:
        return box.label
    return f"{box.class_name} @ {box.path.removeprefix(around)}"


def _names(boxes: Sequence[Box]) -> list[str]:
    """Their classes; of those that share one the last part of the path too: `Linear (up_proj)`."""
    names = [box.label if box.is_left_out else box.class_name for box in boxes]
    return [
        _ascii(name, 30) + (f" ({_ascii(box.path.rpartition('.')[2], 30)})" if names.count(name) > 1 else "")
        for name, box in zip(names, boxes, strict=True)
    ]


def _first_parts(view: GraphView) -> Sequence[Box]:
    """The boxes of the first level that has several."""
    boxes: Sequence[Box] = view.roots
    while len(boxes) == 1 and boxes[0].children:
        boxes = boxes[0].children
    model = max(boxes, key=lambda box: len(box.children), default=None)
    if model is None or len(boxes) > _SHOWN_PARTS or not model.children:
        return boxes
    return [*(box for box in boxes if box is not model), *model.children]


_Rows = list[tuple[_Branch | None, list[str]]]  # the heading belongs to no box


def _aligned(rows: _Rows) -> list[str]:
    """Heading, rule and boxes: the tree, then the other columns to the right."""
    widths = [max(map(len, cells)) for cells in zip(*(cells for _, cells in rows), strict=True)]
    room = max(PAGE_WIDTH - sum(widths) - len(_GAP) * len(widths), _SHORTEST_LABEL)
    label = min(room, max((branch.width for branch, _ in rows if branch is not None), default=_SHORTEST_LABEL))
    lines = []
    for branch, cells in rows:
        columns = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        text = "box" if branch is None else branch.text(label)
        lines.append(_GAP.join([text.ljust(label), *columns]).rstrip())
    rule = _GAP.join("-" * width for width in (label, *widths))
    return [line[:PAGE_WIDTH] for line in (lines[0], rule, *lines[1:])]

"""The picture as a tree for a terminal: what is inside what, how often it runs, what it costs."""

from __future__ import annotations

from llm_perf_opt.core import units
from llm_perf_opt.core.report import Box, GraphView
from llm_perf_opt.formats.box_facts import hidden_text, loops_text
from llm_perf_opt.formats.view_metric import Metric, inclusive, inclusive_text, metric_named, share, share_text, total
from llm_perf_opt.formats.visible_text import ELLIPSIS, shortened, visible_ascii

_LONGEST_LABEL = 76
_LONGEST_CAPTION = 400
_HEADING = ("box", "loops", "instances", "calls", "FLOPs", "bytes moved", "params", "share")
_GAP = "  "


class TextDrawing:
    """ASCII only. `metric` decides what the last column is a share of."""

    suffix = ".txt"

    def __init__(self, metric: str = "flops") -> None:
        self._metric = metric_named(metric)

    def render(self, view: GraphView) -> str:
        """Title and caption, then one line per box of the default picture."""
        whole = total(view, self._metric)
        heading = [*_HEADING[:-1], f"{_HEADING[-1]} of {self._metric}"]
        rows = [heading]
        rows += [self._row(box, branch, whole) for root in view.roots for box, branch in _branches(root, "", "")]
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        rule = _GAP.join("-" * width for width in widths)
        lines = [_line(row, widths) for row in rows]
        words = [_ascii(text, _LONGEST_CAPTION) for text in (view.title, *view.caption)]
        return "\n".join([*words, "", lines[0], rule, *lines[1:]]) + "\n"

    def _row(self, box: Box, branch: str, whole: int | None) -> list[str]:
        label = _ascii(box.label, _LONGEST_LABEL)
        hidden = hidden_text(box)
        return [
            f"{branch}{label}" + (f" ({hidden})" if hidden else ""),
            loops_text(box),
            units.format_count(box.instances),
            units.format_count(box.calls),
            *(
                inclusive_text(box, metric).removesuffix(" params")
                for metric in (Metric.FLOPS, Metric.BYTES, Metric.PARAMETERS)
            ),
            share_text(share(inclusive(box, self._metric), whole)),
        ]


def _ascii(text: str, length: int) -> str:
    """One line; where it is shortened stand three dots, since the one-character ellipsis is not ASCII."""
    return visible_ascii(shortened(text, length).replace(ELLIPSIS, "..."))


def _branches(box: Box, first: str, rest: str) -> list[tuple[Box, str]]:
    """Each box with the lines that hang it in the tree."""
    rows = [(box, first)]
    children = box.children if box.is_open else ()
    for child in children:
        is_last = child is children[-1]
        rows += _branches(child, rest + ("`- " if is_last else "|- "), rest + ("   " if is_last else "|  "))
    return rows


def _line(cells: list[str], widths: list[int]) -> str:
    words = [cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
    return _GAP.join([*words, *numbers]).rstrip()

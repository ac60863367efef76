"""The picture itself: boxes in boxes, arrows between siblings, costs on the boxes, colours by stage.

The layout is our own, so no other program is needed, and the same view gives the same bytes.
"""

from __future__ import annotations

from llm_perf_opt.document import GraphView
from llm_perf_opt.reports.box_layout import BoxLayout, Placed
from llm_perf_opt.reports.stage_colours import stage_colours
from llm_perf_opt.reports.svg_box import BoxPainter
from llm_perf_opt.reports.svg_legend import heading
from llm_perf_opt.reports.svg_shapes import escaped, number, wire
from llm_perf_opt.reports.svg_style import style_sheet
from llm_perf_opt.reports.view_metric import metric_named

PAGE_WIDTH = 1260.0  # fits a window of 1280 pixels that has a scroll bar
_MARGIN = 20.0
_NARROWEST = 640.0
_ROOT_GAP = 24.0


class SvgDrawing:
    """At most 1260 pixels wide where the boxes allow it; `metric` is the figure that is printed and shared out."""

    suffix = ".svg"

    def __init__(self, metric: str = "flops") -> None:
        self._metric = metric_named(metric)

    def render(self, view: GraphView) -> str:
        """One SVG document without scripts and without references to anything outside it."""
        return self._svg(view, f"<style>{style_sheet(stage_colours(view).values())}</style>")

    def embedded(self, view: GraphView, page_width: float) -> str:
        """The same without a style, for a column of a page that has one (`svg_style.scoped_style_sheet`)."""
        return self._svg(view, "", page_width)

    def _svg(self, view: GraphView, style: str, widest: float = PAGE_WIDTH) -> str:
        painter = BoxPainter(view, self._metric)
        layout = BoxLayout(painter.measure)
        roots = [layout.place(root, widest - 2 * _MARGIN) for root in view.roots]
        width = max([_NARROWEST, *(placed.width for placed in roots)])
        top = heading(view, self._metric, _MARGIN, width)
        y, parts = top.height, []
        for placed in roots:
            parts.append(f'<g transform="translate({number(_MARGIN)} {number(y)})">{_drawn(placed, painter, 0)}</g>')
            y += placed.height + _ROOT_GAP
        page_width, page_height = number(width + 2 * _MARGIN), number(y - _ROOT_GAP + _MARGIN + 6)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{page_width}" height="{page_height}" '
            f'viewBox="0 0 {page_width} {page_height}" role="img">'
            f"<title>{escaped(view.title)}</title><desc>{escaped(' '.join(view.caption))}</desc>"
            f'{style}<rect class="page" width="100%" height="100%"/>{top.elements}{"".join(parts)}</svg>\n'
        )


def _drawn(placed: Placed, painter: BoxPainter, depth: int) -> str:
    """The box, the boxes inside it, and over them the arrows between those."""
    parts = [painter.draw(placed, depth)]
    for child in placed.children:
        inner = _drawn(child, painter, depth + 1)
        parts.append(f'<g transform="translate({number(child.x)} {number(child.y)})">{inner}</g>')
    parts += [wire(route) for route in placed.routes]
    return "".join(parts)

"""The picture as PNG, rendered from the SVG by resvg, a renderer that comes as one wheel without other libraries."""

from __future__ import annotations

from llm_perf_opt.document import GraphView
from llm_perf_opt.errors import PerfOptError
from llm_perf_opt.reports.svg_drawing import SvgDrawing

SCALE = 1.5  # pixels per unit of the SVG: sharp when zoomed; twice as many would take twice as long

_PROBE = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20"><text y="15">{}</text></svg>'


class PngDrawing:
    """Needs the extra `png` and one font on the system."""

    suffix = ".png"

    def __init__(self, metric: str = "flops") -> None:
        self._svg = SvgDrawing(metric)

    def render(self, view: GraphView) -> bytes:
        """The light picture on white."""
        try:
            from resvg_py import svg_to_bytes
        except ImportError as error:
            raise PerfOptError(
                "Cannot draw a PNG.",
                why="the package resvg_py is not installed",
                fix='pip install "llm-perf-opt[png]", or ask for svg, which needs nothing',
            ) from error
        if svg_to_bytes(svg_string=_PROBE.format("M")) == svg_to_bytes(svg_string=_PROBE.format("")):
            raise PerfOptError(
                "Cannot draw a PNG.",
                why="the system has no font, so every label would be missing",
                fix="install one (apt-get install fonts-dejavu-core), or ask for svg",
            )
        return svg_to_bytes(svg_string=self._svg.render(view), background="white", zoom=SCALE)

"""The picture as one web page that needs nothing else: it opens from a disk, without a network."""

from __future__ import annotations

from functools import cache

import jinja2

from llm_perf_opt.document.graph_view import GraphView
from llm_perf_opt.reports.page_data import page_json
from llm_perf_opt.reports.page_policy import hash_source
from llm_perf_opt.reports.page_script import page_file, page_script
from llm_perf_opt.reports.view_metric import Metric, metric_named

_FIRST_METRIC = {Metric.BYTES: "bytes_moved"}  # the others are called the same in the page


class HtmlDrawing:
    """Boxes that open and close, search, a cost chart beside them, every figure of a box on a click."""

    suffix = ".html"

    def __init__(self, metric: str = "flops") -> None:
        self._metric = metric_named(metric)

    def render(self, view: GraphView) -> str:
        """The page. Its policy lets only its own script and style act, and no request leave."""
        libraries, script, style = _parts()
        return _template().render(
            title=view.title.encode("utf-8", "replace").decode("utf-8"),
            data=page_json(view, _FIRST_METRIC.get(self._metric, self._metric)),
            libraries=libraries,
            script=script,
            style=style,
            script_hashes=" ".join(map(hash_source, (libraries, script))),
            style_hash=hash_source(style),
        )


@cache
def _parts() -> tuple[str, str, str]:
    return page_file("vendor/libraries.js"), page_script(), page_file("theme.css") + page_file("page.css")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(page_file("page.html.jinja"))

"""One web page that needs nothing else, for a report or a picture: it opens from a disk, without a network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from llm_perf_opt.core.graph_metric import Metric, metric_named
from llm_perf_opt.core.graph_view import GraphView
from llm_perf_opt.core.report import Report
from llm_perf_opt.formats.graph_page_data import page_json
from llm_perf_opt.formats.report_sections import contents, sections_of
from llm_perf_opt.formats.svg_style import palette, scoped_style_sheet, stage_colours
from llm_perf_opt.formats.visible_text import visible


def hash_source(text: str) -> str:
    """How a content security policy names the one text that it allows."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


REPORT_PAGE = "report_page"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(?P<module>[\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|function|class) )", re.MULTILINE)


@cache
def page_file(name: str, folder: str = "graph_page") -> str:
    """The text of a file of a page in `formats/`."""
    return files("llm_perf_opt.formats").joinpath(folder, name).read_text(encoding="utf-8")


@cache
def page_template(folder: str, name: str) -> jinja2.Template:
    """A template whose lines leave no trace, with every character of a name visible and none of them markup."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, finalize=_finalized, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(page_file(name, folder))


def _finalized(value: Any) -> Any:
    """Names from a model with every character visible; markup that is ours as it is."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def page_modules() -> dict[str, str]:
    """Name -> text of every module, each after those that it imports."""
    folder = files("llm_perf_opt.formats").joinpath("graph_page")
    texts = {entry.name: page_file(entry.name) for entry in folder.iterdir() if entry.name.endswith(".js")}
    needs = {name: sorted(_IMPORT.findall(text)) for name, text in sorted(texts.items())}
    return {name: texts[name] for name in TopologicalSorter(needs).static_order()}


def page_script() -> str:
    """All modules as one strict script in a scope of its own."""
    bodies = [_EXPORT.sub("", _IMPORT.sub("", text)) for text in page_modules().values()]
    return "\n".join(['"use strict";', "{", *bodies, "}"])


_FIRST_METRIC = {
    Metric.BYTES: "bytes_moved",
    Metric.ACTIVATIONS: "activation_bytes",
}  # the others are called the same in the page


class HtmlDrawing:
    """Boxes that open and close, search, a cost chart beside them, every figure of a box on a click."""

    suffix = ".html"

    def __init__(self, metric: str = "flops") -> None:
        self._metric = metric_named(metric)

    def render(self, view: GraphView) -> str:
        """The page of one view."""
        return self.render_phases({view.title: view}, view.title)

    def render_phases(self, views: Mapping[str, GraphView], first: str, *, fits: bool = True) -> str:
        """The page of all phases of a run, by name. Its policy lets only its own script and style act, no request."""
        libraries, script, style = _parts()
        return _template().render(
            title=visible(views[first].title),
            data=page_json(views, first, _FIRST_METRIC.get(self._metric, self._metric), fits=fits),
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


class HtmlReport:
    """Contents, charts, sortable tables and pictures; readable without its script, on a phone and on paper."""

    suffix = ".html"

    def render(self, report: Report, *, in_notebook: bool = False) -> str:
        """The page. Its policy lets only its own script and style act, and no request leave.

        Inside a notebook it has no contents and no second drawing of a chart, and its frame grows with it.
        """
        section = sections_of(report)
        script, style = page_file("report.js", REPORT_PAGE), _style(_stages(report))
        page = page_template(REPORT_PAGE, "report.html.jinja").render(
            section=section,
            contents=() if in_notebook else contents(section),
            in_notebook=in_notebook,
            script=Markup(script),  # a file of this package
            style=Markup(style),  # likewise
            script_hash=hash_source(script),
            style_hash=hash_source(style),
        )
        return page.strip() + "\n"


def _stages(report: Report) -> int:
    """The most that any picture of the report tells apart."""
    own = 0 if report.graph is None else len(stage_colours(report.graph))
    return max([own, *map(_stages, report.chapters)])


def _style(stages: int) -> str:
    drawing = scoped_style_sheet(palette(stages), ".drawing") if stages else ""
    return (
        page_file("theme.css") + page_file("report.css", REPORT_PAGE) + page_file("charts.css", REPORT_PAGE) + drawing
    )

"""The report as one web page that needs nothing else: it opens from a disk, without a network."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from llm_perf_opt.core.report import Report
from llm_perf_opt.formats.html_page import hash_source, page_file
from llm_perf_opt.formats.report_sections import contents, sections_of
from llm_perf_opt.formats.svg_style import palette, scoped_style_sheet, stage_colours
from llm_perf_opt.formats.visible_text import visible


class HtmlReport:
    """Contents, charts, sortable tables and pictures; readable without its script, on a phone and on paper."""

    suffix = ".html"

    def render(self, report: Report) -> str:
        """The page. Its policy lets only its own script and style act, and no request leave."""
        section = sections_of(report)
        script, style = _file("report.js"), _style(_stages(report))
        page = _template().render(
            section=section,
            contents=contents(section),
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
    return page_file("theme.css") + _file("report.css") + _file("charts.css") + drawing


@cache
def _file(name: str) -> str:
    return files("llm_perf_opt.formats").joinpath("report_page", name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, finalize=_finalized, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_file("report.html.jinja"))


def _finalized(value: Any) -> Any:
    """Names from a model with every character visible; markup that is ours as it is."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

"""The page that recomputes a model: data, modules and chart library in one file, under a strict policy."""

from __future__ import annotations

import json
from typing import Any

from markupsafe import Markup

from llm_perf_opt.formats.html_format import (
    SHARED,
    UNSAFE_IN_HTML,
    hash_source,
    page_file,
    page_script,
    page_template,
)
from llm_perf_opt.formats.visible_text import visible

FOLDER = "explore_page"
# What the chart library writes into each drawing: the same text every time, so the policy can name it.
_PLOT_STYLE = page_file("plot-style.css", FOLDER)


def explore_page_text(data: dict[str, Any]) -> str:
    """The page. Its policy lets only its own scripts and styles act, and no request leave."""
    libraries, script = page_file("vendor/plot.js", FOLDER), page_script(FOLDER)
    style = page_file("theme.css") + page_file("explore.css", FOLDER) + page_file("witness.css", SHARED)
    template = page_template(FOLDER, "explore.html.jinja")
    page = template.render(
        title=visible(data["model"]),
        data=Markup(explore_json(data)),  # no character of HTML is left in it
        libraries=Markup(libraries),  # files of this package
        script=Markup(script),
        style=Markup(style),
        script_hashes=" ".join(map(hash_source, (libraries, script))),
        style_hashes=" ".join(map(hash_source, (style, _PLOT_STYLE))),
    )
    return page.strip() + "\n"


def explore_json(data: dict[str, Any]) -> str:
    """The data as ASCII that may stand inside a `<script>` element."""
    shown = {**data, "model": visible(data["model"])}
    return json.dumps(shown, separators=(",", ":"), allow_nan=False).translate(UNSAFE_IN_HTML)

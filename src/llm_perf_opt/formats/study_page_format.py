"""The page of a study: one file with a chart that answers to pointer and keyboard, filters, and tables beside it."""

from __future__ import annotations

import json
import math

from markupsafe import Markup

from llm_perf_opt.core.study_view import FIELDS, TEXTS, StudyView
from llm_perf_opt.formats.graph_page_data import UNSAFE_IN_HTML
from llm_perf_opt.formats.html_format import hash_source, page_file, page_template
from llm_perf_opt.formats.report_sections import sections_of
from llm_perf_opt.formats.visible_text import visible

_FOLDER = "study_page"


def study_page_text(view: StudyView) -> str:
    """The page. Its policy lets only its own scripts and style act, and no request leave."""
    libraries, script = page_file("vendor/libraries.js"), page_file("study.js", _FOLDER)
    style = page_file("theme.css") + page_file("study.css", _FOLDER)
    return (
        page_template(_FOLDER, "study.html.jinja")
        .render(
            title=view.title,
            section=sections_of(view.report),
            left_out=view.left_out,
            shown=view.shown,
            total=view.total,
            data=Markup(study_json(view)),  # no character of HTML is left in it
            libraries=Markup(libraries),  # files of this package
            script=Markup(script),
            style=Markup(style),
            script_hashes=" ".join(map(hash_source, (libraries, script))),
            style_hash=hash_source(style),
        )
        .strip()
        + "\n"
    )


def study_json(view: StudyView) -> str:
    """The points as ASCII that may stand inside a `<script>` element; texts as numbers of a list."""
    words = {name: list(dict.fromkeys(map(_word, view.points[name]))) for name in TEXTS}
    columns: dict[str, list[object]] = {}
    for name in FIELDS:
        values = view.points[name]
        columns[name] = [words[name].index(_word(one)) for one in values] if name in TEXTS else [*map(_short, values)]
    data = {"words": words, "columns": columns, "currency": _word(view.currency), "is_pages": view.is_pages}
    return json.dumps(data, separators=(",", ":"), allow_nan=False).translate(UNSAFE_IN_HTML)


def _word(value: object) -> str:
    return visible(str(value))


def _short(value: str | int | float | None) -> object:
    """Six digits are more than a chart shows; what is no number is unknown to it."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value

"""The picture as one web page that needs nothing else: it opens from a disk, without a network."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from dataclasses import fields
from functools import cache
from typing import Generic, TypeVar

import jinja2

from llm_perf_opt.core.report.graph_view import Arrow, Box, Figures, GraphView, Loop, TensorGroup
from llm_perf_opt.formats.html_page import hash_source, page_file, page_script
from llm_perf_opt.formats.view_metric import Metric, metric_named

H = TypeVar("H", bound=Hashable)

_EXACT_IN_JAVASCRIPT = 2**53 - 1
_UNSAFE_IN_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
FIGURE_NAMES = tuple(field.name for field in fields(Figures))


def page_json(view: GraphView, metric: str = "flops") -> str:
    """The view as ASCII that may stand inside a `<script>` element: no `<`, `>` or `&`, whatever the names are.

    `metric` is what the page measures by at first: the name of a figure, or calls.
    """
    document = {"metric": metric, **_PageTables().document(view)}
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.translate(_UNSAFE_IN_HTML)


class _Table(Generic[H]):
    """Distinct values in the order of their first use; a row refers to one by its number."""

    def __init__(self) -> None:
        self.number_of: dict[H, int] = {}

    def number(self, value: H) -> int:
        return self.number_of.setdefault(value, len(self.number_of))


class _PageTables:
    """Fills the tables while the boxes are written down, outer before inner."""

    def __init__(self) -> None:
        self.strings: _Table[str] = _Table()
        self.params: _Table[tuple[tuple[int, int], ...]] = _Table()
        self.tensors: _Table[tuple[tuple[tuple[int, ...], int], ...]] = _Table()

    def document(self, view: GraphView) -> dict[str, object]:
        numbered = list(_numbered(view))
        number_of = {box.id: number for number, (_, box) in enumerate(numbered)}
        return {
            "title": view.title,
            "caption": view.caption,
            "stages": view.stages,
            "figures": FIGURE_NAMES,
            "totals": _figure_row(view.totals),
            "boxes": [self._box_row(parent, box) for parent, box in numbered],
            "arrows": [_arrow_row(arrow, number_of) for _, box in numbered for arrow in box.arrows],
            "params": list(self.params.number_of),
            "tensors": list(self.tensors.number_of),
            "strings": list(self.strings.number_of),
        }

    def _box_row(self, parent: int, box: Box) -> list[object]:
        """In the order in which `page/data.js` reads it."""
        word = self.strings.number
        return [
            parent,
            word(box.id),
            word(box.class_name),
            word(box.path),
            word(box.stage),
            _whole(box.instances),
            _whole(box.calls),
            [_whole(calls) for calls in box.calls_per_instance],
            [_loop_row(loop) for loop in box.loops],
            _figure_row(box.figures),
            _figure_row(box.own),
            self.params.number(tuple((word(key), word(_param_text(box, key))) for key in box.constructor_params)),
            self._tensor_number(box.inputs),
            self._tensor_number(box.outputs),
            [word(member) for member in box.members],
            int(box.is_open),
        ]

    def _tensor_number(self, groups: tuple[TensorGroup, ...]) -> int:
        rows = (((tuple(self.strings.number(tensor) for tensor in group.tensors)), group.calls) for group in groups)
        return self.tensors.number(tuple(rows))


def _numbered(view: GraphView) -> Iterator[tuple[int, Box]]:
    """Every box with the number of its parent (-1 for a root), in the order in which boxes are numbered."""
    waiting = [(-1, root) for root in reversed(view.roots)]
    number = 0
    while waiting:
        parent, box = waiting.pop()
        yield parent, box
        waiting.extend((number, child) for child in reversed(box.children))
        number += 1


def _param_text(box: Box, key: str) -> str:
    return json.dumps(box.constructor_params[key], ensure_ascii=False)


def _arrow_row(arrow: Arrow, number_of: dict[str, int]) -> list[object]:
    return [number_of[arrow.source], number_of[arrow.target], _whole(arrow.calls)]


def _loop_row(loop: Loop) -> list[object]:
    return [loop.kind.value, loop.text, loop.over]


def _figure_row(figures: Figures) -> list[object]:
    return [_whole(getattr(figures, name)) for name in FIGURE_NAMES]


def _whole(number: int | None) -> int | str | None:
    """A number that JavaScript cannot hold exactly travels as text."""
    return number if number is None or abs(number) <= _EXACT_IN_JAVASCRIPT else str(number)


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

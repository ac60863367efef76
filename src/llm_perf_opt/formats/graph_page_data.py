"""The phases of a run as the JSON text inside a graph page: columns, with every text once for all phases."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Generic, TypeVar

from llm_perf_opt.core.graph_view import Box, Figures, GraphView, TensorGroup
from llm_perf_opt.formats.box_figures import collective_facts, collectives_text
from llm_perf_opt.formats.visible_text import visible

H = TypeVar("H", bound=Hashable)

_EXACT_IN_JAVASCRIPT = 2**53 - 1
_LAST_OF_ONE_UNIT = "\uffff"  # JavaScript counts the characters beyond it twice
_WORTH_SHARING = 4  # letters; a shorter common beginning takes more room as a number
UNSAFE_IN_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
FIGURE_NAMES = tuple(field.name for field in fields(Figures))


def page_json(views: Mapping[str, GraphView], first: str, metric: str = "flops", *, fits: bool = True) -> str:
    """The views by phase as ASCII that may stand inside a `<script>` element: no `<`, `>` or `&`, whatever the names.

    The page begins with the phase `first`, measured by `metric`: the name of a figure, or calls. With `fits` it opens
    as many of the open boxes as can be read in the window, otherwise all of them.
    """
    tables = _PageTables()
    phases = [{"name": visible(name), **tables.columns(view)} for name, view in views.items()]
    data = {
        "metric": metric,
        "first": list(views).index(first),
        "fits": fits,
        "figures": FIGURE_NAMES,
        "phases": phases,
        "params": list(tables.params.number_of),
        "tensors": list(tables.tensors.number_of),
        "strings": list(front_coded(map(visible, tables.strings.number_of))),
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.translate(UNSAFE_IN_HTML)


def front_coded(strings: Iterable[str]) -> Iterator[int | str]:
    """Each text without the letters that it begins with as the one before it; their number stands in front."""
    before = ""
    for string in strings:
        shared = _beginning_alike(before, string)
        if shared >= _WORTH_SHARING:
            yield shared
        yield string[shared:] if shared >= _WORTH_SHARING else string
        before = string


def _beginning_alike(one: str, other: str) -> int:
    """How many letters, up to the first that JavaScript would count twice."""
    pairs = enumerate(zip(one, other, strict=False))
    ends = (place for place, (a, b) in pairs if a != b or a > _LAST_OF_ONE_UNIT)
    return next(ends, min(len(one), len(other)))


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

    def columns(self, view: GraphView) -> dict[str, object]:
        numbered = list(_numbered(view))
        number_of = {box.id: number for number, (_, box) in enumerate(numbered)}
        return {
            "title": visible(view.title),
            "caption": [visible(line) for line in view.caption],
            "stages": [visible(stage) for stage in view.stages],
            "totals": _figure_row(view.totals),
            "boxes": [self._box_row(parent, box) for parent, box in numbered],
            "arrows": [
                [number_of[arrow.source], number_of[arrow.target], _whole(arrow.calls)]
                for _, box in numbered
                for arrow in box.arrows
            ],
        }

    def _box_row(self, parent: int, box: Box) -> list[object]:
        """In the order in which `graph_page/data.js` reads it."""
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
            [[loop.kind.value, loop.text, loop.over] for loop in box.loops],
            _figure_row(box.figures),
            _figure_row(box.own),
            self._pairs_number(box.constructor_params),
            self._pairs_number(box.layer_context),
            self._tensor_number(box.inputs),
            self._tensor_number(box.outputs),
            _runs(word(member) for member in box.members),
            box.is_open * 1 + box.is_split * 2 + box.is_left_out * 4,
            word(collectives_text(box)),
            [[word(kind), word(amount)] for kind, amount in collective_facts(box)],
        ]

    def _pairs_number(self, values: Mapping[str, Any]) -> int:
        word = self.strings.number
        return self.params.number(
            tuple((word(key), word(json.dumps(value, ensure_ascii=False))) for key, value in values.items())
        )

    def _tensor_number(self, groups: tuple[TensorGroup, ...]) -> int:
        rows = (((tuple(self.strings.number(tensor) for tensor in group.tensors)), group.calls) for group in groups)
        return self.tensors.number(tuple(rows))


def _runs(numbers: Iterable[int]) -> list[int]:
    """`[7, 3, 20, 1]` for 7, 8, 9, 20: where each run of numbers begins, and how long it is."""
    runs: list[int] = []
    for number in numbers:
        if runs and runs[-2] + runs[-1] == number:
            runs[-1] += 1
        else:
            runs += [number, 1]
    return runs


def _numbered(view: GraphView) -> Iterator[tuple[int, Box]]:
    """Every box with the number of its parent (-1 for a root), in the order in which boxes are numbered."""
    waiting = [(-1, root) for root in reversed(view.roots)]
    number = 0
    while waiting:
        parent, box = waiting.pop()
        yield parent, box
        waiting.extend((number, child) for child in reversed(box.children))
        number += 1


def _figure_row(figures: Figures) -> list[object]:
    return [_whole(getattr(figures, name)) for name in FIGURE_NAMES]


def _whole(number: int | None) -> int | str | None:
    """A number that JavaScript cannot hold exactly travels as text."""
    return number if number is None or abs(number) <= _EXACT_IN_JAVASCRIPT else str(number)

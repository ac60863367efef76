"""One web page that needs nothing else, for a report or a picture: it opens from a disk, without a network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files
from typing import Any, Generic, TypeVar

import jinja2
from markupsafe import Markup

from llm_perf_opt.core.graph_view import Box, Figures, GraphView, Metric, TensorGroup
from llm_perf_opt.core.report import FIELDS, TEXTS, Note, Report, StudyView, Table
from llm_perf_opt.core.witness import Witness
from llm_perf_opt.formats.box_figures import WeighedDrawing, collective_facts, collectives_text
from llm_perf_opt.formats.report_sections import Section, contents, sections_of
from llm_perf_opt.formats.svg_style import palette, scoped_style_sheet, stage_colours
from llm_perf_opt.formats.visible_text import visible


def hash_source(text: str) -> str:
    """How a content security policy names the one text that it allows."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


REPORT_PAGE, SHARED = "report_page", "page_parts"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(?P<module>[\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|function|class) )", re.MULTILINE)


@cache
def page_file(name: str, folder: str = "graph_page") -> str:
    """The text of a file of a page in `formats/`."""
    return files("llm_perf_opt.formats").joinpath(folder, name).read_text(encoding="utf-8")


@cache
def page_template(folder: str, name: str) -> jinja2.Template:
    """A template without leftover blank lines; every character of a name is visible, and none of them is markup."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, finalize=_finalized, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(page_file(name, folder))


def _finalized(value: Any) -> Any:
    """Names from a model with every character visible; markup that is ours as it is."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def page_modules(folder: str = "graph_page") -> dict[str, str]:
    """Name -> text of every module of a page, each after those that it imports; what it lacks is a shared part."""
    entries = files("llm_perf_opt.formats").joinpath(folder).iterdir()
    texts = {entry.name: page_file(entry.name, folder) for entry in entries if entry.name.endswith(".js")}
    while lacking := {name for text in texts.values() for name in _IMPORT.findall(text)} - texts.keys():
        texts |= {name: page_file(name, SHARED) for name in lacking}
    needs = {name: sorted(_IMPORT.findall(text)) for name, text in sorted(texts.items())}
    return {name: texts[name] for name in TopologicalSorter(needs).static_order()}


def page_script(folder: str = "graph_page") -> str:
    """All modules as one strict script in a scope of its own."""
    return "\n".join(['"use strict";', "{", joined_modules(page_modules(folder).values()), "}"])


def joined_modules(texts: Iterable[str]) -> str:
    """Modules as the text of one scope; each comes after those that it imports."""
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts)


_FIRST_METRIC = {
    Metric.BYTES: "bytes_moved",
    Metric.ACTIVATIONS: "activation_bytes",
}  # the others are called the same in the page


class HtmlDrawing(WeighedDrawing):
    """Boxes that open and close, search, a cost chart next to them, every figure of a box on a click."""

    suffix = ".html"

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
    return (
        page_file("vendor/libraries.js"),
        page_script(),
        page_file("theme.css") + page_file("witness.css", SHARED) + page_file("page.css"),
    )


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
        section = sections_of(report, is_traced=not in_notebook)
        script = page_script(REPORT_PAGE) if section.figures else page_file("report.js", REPORT_PAGE)
        style = _style(_stages(report))
        page = page_template(REPORT_PAGE, "report.html.jinja").render(
            section=section,
            contents=() if in_notebook else contents(section),
            in_notebook=in_notebook,
            witnesses=Markup(_witnesses_json(section)),  # no character of HTML is left in it
            script=Markup(script),  # a file of this package
            style=Markup(style),  # likewise
            script_hash=hash_source(script),
            style_hash=hash_source(style),
        )
        return page.strip() + "\n"


def _witnesses_json(section: Section) -> str:
    """The trees of all figures by their numbers, as ASCII that may stand inside a `<script>` element."""
    words = _Table[str]()
    figures = [
        [words.number(figure.label), _tree(figure.witness, words.number, is_whole=figure.witness.is_whole)]
        for figure in section.figures
    ]
    data = {"words": list(map(visible, words.number_of)), "figures": figures}
    return json.dumps(data, separators=(",", ":"), allow_nan=False).translate(UNSAFE_IN_HTML)


def _tree(witness: Witness, word: Callable[[str], int], *, is_whole: bool) -> list[object]:
    """As `treeOf` of `page_parts/formulas.js` reads it."""
    named = map(word, (witness.name, witness.unit, witness.origin))
    if not witness.operation:
        return [*named, -1, str(witness.value) if is_whole else witness.value]
    return [*named, word(witness.operation), *(_tree(part, word, is_whole=is_whole) for part in witness.parts)]


def _stages(report: Report) -> int:
    """The most that any picture of the report tells apart."""
    own = 0 if report.graph is None else len(stage_colours(report.graph))
    return max([own, *map(_stages, report.chapters)])


def _style(stages: int) -> str:
    drawing = scoped_style_sheet(palette(stages), ".drawing") if stages else ""
    return (
        page_file("theme.css")
        + page_file("witness.css", SHARED)
        + page_file("report.css", REPORT_PAGE)
        + page_file("charts.css", REPORT_PAGE)
        + drawing
    )


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
        "witnesses": [json.loads(tree) for tree in tables.witnesses.number_of],
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


def _beginning_alike(first: str, second: str) -> int:
    """How many letters, up to the first that JavaScript would count twice."""
    pairs = enumerate(zip(first, second, strict=False))
    ends = (place for place, (a, b) in pairs if a != b or a > _LAST_OF_ONE_UNIT)
    return next(ends, min(len(first), len(second)))


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
        self.witnesses: _Table[str] = _Table()

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
            [self._witness_number(box, name) for name in FIGURE_NAMES],
        ]

    def _witness_number(self, box: Box, figure: str) -> int:
        """Where the tree of an own figure stands; -1: there is none, and MACs follow from FLOPs."""
        witness = None if box.witness is None or figure == "macs" else box.witness(figure)
        if witness is None or witness.value != getattr(box.own, figure):
            return -1
        return self.witnesses.number(json.dumps(_tree(witness, self.strings.number, is_whole=True)))

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
        columns[name] = (
            [words[name].index(_word(value)) for value in values] if name in TEXTS else [*map(_short, values)]
        )
    data = {"words": words, "columns": columns, "currency": _word(view.currency), "is_pages": view.is_pages}
    return json.dumps(data, separators=(",", ":"), allow_nan=False).translate(UNSAFE_IN_HTML)


def _word(value: object) -> str:
    return visible(str(value))


def _short(value: str | int | float | None) -> object:
    """Six digits are more than a chart shows; what is no number is unknown to it."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


# A report inside a notebook: the page in a frame that grows with it, in at most this many bytes.
#
# A notebook keeps every output, so one that holds whole pages cannot be read or compared any more. What does not fit is
# left out from the end, and a note says what and where it is.

MOST_BYTES = 60_000
_FIRST_HEIGHT = 480  # pixels, until the page in the frame says how high it is


@dataclass(frozen=True, slots=True, kw_only=True)
class _Detail:
    """How much of a report is shown; None is all. `inner` is the same for its chapters, and None shows none."""

    rows: int
    tables: int | None = None
    charts: int | None = None
    notes: int | None = None
    inner: _Detail | None = None


_LINE = _Detail(rows=6, tables=1, charts=0, notes=0)
_DETAILS = (  # from much to little; the first that fits is shown
    _Detail(rows=60, inner=_Detail(rows=30, inner=_Detail(rows=15))),
    _Detail(rows=30, inner=_Detail(rows=15, tables=2, charts=1, notes=3)),
    _Detail(rows=20, charts=2, inner=_Detail(rows=10, tables=1, charts=1, notes=0)),
    _Detail(rows=20, charts=1, inner=_LINE),
    _Detail(rows=15, tables=4, charts=1, notes=8),
    _Detail(rows=10, tables=1, charts=0, notes=4),
)


def notebook_html(report: Report) -> str:
    """The frame. Neither its style nor the notebook's touches the other."""
    return next(frame for frame in _frames(report) if len(frame.encode()) <= MOST_BYTES)


def _frames(report: Report) -> Iterator[str]:
    for detail in _DETAILS:
        yield _frame(_shortened(report, detail))
    yield _frame(Report(title=report.title[:200], notes=(_note("everything"),)))


def _frame(report: Report) -> str:
    page = HtmlReport().render(report, in_notebook=True)
    # Pages have many double quotes and few single ones, so these are cheaper to escape.
    text = page.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;")
    title = html.escape(report.title[:200], quote=True)
    style = f"width:100%;height:{_FIRST_HEIGHT}px;border:0"
    return f'<iframe srcdoc=\'{text}\' style="{style}" title="{title}"></iframe>'


def _shortened(report: Report, detail: _Detail) -> Report:
    """The report to that detail, with a note of what is left out."""
    shown = _cut(report, detail)
    missing = _missing(report, shown)
    return replace(shown, notes=(*shown.notes, _note(missing))) if missing else shown


def _note(missing: str) -> Note:
    return Note(f"Left out in the notebook: {missing}. save('answer.html') writes all of it, to_pandas(title) a table.")


def _cut(report: Report, detail: _Detail) -> Report:
    inner = detail.inner
    return replace(
        report,
        tables=tuple(_cut_table(table, detail.rows) for table in report.tables[: detail.tables]),
        charts=report.charts[: detail.charts],
        notes=report.notes[: detail.notes],
        listings=(),
        graph=None,
        chapters=() if inner is None else tuple(_cut(chapter, inner) for chapter in report.chapters),
    )


def _cut_table(table: Table, rows: int) -> Table:
    return table if len(table.rows) <= rows else replace(table, rows=table.rows[:rows])


def _missing(full: Report, shown: Report) -> str:
    """`12 rows, 3 tables, 2 chapters`; empty where nothing is missing."""
    before, after = _counts(full), _counts(shown)
    left = {name: before[name] - after[name] for name in before}
    return ", ".join(f"{count:,} {name}{'' if count == 1 else 's'}" for name, count in left.items() if count)


def _counts(report: Report) -> dict[str, int]:
    """What there is, chapters included."""
    inner = [_counts(chapter) for chapter in report.chapters]
    own = {
        "row": sum(len(table.rows) for table in report.tables),
        "table": len(report.tables),
        "chart": len(report.charts),
        "picture": int(report.graph is not None),
        "listing": len(report.listings),
        "note": len(report.notes),
        "chapter": len(report.chapters),
    }
    return {name: count + sum(chapter[name] for chapter in inner) for name, count in own.items()}

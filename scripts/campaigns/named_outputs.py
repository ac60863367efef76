"""Every output for a run in which one name is everywhere: of modules, classes, stages, kernels, pages, devices."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import re
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import CallGraph, read_callgraph, to_json_dict, write_callgraph
from llm_perf_opt.core.plugins import DRAWINGS, REPORTERS
from llm_perf_opt.core.report import Report
from llm_perf_opt.costs.run_description import run_notes
from llm_perf_opt.formats.json_format import read_view
from llm_perf_opt.measurements.profile import join
from scripts.campaigns.other_kinds import chrome_trace

PLAIN = "plain"
Made = str | bytes | Exception
Ask = Callable[[str, lpo.Trace, Path], Report]
_MODULES = 4
_INPUTS = (torch.zeros(2, 4),)


class _Holder(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.child_name = name
        self.add_module(name, nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    def forward(self, values: Tensor) -> Tensor:
        child: nn.Module = self._modules[self.child_name]  # type: ignore[assignment]
        return child(values)


def holder(name: str) -> nn.Module:
    """With a child of that name, in which torch allows no dots."""
    return _Holder(name.replace(".", "") or "empty")


def traced(name: str) -> lpo.Trace:
    """A run in which the name is a module's, a class's, the model's, the phase's and a stage's."""
    trace = lpo.trace(holder(name), _INPUTS)
    (graph,) = trace.graphs
    types = {path: kind if path else name for path, kind in graph.module_types.items()}
    params = {path: {**values, name: name} for path, values in graph.constructor_params.items()}
    paths = tuple(path for path in graph.call_counts if path)[:1]
    renamed = replace(
        graph,
        model=name,
        phase=name,
        module_types=types,
        constructor_params=params,
        stages=((name, paths),),
        notes=(name, f"note of {name}"),
        workload={**graph.workload, "image": name},
    )
    return replace(trace, name=name, graphs=(renamed,))


def outputs(name: str, folder: Path) -> Iterator[tuple[str, Made]]:
    """Each output by its name, and what was made or raised."""
    trace = traced(name)
    yield "trace file", _made(lambda: _written(trace.graphs[0], folder))
    yield "chrome trace", _made(lambda: _profiled(name, folder))
    for suffix, picture in _tried(lambda: _pictures(name, folder), PICTURES):
        yield f"TorchLens picture {suffix}", picture
    for drawing, options in VIEWS.items():
        answer = trace.graph(**options)
        for form in DRAWINGS.names():
            yield f"{drawing} {form}", _made(partial(answer.draw, form))
    for asked, ask in ANSWERS.items():
        for form, made in _tried(partial(_rendered, ask, name, trace, folder), REPORTERS.names()):
            yield f"{asked} {form}", made


PICTURES = ("svg", "png")
VIEWS: dict[str, dict[str, Any]] = {
    "drawing": {"depth": 9},
    "drawing of --only": {"only": "linear"},
    "drawing of --ungrouped": {"ungrouped": True},
}


def _made(make: Callable[[], str | bytes]) -> Made:
    try:
        return make()
    except Exception as error:  # noqa: BLE001  whatever comes out is a finding
        return error


def _tried(make: Callable[[], Mapping[str, Made]], forms: Sequence[str]) -> Iterable[tuple[str, Made]]:
    """One output per format; what is raised on the way to them counts for each."""
    try:
        return make().items()
    except Exception as error:  # noqa: BLE001  whatever comes out is a finding
        return [(form, error) for form in forms]


def _rendered(ask: Ask, name: str, trace: lpo.Trace, folder: Path) -> dict[str, Made]:
    report = ask(name, trace, folder)
    return {form: _made(partial(REPORTERS.get(form)().render, report)) for form in REPORTERS.names()}


def _written(graph: CallGraph, folder: Path) -> str:
    """The trace as it is read back from its file."""
    file = folder / "trace.json"
    write_callgraph(graph, file, overwrite=True)
    return json.dumps(to_json_dict(read_callgraph(file)))


def _profiled(name: str, folder: Path) -> str:
    """The file of torch's profiler, with a range for each module."""
    (graph,) = lpo.trace(holder(name), _INPUTS, tracer="profiler", out=folder, force=True).graphs
    if len(graph.call_counts) != _MODULES:
        raise ValueError(f"{len(graph.call_counts)} of {_MODULES} modules are in the trace")
    return next(folder.glob("*.chrome-trace.json")).read_bytes().decode("utf-8")


def _pictures(name: str, folder: Path) -> dict[str, str | bytes]:
    svg, png = (folder / f"picture.{suffix}" for suffix in PICTURES)
    lpo.trace(holder(name), _INPUTS, tracer="torchlens", pictures=[str(svg), str(png)], force=True)
    return {"svg": svg.read_text("utf-8"), "png": png.read_bytes()}


# ---- answers


def _cost(name: str, trace: lpo.Trace, folder: Path) -> Report:
    report = trace.cost(("counted",)).report()
    return replace(report, notes=(*report.notes, *run_notes(trace.graphs)))


def _join(name: str, trace: lpo.Trace, folder: Path) -> Report:
    """A recording in which ops, modules, the device and a kernel that no op explains have that name."""
    seen = name.encode("utf-8", "replace").decode()
    document = chrome_trace()
    *_, kernel = document["traceEvents"]
    document["deviceProperties"][0]["name"] = seen
    document["traceEvents"] += [
        {**kernel, "name": f"no_rule {seen}", "ts": 900.0, "args": {"device": 0}},
        {"ph": "X", "cat": "python_function", "name": f"nn.Module: {seen}", "ts": 2, "dur": 50, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "cpu_op", "name": f"vllm::{seen}", "ts": 95, "dur": 3, "pid": 1, "tid": 1, "args": {}},
    ]
    file = folder / "recording.json"
    file.write_text(json.dumps(document), "utf-8")
    return trace.join(file).report()


@cache
def _plain_pages() -> lpo.PagesAnswer:
    return lpo.pages("deepseek-ocr-tiny", crops=("1x1", "2x1"), gpus="h100-sxm")


def _pages(name: str, trace: lpo.Trace, folder: Path) -> Report:
    answer = _plain_pages()
    pages = tuple(replace(page, name=name) for page in answer.pages)
    graphs = tuple(replace(graph, workload={**graph.workload, "prompt": name}) for graph in answer._graphs)
    return replace(answer, model=name, pages=pages, _graphs=graphs).report()


@cache
def _plain_export() -> lpo.ExportAnswer:
    return lpo.export(holder(PLAIN), PLAIN, args=_INPUTS, phase="forward", checks=("export", "dynamic"))


def _export(name: str, trace: lpo.Trace, folder: Path) -> Report:
    answer: lpo.ExportAnswer = with_name(_plain_export(), PLAIN, name)
    return answer.report()


@cache
def _plain_profile() -> lpo.ProfileAnswer:
    """On a busy machine a pass may be interrupted for long, which is no finding here."""
    with mock.patch.object(join, "_GAP_NS", 10**12):
        return lpo.profile(holder(PLAIN), _INPUTS, warmup=0, repeats=1)


def _profile(name: str, trace: lpo.Trace, folder: Path) -> Report:
    answer = replace(_plain_profile(), model=PLAIN, notes=(PLAIN,))
    renamed: lpo.ProfileAnswer = with_name(with_name(answer, PLAIN, name), "aten::relu", name)
    return renamed.report()


ANSWERS: dict[str, Ask] = {
    "cost report": _cost,
    "memory report": lambda name, trace, folder: trace.memory().report(),
    "prediction": lambda name, trace, folder: trace.predict("h100-sxm").report(),
    "comparison": lambda name, trace, folder: trace.compare(trace).report(),
    "whole report": lambda name, trace, folder: replace(trace, origin=None).report().report(),
    "join report": _join,
    "pages report": _pages,
    "export matrix": _export,
    "profile report": _profile,
}


def with_name(value: Any, old: str, new: str) -> Any:
    """A record in which every text has the new name in the place of the old."""
    if isinstance(value, str) and type(value) is str:
        return value.replace(old, new)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            member.name: with_name(getattr(value, member.name), old, new) for member in fields(value) if member.init
        }
        return replace(value, **changed)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(with_name(item, old, new) for item in value)
    if isinstance(value, Mapping):
        return {with_name(key, old, new): with_name(item, old, new) for key, item in value.items()}
    return value


OUTPUTS = (
    "trace file",
    "chrome trace",
    *(f"TorchLens picture {suffix}" for suffix in PICTURES),
    *(f"{drawing} {form}" for drawing in VIEWS for form in DRAWINGS.names()),
    *(f"{asked} {form}" for asked in ANSWERS for form in REPORTERS.names()),
)


PNG = b"\x89PNG\r\n\x1a\n"


def shape_of(output: str, made: str | bytes) -> object:
    """Equal for a plain and a hostile name, unless the language takes a part of the name for its own."""
    if isinstance(made, bytes):
        return made.startswith(PNG) and len(made) > 100
    return (_SHAPES.get(output) or _SHAPES.get(output.rpartition(" ")[2], _lines))(made)


def _lines(text: str) -> object:
    return None if not text.endswith("\n") else "ends with a line"


def _json_shape(text: str) -> object:
    return _skeleton(json.loads(text))


def _skeleton(value: object) -> object:
    """Lengths and types, without texts and without keys that are names."""
    if isinstance(value, dict):
        return sorted({str(_skeleton(item)) for item in value.values()})
    if isinstance(value, list):
        return sorted({str(_skeleton(item)) for item in value})
    return type(value).__name__


def _view_shape(text: str) -> object:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "view.json"
        file.write_text(text, encoding="utf-8")
        return len(read_view(file).boxes)


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] += 1
        self.counts.update(f"{tag} {name}" for name, _ in attrs if name.startswith("on"))
        for name, value in attrs:
            if name in ("href", "src") and re.match(r"\s*(javascript|data|https?):", value or "", re.IGNORECASE):
                self.counts[f"{tag} {name} leads out"] += 1


def _html_shape(text: str) -> object:
    """Every element that acts; how many cells and lines a page has may depend on the length of a name."""
    tags = _Tags()
    tags.feed(text)
    acting = {"script", "style", "iframe", "object", "embed", "link", "meta", "base", "form", "img"}
    return {name: count for name, count in tags.counts.items() if name in acting or " " in name}


def _svg_shape(text: str) -> object:
    return sorted({element.tag for element in ElementTree.fromstring(text).iter()})


def _csv_shape(text: str) -> object:
    """Formulas: a cell of a spreadsheet that begins so is worked out."""
    rows = list(csv.reader(io.StringIO(text)))
    cells = [cell for row in rows for cell in row]
    return len(rows), [cell[:20] for cell in cells if cell[:1] in tuple("=+@\t\r") or re.match(r"-\D", cell)]


def _markdown_shape(text: str) -> object:
    """Headings and raw markup; within a span of code everything is literal."""
    headings = sum(line.startswith("#") for line in text.splitlines())
    return headings, len(re.findall(r"(?<!\\)<(?!br>|!--)[a-zA-Z/!]", re.sub(r"(`+)[^`].*?[^`]?\1(?!`)", "", text)))


def _mermaid_shape(text: str) -> object:
    words = Counter(line.split(maxsplit=1)[0] for line in text.splitlines() if line.strip())
    return {word: count for word, count in words.items() if word in ("click", "subgraph", "end", "style", "%%{init:")}


_DOT = re.compile(r'"(?:[^"\\]|\\.)*"')


def _dot_shape(text: str) -> object:
    """What is left without its quoted texts."""
    code = _DOT.sub('""', re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    return code.count("{"), code.count("}"), code.count('""'), "->" in code, '"' in code.replace('""', "")


def _collapsed_shape(text: str) -> object:
    return sorted({(line.count(";"), line.rpartition(" ")[2].isdigit()) for line in text.splitlines()})


_SHAPES: dict[str, Callable[[str], object]] = {
    "json": _json_shape,
    "markdown": _markdown_shape,
    "mermaid": _mermaid_shape,
    "dot": _dot_shape,
    "svg": _svg_shape,
    "html": _html_shape,
    "csv": _csv_shape,
    "model-explorer": _json_shape,
    "model-explorer-data": _json_shape,
    "speedscope": _json_shape,
    "collapsed": _collapsed_shape,
    "drawing json": _view_shape,
    "trace file": _json_shape,
    "chrome trace": lambda text: bool(json.loads(text)["traceEvents"]),
}

"""Drawings in other programs' languages, held against those programs where they are at hand."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.graph_view import GraphView
from llm_perf_opt.formats.dot_format import DotDrawing
from llm_perf_opt.formats.markdown_format import MarkdownDrawing
from llm_perf_opt.formats.mermaid_format import MermaidDrawing
from llm_perf_opt.graphs.view import group
from tests.costs.small_run import small_run
from tests.formats.drawings.made_views import HOSTILE_NAMES, Node, deepseek_ocr_view, hostile_view, view_of
from tests.graphs.made_decoder import decoder
from tests.graphs.made_runs import ADD, MadeRun, Token, made

VIEWS = {
    "whole model": deepseek_ocr_view(),
    "hostile names": hostile_view(),
    "part of a run": group(small_run(), only="encoder"),
}

MERMAID_LINES = (
    r"  (  )*subgraph b\d+\[\"[^\"]*\"\]",
    r"  (  )*b\d+\[\"[^\"]*\"\]",
    r"  (  )*b\d+ -->(\|[\d,]+\|)? b\d+",
    r"  (  )*end",
    r"  classDef stage\d+ fill:#[0-9a-f]{6},stroke:#[0-9a-f]{6},color:#[0-9a-f]{6}",
    r"  class b\d+(,b\d+)* stage\d+",
    r"  %% [^<>{}\"]*",
)


def run(command: list[str], text: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_dot_reads_it_and_shows_every_box_under_its_name(view: GraphView) -> None:
    done = run(["dot", "-Tsvg"], DotDrawing().render(view))
    assert done.stderr == ""
    root = ET.fromstring(done.stdout)
    kinds = [group.get("class") for group in root.iter("{http://www.w3.org/2000/svg}g")]
    clusters = sum(bool(box.children) and box.is_open for box in view.visible())
    assert kinds.count("cluster") == clusters
    assert kinds.count("node") == len(view.visible()) - clusters
    assert kinds.count("edge") == sum(len(box.arrows) for box in view.visible() if box.is_open)


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_dot_shows_a_name_as_it_is() -> None:
    name = 'a"b\\c&amp;<d>\\N{e|f}'
    text = DotDrawing().render(view_of(Node(name, "p")))
    done = run(["dot", "-Tsvg"], text)
    shown = [element.text for element in ET.fromstring(done.stdout).iter("{http://www.w3.org/2000/svg}text")]
    assert f"{name} @ p" in shown


def shared_head() -> CallGraph:
    """A head that two branches share: one calls it once, the other twice."""

    def forward(run: MadeRun, token: Token) -> Token:
        left = run.call("left", token, lambda inner: run.call("head", inner))
        right = run.call("right", token, lambda inner: run.chain(["head", "head"], inner))
        return run.op(ADD, left, right)

    return made({"left": "Branch", "right": "Branch", "head": "Linear"}, forward)


def dot_edges(text: str) -> dict[tuple[str, str], str]:
    """Caller and callee, by the second line of their labels -> the label of the edge."""
    names = {name: label.split("\\n")[1] for name, label in re.findall(r'^  (m\d+) \[label="([^"]*)"', text, re.M)}
    edges = re.findall(r'^  (m\d+) -> (m\d+) \[label=" ([\d,]+) "\];$', text, re.M)
    return {(names[source], names[target]): count for source, target, count in edges}


def test_the_ungrouped_dot_has_a_node_per_module_and_the_edges_of_the_trace() -> None:
    graph = shared_head()
    edges = dot_edges(DotDrawing().render(group(graph, ungrouped=True)))
    assert edges == {("(root)", "left"): "1", ("(root)", "right"): "1", ("left", "head"): "1", ("right", "head"): "2"}
    named = {f"{source.removeprefix('(root)')}->{target}": int(count) for (source, target), count in edges.items()}
    assert named == dict(graph.edges)


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_dot_draws_the_ungrouped_calls() -> None:
    view = group(shared_head(), ungrouped=True)
    root = ET.fromstring(run(["dot", "-Tsvg"], DotDrawing().render(view)).stdout)
    kinds = [element.get("class") for element in root.iter("{http://www.w3.org/2000/svg}g")]
    assert (kinds.count("node"), kinds.count("edge"), kinds.count("cluster")) == (4, 4, 0)


def test_a_filter_of_ungrouped_calls_leaves_dashed_edges_without_a_number() -> None:
    text = DotDrawing().render(group(shared_head(), ungrouped=True, only="Branch"))
    assert text.count("[style=dashed];") == 2
    assert sorted(dot_edges(text).values()) == ["1", "1"]


def test_dot_and_mermaid_count_the_calls_of_an_arrow() -> None:
    view = group(decoder())  # arrows inside three layers are three calls each
    arrows = [arrow for box in view.visible() if box.is_open for arrow in box.arrows]
    counts = sorted(arrow.calls for arrow in arrows)
    assert set(counts) == {1, 3}
    dot = re.findall(r' -> b\d+ \[label=" (\d+) "', DotDrawing().render(view))
    assert sorted(map(int, dot)) == counts
    mermaid = re.findall(r" -->\|(\d+)\| ", MermaidDrawing().render(view))
    assert sorted(map(int, mermaid)) == [count for count in counts if count > 1]


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_dot_tooltips_carry_configuration_inputs_and_outputs() -> None:
    done = run(["dot", "-Tsvg"], DotDrawing().render(deepseek_ocr_view()))
    titles = [link.get("{http://www.w3.org/1999/xlink}title") or "" for link in ET.fromstring(done.stdout).iter(LINK)]
    gate = next(title for title in titles if title.startswith("MoEGate"))
    for line in ("hidden_size: 1280", "bias: false", "FLOPs: 1,600,000,000"):
        assert line in gate.splitlines()
    assert "input of 11 calls: bfloat16[1, 924, 1280]" in gate.splitlines()
    assert "output of 11 calls: bfloat16[1, 924, 1280]" in gate.splitlines()


LINK = "{http://www.w3.org/2000/svg}a"


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_no_tooltip_of_dot_is_longer_than_its_readers_take(view: GraphView) -> None:
    tooltips = re.findall(r'tooltip="((?:[^"\\]|\\.)*)"', DotDrawing().render(view))
    assert len(tooltips) == len(view.visible())
    assert max(map(len, tooltips)) < 8000


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_mermaid_has_only_lines_of_known_form(view: GraphView) -> None:
    head, *lines = MermaidDrawing().render(view).split("flowchart TB\n")
    assert re.fullmatch(r'---\ntitle: "[^"\n]*"\nconfig:\n(  [\w ]+:( \d+)?\n)+---\n', head)
    body = "flowchart TB\n".join(lines).splitlines()
    assert [line for line in body if not any(re.fullmatch(form, line) for form in MERMAID_LINES)] == []
    opened = [line for line in body if line.lstrip().startswith("subgraph")]
    assert len(opened) == sum(line.strip() == "end" for line in body) > 0


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_mermaid_labels_hold_no_markup_but_line_breaks(view: GraphView) -> None:
    labels = re.findall(r'\["([^"]*)"\]', MermaidDrawing().render(view))
    assert len(labels) == len(view.visible())
    for label in labels:
        bare = re.sub(r"#\d+;", "", label.replace("<br>", " "))
        assert not set(bare) & set("#&<>\"'`\\*|{}~;$")
        assert not re.search(r"(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])", bare)


def test_mermaid_stays_under_the_limits_of_its_readers() -> None:
    for view in VIEWS.values():
        assert len(MermaidDrawing().render(view)) < 50_000


PARSE = """
import {createRequire} from 'module'; import {pathToFileURL} from 'url'; import {readFileSync} from 'fs';
const from = createRequire(process.argv[2] + '/');
const {JSDOM} = from('jsdom');
globalThis.window = new JSDOM('').window; globalThis.document = window.document;
const mermaid = (await import(pathToFileURL(process.argv[2] + '/mermaid/dist/mermaid.core.mjs'))).default;
for (const text of JSON.parse(readFileSync(0, 'utf8'))) console.log((await mermaid.parse(text)).diagramType);
"""


def mermaid_modules() -> str | None:
    """The folder that holds the packages mermaid and jsdom, from NODE_PATH."""
    folders = os.environ.get("NODE_PATH", "").split(os.pathsep)
    found = [folder for folder in folders if all((Path(folder) / name).is_dir() for name in ("mermaid", "jsdom"))]
    return found[0] if found and shutil.which("node") else None


@pytest.mark.skipif(mermaid_modules() is None, reason="needs node, and mermaid and jsdom in NODE_PATH")
def test_mermaid_reads_it_itself(tmp_path: Path) -> None:
    names = [view_of(Node(name, "a", children=(Node("C", name),))) for name in HOSTILE_NAMES]
    texts = [MermaidDrawing().render(view) for view in (*VIEWS.values(), *names)]
    script = tmp_path / "parse.mjs"
    script.write_text(PARSE, encoding="utf-8")
    done = run(["node", str(script), str(mermaid_modules())], json.dumps(texts))
    assert done.stdout.split() == ["flowchart-v2"] * len(texts)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_markdown_rows_have_the_columns_of_the_heading(view: GraphView) -> None:
    """A bar or a line break that got through would make another cell or row."""
    rows = [line for line in MarkdownDrawing().render(view).splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(view.visible())
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {12}


def test_markdown_names_are_code_and_prose_is_not_markup() -> None:
    text = MarkdownDrawing().render(hostile_view())
    boxes = re.findall(r"^\| (?:&emsp;)*(`[^`]*`)", text, re.MULTILINE)
    assert len(boxes) == len(hostile_view().visible())
    prose = re.sub(r"`[^`]*`", "", text)
    assert "<" not in prose
    assert "](" not in prose

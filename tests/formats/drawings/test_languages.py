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

from llm_perf_opt.core.graph_view import GraphView
from llm_perf_opt.formats.dot_format import DotDrawing
from llm_perf_opt.formats.markdown_format import MarkdownDrawing
from llm_perf_opt.formats.mermaid_format import MermaidDrawing
from tests.formats.drawings.made_views import HOSTILE_NAMES, Node, deepseek_ocr_view, hostile_view, view_of

VIEWS = {"whole model": deepseek_ocr_view(), "hostile names": hostile_view()}

MERMAID_LINES = (
    r"  (  )*subgraph b\d+\[\"[^\"]*\"\]",
    r"  (  )*b\d+\[\"[^\"]*\"\]",
    r"  (  )*b\d+ --> b\d+",
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
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {11}


def test_markdown_names_are_code_and_prose_is_not_markup() -> None:
    text = MarkdownDrawing().render(hostile_view())
    boxes = re.findall(r"^\| (?:&emsp;)*(`[^`]*`)", text, re.MULTILINE)
    assert len(boxes) == len(hostile_view().visible())
    prose = re.sub(r"`[^`]*`", "", text)
    assert "<" not in prose
    assert "](" not in prose

"""The page as a file: what is in it, what is not, and that its parts fit together. tests/browser opens it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.graph_view import GraphView
from llm_perf_opt.formats import svg_style
from llm_perf_opt.formats.html_format import HtmlDrawing, front_coded, page_file, page_json, page_modules, page_script
from llm_perf_opt.formats.visible_text import visible
from tests.formats.drawings.made_views import (
    HOSTILE_NAMES,
    box_of,
    deepseek_ocr_view,
    hostile_view,
    linear,
    view_of_boxes,
)

ROOT = Path(__file__).parents[2]
TOP_NAME = re.compile(r"^(?:export )?(?:const|let|function|class) (\w+)", re.MULTILINE)
DANGEROUS = re.compile(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|fetch\(|XMLHttp")


def embedded(page: str) -> Any:
    match = re.search(r'<script type="application/json" id="view">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    return json.loads(match[1])


def unpacked(packed: list[int | str]) -> list[str]:
    """As `graph_page/data.js` reads it; JavaScript counts in units of UTF-16."""
    strings: list[str] = []
    shared = 0
    for entry in packed:
        if isinstance(entry, int):
            shared = entry
            continue
        start = strings[-1].encode("utf-16-le", "surrogatepass")[: 2 * shared] if strings else b""
        strings.append(start.decode("utf-16-le", "surrogatepass") + entry)
        shared = 0
    return strings


def numbers_of(runs: list[int]) -> list[int]:
    return [
        number for start, length in zip(runs[::2], runs[1::2], strict=True) for number in range(start, start + length)
    ]


@pytest.mark.parametrize("view", [deepseek_ocr_view(), hostile_view()], ids=["usual", "hostile"])
def test_the_embedded_view_is_the_view(view: GraphView) -> None:
    run = embedded(HtmlDrawing().render(view))
    strings, (document,) = unpacked(run["strings"]), run["phases"]
    boxes = [box for root in view.roots for box in root.walk()]
    assert document["title"] == visible(view.title)
    assert document["caption"] == [visible(line) for line in view.caption]
    assert len(document["boxes"]) == len(boxes)
    for row, box in zip(document["boxes"], boxes, strict=True):
        assert [strings[number] for number in row[1:5]] == [
            *map(visible, (box.id, box.class_name, box.path, box.stage))
        ]
        assert row[5:7] == [box.instances, box.calls]
        assert row[9] == [getattr(box.figures, name) for name in run["figures"]]
        assert [strings[number] for number in numbers_of(row[15])] == [*map(visible, box.members)]
        assert 0 <= row[0] < len(boxes) or box in view.roots
    arrows = [[boxes[source].id, boxes[target].id, calls] for source, target, calls in document["arrows"]]
    assert arrows == [[arrow.source, arrow.target, arrow.calls] for box in boxes for arrow in box.arrows]


@pytest.mark.parametrize(
    "strings",
    [
        ["model.layers.0.mlp", "model.layers.1.mlp", "model.layers.1.mlp.up_proj", "x"],
        ["\U0001f680\U0001f680 one", "\U0001f680\U0001f680 two", "", "abcd", "abcd"],
    ],
)
def test_texts_that_begin_alike_are_read_back_whole(strings: list[str]) -> None:
    packed = list(front_coded(strings))
    assert unpacked(packed) == strings
    assert sum(len(str(entry)) for entry in packed) < sum(map(len, strings))


def test_a_page_of_two_phases_holds_what_they_share_once() -> None:
    view = deepseek_ocr_view()
    one, both = HtmlDrawing().render(view), HtmlDrawing().render_phases({"prefill": view, "decode": view}, "decode")
    document = embedded(both)
    assert [phase["name"] for phase in document["phases"]] == ["prefill", "decode"]
    assert document["first"] == 1
    assert document["strings"] == embedded(one)["strings"]


def test_hostile_names_stay_inside_their_element() -> None:
    page = HtmlDrawing().render(hostile_view())
    page.encode("utf-8")  # no lone surrogate either
    assert page.count("</script>") == 3
    assert len(re.findall(r"<script\b", page)) == 3
    assert "alert(1)</script" not in page
    assert html.escape(HOSTILE_NAMES[0]) in page  # the title, which is written as markup


def test_numbers_that_javascript_cannot_hold_travel_as_text() -> None:
    box = box_of(linear("huge", 2**53 - 1, 0))
    figures = replace(box.figures, flops=2**53)
    rows = json.loads(page_json({"one": view_of_boxes(replace(box, figures=figures))}, "one"))["phases"][0]["boxes"]
    assert rows[0][9][0] == str(2**53)
    assert rows[0][10][0] == 2**53 - 1


@pytest.mark.parametrize("metric", ["flops", "bytes", "parameters", "activations", "calls"])
def test_the_page_starts_with_the_metric_asked_for(metric: str) -> None:
    first = embedded(HtmlDrawing(metric).render(deepseek_ocr_view()))["metric"]
    assert first.removesuffix("_moved") == {"activations": "activation_bytes"}.get(metric, metric)


def test_the_policy_names_exactly_the_scripts_and_the_style_of_the_page() -> None:
    page = HtmlDrawing().render(deepseek_ocr_view())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    texts = [
        *re.findall(r"<script>(.*?)</script>", page, re.DOTALL),
        *re.findall(r"<style>(.*?)</style>", page, re.DOTALL),
    ]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    assert re.findall(r"'sha256-([^']+)'", policy[1]) == hashes
    assert policy[1].startswith("default-src 'none';")
    assert "unsafe" not in policy[1]


def test_the_page_refers_to_nothing_outside_itself() -> None:
    page = HtmlDrawing().render(deepseek_ocr_view())
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", page))
    assert {address for address in addresses if "www.w3.org" not in address} == set()  # names of XML spaces
    assert re.findall(r"<(?:link|img|iframe|script [^>]*src)", page) == []


def test_the_modules_follow_the_rules_that_joining_them_needs() -> None:
    modules = page_modules()
    names = [name for text in modules.values() for name in TOP_NAME.findall(text)]
    assert sorted(names) == sorted(set(names))
    for text in modules.values():
        for imported, module in re.findall(r'^import \{ (.*?) \} from "\./(.*?)";', text, re.M):
            exported = set(re.findall(r"^export (?:const|function|class) (\w+)", modules[module], re.M))
            assert set(imported.split(", ")) <= exported
    assert not re.search(r"^(?:import|export)\b", page_script(), re.M)


def test_the_modules_write_names_as_text_only() -> None:
    assert [name for name, text in page_modules().items() if DANGEROUS.search(text)] == []


def test_a_module_holds_one_idea() -> None:
    files = {**page_modules(), "page.css": page_file("page.css"), "theme.css": page_file("theme.css")}
    assert {name: len(text.splitlines()) for name, text in files.items() if len(text.splitlines()) > 400} == {}


def test_stages_have_the_colours_of_every_other_drawing() -> None:
    shown = re.findall(r"--stage-\d: light-dark\((#\w+), (#\w+)\);", page_file("theme.css"))
    assert shown == [(colour.line, colour.line_on_dark) for colour in svg_style._PALETTE]
    assert f"HUES = {len(shown)};" in page_modules()["box-colours.js"]


def test_bundled_libraries_are_the_locked_ones_and_bring_their_licences() -> None:
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text("utf-8"))["packages"]
    bundled = set()
    for folder, file in {"graph_page": "vendor/libraries.js", "explore_page": "vendor/plot.js"}.items():
        notice, licences = page_file(file, folder).splitlines()[0], page_file("vendor/LICENCES.txt", folder)
        headings = re.findall(r"([\w@/.-]+) ([\d.]+) \(([\w.-]+)\)", notice)
        assert len(headings) > 3
        for name, version, licence in headings:
            entry = lock[f"node_modules/{name}"]
            assert (version, licence) == (entry["version"], entry["license"])
            assert f"{name} {version} ({licence})\n---" in licences
            bundled.add(name)
    wanted = json.loads((ROOT / "web" / "package.json").read_text("utf-8"))["dependencies"]
    assert wanted.keys() <= bundled
    assert [name for name, entry in lock.items() if "resolved" in entry] == []

"""The SVG: well-formed, self-contained, within the page, and no text cut or outside its box."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.graph_view import GraphView
from llm_perf_opt.formats.svg_format import PngDrawing, SvgDrawing
from llm_perf_opt.formats.visible_text import fitted, text_width, wrapped
from tests.formats.drawings.made_views import (
    HOSTILE_NAMES,
    Node,
    deepseek_ocr_view,
    hostile_view,
    parfor,
    unpriced_view,
    view_of,
)

SVG = "{http://www.w3.org/2000/svg}"
VIEWS = {"whole model": deepseek_ocr_view(), "hostile names": hostile_view(), "no prices": unpriced_view()}


def root_of(view: GraphView, metric: str = "flops") -> ET.Element:
    return ET.fromstring(SvgDrawing(metric).render(view))


def boxes(element: ET.Element) -> Iterator[tuple[ET.Element, float, float]]:
    """Every box's group with its width and height."""
    for group in element.iter(f"{SVG}g"):
        frames = [r for r in group.findall(f"{SVG}rect") if r.get("class", "").split(" ")[0] in ("leaf", "group")]
        if frames:
            yield group, float(frames[0].get("width", "")), float(frames[0].get("height", ""))


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_no_text_leaves_its_box_or_meets_another(view: GraphView) -> None:
    for group, width, height in boxes(root_of(view)):
        rows: dict[float, list[tuple[float, float]]] = {}
        for text in group.findall(f"{SVG}text"):
            x, y, size = (float(text.get(name, "")) for name in ("x", "y", "font-size"))
            end = x + text_width(text.text or "", size, bold=text.get("font-weight") == "bold")
            assert 0 <= x <= end <= width, text.text
            assert size <= y <= height
            rows.setdefault(round(y), []).append((x, end))
        for spans in rows.values():
            assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))


def test_no_label_of_the_whole_model_is_cut() -> None:
    texts = ["".join(text.itertext()) for text in root_of(deepseek_ocr_view()).iter(f"{SVG}text")]
    assert [text for text in texts if "\u2026" in text] == []
    assert "LayerNorm" in texts
    assert "@ model.sam_model.blocks.[0-11]" in texts
    assert "@ .qkv" in texts


def test_it_is_readable_at_1280_pixels() -> None:
    root = root_of(deepseek_ocr_view())
    assert float(root.get("width", "")) <= 1280
    assert min(float(text.get("font-size", "")) for text in root.iter(f"{SVG}text")) >= 10


def test_every_box_of_the_default_picture_is_there_once() -> None:
    view = deepseek_ocr_view()
    titles = [group.findtext(f"{SVG}title", "").splitlines()[0] for group, *_ in boxes(root_of(view))]
    assert sorted(titles) == sorted(box.label for box in view.visible())


def test_every_arrow_of_the_default_picture_is_there() -> None:
    view = deepseek_ocr_view()
    wires = [path for path in root_of(view).iter(f"{SVG}path") if path.get("class") == "wire"]
    shown = sum(len(box.arrows) for box in view.visible() if box.is_open)
    assert len(wires) == shown + 1  # one in the legend


def test_it_refers_to_nothing_outside_and_runs_nothing() -> None:
    for view in VIEWS.values():
        text = SvgDrawing().render(view)
        markup = re.sub(r">[^<]*<", "><", text)
        assert set(re.findall(r"<(\w+)", markup)) <= {"svg", "title", "desc", "style", "rect", "g", "text", "path"}
        assert markup.count("http") == 1  # the name of the language
        assert "url(" not in markup
        assert "href" not in markup


def test_a_tooltip_has_the_whole_name() -> None:
    titles = [title.text or "" for title in root_of(hostile_view()).iter(f"{SVG}title")]
    assert any("n" * 10_000 in title for title in titles)
    assert all(len(text.text or "") < 300 for text in root_of(hostile_view()).iter(f"{SVG}text"))


def test_markup_in_a_name_stays_a_name() -> None:
    shown = [text.text for text in root_of(view_of(Node("<b>&amp;", "a<b"))).iter(f"{SVG}text")]
    assert "<b>&amp;" in shown
    assert "@ a<b" in shown


def test_dark_follows_the_reader() -> None:
    style = root_of(deepseek_ocr_view()).findtext(f"{SVG}style", "")
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    classes = set(re.findall(r"\.(?:line|fill|tint)-[\d-]+", light))
    assert classes
    assert classes == set(re.findall(r"\.(?:line|fill|tint)-[\d-]+", dark))


def test_the_legend_adds_up_to_the_total() -> None:
    """Stages are shares of own costs: 45 %, 21 % and 34 % here."""
    texts = [text.text or "" for text in root_of(deepseek_ocr_view()).iter(f"{SVG}text")]
    stages = [text for text in texts if re.match(r"(sam|clip|prefill): ", text)]
    assert sum(int(text.rsplit(", ", 1)[1].removesuffix(" %")) for text in stages) in (99, 100, 101)
    assert len(stages) == 3


def test_the_legend_lists_no_stage_of_another_phase() -> None:
    view = view_of(Node("Model", "model", 1000, 10, stage="decode"))
    texts = [text.text or "" for text in root_of(replace(view, stages=("sam", "decode"))).iter(f"{SVG}text")]
    assert [text for text in texts if re.match(r"(sam|decode): ", text)] == ["decode: 1.00 kFLOP, 100 %"]


def test_unknown_is_not_zero() -> None:
    texts = [text.text for text in root_of(unpriced_view()).iter(f"{SVG}text")]
    assert "? FLOP \u00b7 ? %" in texts
    assert "? params" in texts


def test_loops_are_badges() -> None:
    root = root_of(view_of(Node("Expert", "experts.[0-63]", loops=parfor(60, of=64))))
    assert any(text.text == "parfor 60 of 64" and text.get("class") == "on-parfor" for text in root.iter(f"{SVG}text"))


def test_text_is_cut_to_fit_and_not_a_character_more() -> None:
    assert fitted("model.layers", 10, 1000) == "model.layers"
    cut = fitted("n" * 500, 10, 100)
    assert text_width(cut, 10) <= 100.01
    assert text_width(cut + "n", 10) > 100
    assert fitted("abc", 10, 0) == "\u2026"
    assert all(text_width(fitted(name, 10, 50), 10) <= 50.01 for name in HOSTILE_NAMES)


def test_lines_are_wrapped_at_spaces() -> None:
    lines = wrapped("one two three four", 10, 60)
    assert " ".join(lines) == "one two three four"
    assert all(text_width(line, 10) <= 60 for line in lines)


def test_a_png_is_the_svg_in_pixels() -> None:
    pytest.importorskip("resvg_py", reason="the extra png is not installed")
    view = view_of(Node("Expert", "experts.[0-63]", loops=parfor(60, of=64)))
    picture = PngDrawing().render(view)
    assert picture.startswith(b"\x89PNG")
    width, height = (int.from_bytes(picture[start : start + 4], "big") for start in (16, 20))
    root = root_of(view)
    assert (width, height) == pytest.approx([1.5 * float(root.get(name, "")) for name in ("width", "height")], abs=2)
    assert PngDrawing().render(view) == picture


def test_a_png_of_hostile_names_is_drawn() -> None:
    pytest.importorskip("resvg_py", reason="the extra png is not installed")
    assert PngDrawing().render(hostile_view()).startswith(b"\x89PNG")


def test_a_png_shows_its_text() -> None:
    """Two pictures that differ in one letter differ in pixels."""
    pytest.importorskip("resvg_py", reason="the extra png is not installed")
    assert PngDrawing().render(view_of(Node("Expert", "a"))) != PngDrawing().render(view_of(Node("Export", "a")))


def test_without_the_renderer_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    with pytest.raises(PerfOptError, match="resvg_py is not installed") as caught:
        PngDrawing().render(deepseek_ocr_view())
    assert "svg" in caught.value.fix


def test_without_a_font_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    resvg = pytest.importorskip("resvg_py", reason="the extra png is not installed")
    monkeypatch.setattr(resvg, "svg_to_bytes", lambda **_: b"blank")
    with pytest.raises(PerfOptError, match="no font"):
        PngDrawing().render(deepseek_ocr_view())

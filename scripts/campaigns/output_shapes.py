"""What a reader of each output language finds in a text, whatever the names in it are."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import re
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from llm_perf_opt.formats.json_format import read_view

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
        self.found: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag] += 1
        self.found.update(f"{tag} {name}" for name, _ in attrs if name.startswith("on"))
        for name, value in attrs:
            if name in ("href", "src") and re.match(r"\s*(javascript|data|https?):", value or "", re.IGNORECASE):
                self.found[f"{tag} {name} leads out"] += 1


def _html_shape(text: str) -> object:
    """Every element that acts; how many cells and lines a page has may depend on the length of a name."""
    tags = _Tags()
    tags.feed(text)
    acting = {"script", "style", "iframe", "object", "embed", "link", "meta", "base", "form", "img"}
    return {name: count for name, count in tags.found.items() if name in acting or " " in name}


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

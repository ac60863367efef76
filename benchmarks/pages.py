"""One way to write a page: the sections that a benchmark owns, tables in Markdown, and figures as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS, FACTS = ROOT / "docs", ROOT / "tests" / "facts"


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` whole, so that whatever is interrupted leaves the last complete file."""
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def put_between(page: Path, begin: str, end: str, text: str) -> None:
    """Put `text` between two lines of a page, which must be there."""
    before, marker, rest = page.read_text(encoding="utf-8").partition(begin)
    _, end_marker, after = rest.partition(end)
    if not (marker and end_marker):
        raise ValueError(f"{page.name} has no place for the text between {begin} and {end}")
    write_atomically(page, f"{before}{begin}\n{text}\n{end}{after}")


def replace_section(page: Path, name: str, text: str) -> None:
    """Put `text` between the markers of section `name`; a page without them gets them at its end."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    old = page.read_text(encoding="utf-8") if page.exists() else ""
    if begin not in old:
        page.write_text(f"{old.rstrip()}\n\n{begin}\n{end}\n".lstrip(), encoding="utf-8")
    put_between(page, begin, end, f"\n{text.strip()}\n")


def show_sections(page: str, texts: Mapping[str, str], *, is_written: bool, data: Any = None) -> None:
    """Print the sections of a page of docs, `evidence/serving-times`; write them and `data` where wanted."""
    for name, text in texts.items():
        print(f"## {name}\n\n{text}\n")
        if is_written:
            replace_section(DOCS / f"{page}.md", name, text)
    if is_written and data is not None:
        write_data(Path(page).name.replace("-", "_"), data)


def write_data(name: str, data: Any) -> None:
    """The figures of a page, next to it."""
    write_atomically(DOCS / "data" / f"{name}.json", json.dumps(data, indent=1) + "\n")


def facts(name: str) -> Any:
    """A JSON file of recorded facts."""
    return json.loads((FACTS / name).read_text(encoding="utf-8"))


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], sides: str = "lr", *, wide: bool = False) -> str:
    """In Markdown; `sides` says left or right for each column, the last of them for all that follow."""
    marks = {"l": "---", "r": "---:" if wide else "--:"}
    rule = [marks[side] for side in sides.ljust(len(titles), sides[-1])]
    lines = [f"| {' | '.join(map(str, row))} |" for row in (titles, *rows)]
    return "\n".join([lines[0], f"| {' | '.join(rule)} |" if wide else f"|{'|'.join(rule)}|", *lines[1:]])


def wide_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Of words, as the pages of sweeps have them."""
    return table(titles, rows, "l", wide=True)


def columns(rows: Iterable[Mapping[str, Any]], forms: Mapping[str, str], sides: str = "lr") -> str:
    """A table of records: title of a column -> how its cell is written, as `str.format` reads it."""
    return table(tuple(forms), ([form.format_map(row) for form in forms.values()] for row in rows), sides)


def cell(text: object, most: int | None = None, more: str = "...") -> str:
    """One line that ends no cell of a table, of at most this many characters."""
    line = " ".join(str(text).split()).replace("|", "\\|")
    return line if most is None or len(line) <= most else line[: most - len(more)] + more


def share(value: float | None) -> str:
    """In per cent; a dash where nothing is known."""
    return "-" if value is None else f"{100 * value:.1f} %"


def signed(value: float | None) -> str:
    """In per cent, with its sign; a dash where nothing is known."""
    return "-" if value is None else f"{100 * value:+.1f} %"


def tails(row: Mapping[str, Any], name: str) -> str:
    """Median, p90 and p99 of an error, as `judgement.tails_of` names them."""
    return " / ".join(share(row[key]) for key in (name, f"{name}_p90", f"{name}_p99"))

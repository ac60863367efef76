"""A part of a page that a script owns: the text between two comment markers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def replace_section(page: Path, name: str, text: str) -> None:
    """Put `text` between the markers of section `name`; a page without them gets them at its end."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    old = page.read_text() if page.exists() else ""
    before, found, rest = old.partition(begin)
    _, _, after = rest.partition(end)
    section = f"{begin}\n\n{text.strip()}\n\n{end}"
    page.write_text(f"{before}{section}{after}" if found else f"{old.rstrip()}\n\n{section}\n".lstrip())


def show_sections(page: Path, texts: Mapping[str, str], *, is_written: bool) -> None:
    """Print the sections of a page, and put them into it where that is wanted."""
    for name, text in texts.items():
        print(f"## {name}\n\n{text}\n")
        if is_written:
            replace_section(page, name, text)

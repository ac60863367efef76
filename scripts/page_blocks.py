"""The fenced blocks of the pages; `<!-- not run: REASON -->` on the line before one says why nobody runs it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCED = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>.+?) -->\n)?^(?P<indent> *)```(?P<language>\w+)\n(?P<body>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    page: str
    body: str
    not_run: str | None


def pages_of(repository: Path) -> list[Path]:
    return [repository / "README.md", repository / "CONTRIBUTING.md", *sorted((repository / "docs").rglob("*.md"))]


def blocks(repository: Path, language: str) -> Iterator[Block]:
    """Every block in that language, in the order of the pages."""
    for file in pages_of(repository):
        for match in FENCED.finditer(file.read_text("utf-8")):
            if match["language"] == language:
                yield Block(str(file.relative_to(repository)), match["body"], match["reason"])

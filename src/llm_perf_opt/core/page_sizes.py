"""Sizes of pages as people write them: `1240x1754` pixels, or a paper format at a resolution, `A4@150dpi`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llm_perf_opt.core.errors import UsageError

_MM_PER_INCH = 25.4
_PAPER_MM = {
    "a3": (297.0, 420.0),
    "a4": (210.0, 297.0),
    "a5": (148.0, 210.0),
    "letter": (215.9, 279.4),
    "legal": (215.9, 355.6),
}  # width, height of an upright sheet
_PIXELS = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
_PAPER = re.compile(r"([a-z]+\d?)(-landscape)?@([1-9]\d{1,3})(?:dpi)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSize:
    """A page in pixels; `name` is how it was written."""

    name: str
    width: int
    height: int

    @property
    def pixels(self) -> int:
        """Its area."""
        return self.width * self.height

    @property
    def text(self) -> str:
        """`1240x1754`, as the option `--image` takes it."""
        return f"{self.width}x{self.height}"


def read_page_size(given: str) -> PageSize:
    """`640x480`, `A4@150dpi`, `letter-landscape@300dpi`. A sheet has `round(mm / 25.4 * dpi)` pixels a side."""
    word = given.strip()
    if (match := _PIXELS.fullmatch(word)) is not None:
        return PageSize(name=word, width=int(match[1]), height=int(match[2]))
    paper = _PAPER.fullmatch(word.lower())
    if paper is None or paper[1] not in _PAPER_MM:
        raise UsageError(
            f"{given[:60]!r} is not the size of a page.",
            why=f"a page is WIDTHxHEIGHT in pixels, or a sheet at a resolution: {', '.join(_PAPER_MM)}",
            fix="write it like 1240x1754, A4@150dpi or letter-landscape@300dpi",
        )
    width, height = (round(side / _MM_PER_INCH * int(paper[3])) for side in _PAPER_MM[paper[1]])
    if paper[2]:
        width, height = height, width
    return PageSize(name=word, width=width, height=height)

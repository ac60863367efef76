"""Which pages a run goes over: one, a folder of them, or a list; all of them, or a sample drawn with a seed."""

from __future__ import annotations

import random
import re
from pathlib import Path

from llm_perf_opt.errors import UsageError

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
LIST_SUFFIX = ".txt"


def list_pages(image: str, *, sample: int | None, seed: int) -> tuple[str, ...]:
    """Files, or sizes of synthetic pages, in the order of the folder's names or of the list; a sample keeps it."""
    pages = _all_pages(image)
    if sample is None or sample >= len(pages):
        return pages
    chosen = sorted(random.Random(seed).sample(range(len(pages)), sample))
    return tuple(pages[index] for index in chosen)


def _all_pages(image: str) -> tuple[str, ...]:
    path = Path(image)
    if _is_size(image):
        return (image,)
    if path.is_dir():
        pages = tuple(str(file) for file in sorted(path.iterdir()) if file.suffix.lower() in IMAGE_SUFFIXES)
        why = f"no file there ends in one of {', '.join(sorted(IMAGE_SUFFIXES))}"
    elif path.suffix == LIST_SUFFIX and path.is_file():
        pages = tuple(_listed(path))
        why = "every line is empty or a comment"
    elif path.is_file():
        return (image,)
    else:
        raise UsageError(
            f"There is no page {image!r}.",
            why="it is no file, no folder, and no size",
            fix="give an image file, a folder of them, a .txt list, or a size such as 1240x1754",
        )
    if not pages:
        raise UsageError(f"There are no pages in {image}.", why=why, fix="point workload.image at some")
    return pages


def _listed(file: Path) -> list[str]:
    """One page per line; a file is looked for beside the list, and `#` begins a comment line."""
    lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    return [line if _is_size(line) else str(file.parent / line) for line in lines if line and not line.startswith("#")]


def _is_size(text: str) -> bool:
    return re.fullmatch(r"\d+x\d+", text) is not None

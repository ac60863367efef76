"""The sizes of the pages in a folder of images, from their headers; pixels are not decoded."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.workload import PageSize
from llm_perf_opt.serving.traffic_text import PageMix, read_page_mix

_MOST_FILES = 200_000


def read_pages(text: str) -> PageMix:
    """What stands after `pages=`: sizes, a file of sizes, or a folder of images."""
    return folder_mix(Path(text)) if Path(text).is_dir() else read_page_mix(text)


def folder_mix(folder: Path) -> PageMix:
    """Every size among the images of a folder and of those in it, with how often it occurs."""
    from PIL import Image, UnidentifiedImageError

    counts: Counter[tuple[int, int]] = Counter()
    for number, file in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        if number >= _MOST_FILES:
            break
        try:
            with Image.open(file) as image:
                counts[image.size] += 1
        except (UnidentifiedImageError, OSError):  # no image: a text beside them
            continue
    if not counts:
        raise UsageError(
            f"There is no image in {folder}.",
            why="no file there has a header that Pillow knows",
            fix="name a folder with PNG, JPEG or TIFF files, or give sizes: pages=A4@150dpi:70,640x640:30",
        )
    sizes = tuple(PageSize(name=f"{width}x{height}", width=width, height=height) for width, height in counts)
    return PageMix(sizes=sizes, weights=tuple(float(count) for count in counts.values()))

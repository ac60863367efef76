"""From a page to square views, as the released inference makes them: pad or stretch the whole, cut a large one."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageOps

from llm_perf_opt.errors import UsageError
from llm_perf_opt.models.deepseek_ocr.configuration import ImageMode

FEWEST_TILES = 2
MOST_TILES = 9
PADDING_COLOUR = (127, 127, 127)
NO_TILES = (1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageViews:
    """The global view, and the tiles row by row: `grid` is (columns, rows), `(1, 1)` when the page is not cut."""

    global_view: Image.Image
    tiles: tuple[Image.Image, ...]
    grid: tuple[int, int]


def open_page(image: str) -> Image.Image:
    """An upright RGB page: synthetic for `"1240x1754"` (width x height), otherwise read from that file."""
    if size := re.fullmatch(r"(\d+)x(\d+)", image):
        return synthetic_page(int(size[1]), int(size[2]))
    try:
        with Image.open(Path(image)) as stored:
            return ImageOps.exif_transpose(stored).convert("RGB")
    except (OSError, Image.DecompressionBombError) as error:
        raise UsageError(
            f"Cannot read {image!r} as an image.",
            why=str(error),
            fix="give the path of an image file, or a size such as 1240x1754 for a synthetic page",
        ) from error


def synthetic_page(width: int, height: int) -> Image.Image:
    """A white page with dark lines: what is on it changes no shape, only that it is not empty matters."""
    most_pixels = Image.MAX_IMAGE_PIXELS or math.inf
    if not 0 < width * height <= most_pixels:
        raise UsageError(
            f"A page of {width}x{height} pixels makes no sense.",
            why=f"both sides must be positive and the area at most {most_pixels:,} pixels",
            fix="give width x height in pixels, such as 1240x1754",
        )
    page = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(page)
    for top in range(height // 20, height, max(1, height // 40)):
        draw.line([(width // 10, top), (width - width // 10, top)], fill="black", width=max(1, height // 200))
    return page


def crop_grid(width: int, height: int, tile: int) -> tuple[int, int]:
    """(columns, rows) of the tiles: the grid of 2 to 9 tiles whose proportions come nearest to the page's.

    Of equally near grids a larger one wins only if the page has more than half as many pixels as its tiles. A page that
    fits into one tile is not cut.
    """
    if max(width, height) <= tile:
        return NO_TILES
    best, best_gap = NO_TILES, math.inf
    for columns, rows in _grids_by_tiles():
        gap = abs(width / height - columns / rows)
        fills_half = 2 * width * height > tile * tile * columns * rows
        if gap < best_gap or (gap == best_gap and fills_half):
            best, best_gap = (columns, rows), gap
    return best


def _grids_by_tiles() -> list[tuple[int, int]]:
    sides = range(1, MOST_TILES + 1)
    grids = [(columns, rows) for columns in sides for rows in sides if FEWEST_TILES <= columns * rows <= MOST_TILES]
    return sorted(grids, key=math.prod)


def cut_views(page: Image.Image, mode: ImageMode, grid: tuple[int, int] | None = None) -> PageViews:
    """The views of one page; `grid` forces (columns, rows) instead of what `crop_grid` says."""
    if mode.crop_size is None:
        return PageViews(global_view=_global_view(page, mode), tiles=(), grid=NO_TILES)
    grid = grid or crop_grid(page.width, page.height, mode.crop_size)
    tiles = _tiles(page, grid, mode.crop_size) if grid != NO_TILES else ()
    return PageViews(global_view=_global_view(page, mode), tiles=tiles, grid=grid)


def _global_view(page: Image.Image, mode: ImageMode) -> Image.Image:
    square = (mode.global_size, mode.global_size)
    if mode.is_stretched:
        return page.resize(square)
    if round(min(page.size) * mode.global_size / max(page.size)) < 1:
        raise UsageError(
            f"A page of {page.width}x{page.height} pixels vanishes when fitted into {mode.global_size} pixels.",
            why="its shorter side would be less than half a pixel",
            fix="give a less elongated page, or a mode that stretches it (tiny, small)",
        )
    return ImageOps.pad(page, square, color=PADDING_COLOUR)


def _tiles(page: Image.Image, grid: tuple[int, int], tile: int) -> tuple[Image.Image, ...]:
    columns, rows = grid
    stretched = page.resize((columns * tile, rows * tile))
    corners = [(column * tile, row * tile) for row in range(rows) for column in range(columns)]
    return tuple(stretched.crop((left, top, left + tile, top + tile)) for left, top in corners)

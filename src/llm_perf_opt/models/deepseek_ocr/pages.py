"""From a page to square views, as the released inference makes them: pad or stretch the whole, cut a large one."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import ExifTags, Image, ImageDraw, ImageOps

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.work_limits import refuse_memory
from llm_perf_opt.models.deepseek_ocr.configuration import ImageMode
from llm_perf_opt.models.deepseek_ocr.page_geometry import NO_TILES, view_grid, written_size

PADDING_COLOUR = (127, 127, 127)
_BYTES_PER_PIXEL = 30  # three colours: the stretched page, its tiles, and their values twice over as float32
LYING_ORIENTATIONS = (5, 6, 7, 8)  # of the EXIF tag: the upright page has width and height swapped


@dataclass(frozen=True, slots=True, kw_only=True)
class PageViews:
    """The global view, and the tiles row by row: `grid` is (columns, rows), `(1, 1)` when the page is not cut."""

    global_view: Image.Image
    tiles: tuple[Image.Image, ...]
    grid: tuple[int, int]


# What the decoders of Pillow raise at damaged files.
_BROKEN = (OSError, SyntaxError, ValueError, LookupError, TypeError, AttributeError, struct.error, zlib.error, EOFError)


def open_page(image: str) -> Image.Image:
    """An upright RGB page: synthetic for `"1240x1754"` (width x height), otherwise read from that file."""
    if (size := written_size(image)) is not None:
        return synthetic_page(*size)
    with _opened(image) as stored:
        return ImageOps.exif_transpose(stored).convert("RGB")


def stored_size(image: str) -> tuple[int, int]:
    """(width, height) of the upright page in that file; its pixels are not read."""
    with _opened(image) as stored:
        lies = stored.getexif().get(ExifTags.Base.Orientation) in LYING_ORIENTATIONS
        return (stored.height, stored.width) if lies else stored.size


@contextmanager
def _opened(image: str) -> Iterator[Image.Image]:
    try:
        with Image.open(Path(image)) as stored:
            yield stored
    except (*_BROKEN, Image.DecompressionBombError) as error:
        raise UsageError(
            f"Cannot read {image!r} as an image.",
            why=str(error) or type(error).__name__,
            fix="give the path of an image file, or a size such as 1240x1754 for a synthetic page",
        ) from error


def synthetic_page(width: int, height: int) -> Image.Image:
    """A white page with dark lines: what is on it changes no shape, only that it is not empty matters."""
    page = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(page)
    for top in range(height // 20, height, max(1, height // 40)):
        draw.line([(width // 10, top), (width - width // 10, top)], fill="black", width=max(1, height // 200))
    return page


def cut_views(page: Image.Image, mode: ImageMode, grid: tuple[int, int] | None = None) -> PageViews:
    """The views of one page; `grid` forces (columns, rows) instead of what `crop_grid` says."""
    grid = view_grid(page.width, page.height, mode, grid)
    tiles = () if mode.crop_size is None or grid == NO_TILES else _tiles(page, grid, mode.crop_size)
    return PageViews(global_view=_global_view(page, mode), tiles=tiles, grid=grid)


def _global_view(page: Image.Image, mode: ImageMode) -> Image.Image:
    square = (mode.global_size, mode.global_size)
    return page.resize(square) if mode.is_stretched else ImageOps.pad(page, square, color=PADDING_COLOUR)


def _tiles(page: Image.Image, grid: tuple[int, int], tile: int) -> tuple[Image.Image, ...]:
    columns, rows = grid
    refuse_memory(columns * rows * tile**2 * _BYTES_PER_PIXEL, f"A page of {columns}x{rows} crops")
    stretched = page.resize((columns * tile, rows * tile))
    corners = [(column * tile, row * tile) for row in range(rows) for column in range(columns)]
    return tuple(stretched.crop((left, top, left + tile, top + tile)) for left, top in corners)

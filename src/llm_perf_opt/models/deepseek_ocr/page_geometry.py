"""Sizes of a page, its views and its tokens: plain numbers, so that asking for them loads no imaging library."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import MappingProxyType

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig, ImageMode

FEWEST_TILES = 2
MOST_TILES = 9
NO_TILES = (1, 1)
MOST_PIXELS = 2**30 // 4 // 3  # a quarter of a gibibyte in RGB, where Pillow starts to suspect an attack


def written_size(image: str) -> tuple[int, int] | None:
    """(width, height) of `"1240x1754"`; None for anything else, which is then the path of a file."""
    if (size := re.fullmatch(r"(\d+)x(\d+)", image)) is None:
        return None
    width, height = int(size[1]), int(size[2])
    if not 0 < width * height <= MOST_PIXELS:
        raise UsageError(
            f"A page cannot have {width}x{height} pixels.",
            why=f"both sides must be positive and the area at most {MOST_PIXELS:,} pixels",
            fix="give width x height in pixels, such as 1240x1754",
        )
    return width, height


def view_grid(width: int, height: int, mode: ImageMode, wanted: tuple[int, int] | None = None) -> tuple[int, int]:
    """(columns, rows) of the tiles of a page in this mode; `wanted` wins over what `crop_grid` says."""
    _require_visible(width, height, mode)
    if mode.crop_size is None:
        return NO_TILES
    return wanted or crop_grid(width, height, mode.crop_size)


def _require_visible(width: int, height: int, mode: ImageMode) -> None:
    if not mode.is_stretched and round(min(width, height) * mode.global_size / max(width, height)) < 1:
        raise UsageError(
            f"A page of {width}x{height} pixels vanishes when fitted into {mode.global_size} pixels.",
            why="its shorter side would be less than half a pixel",
            fix="give a less elongated page, or a mode that stretches it (tiny, small)",
        )


def crop_grid(width: int, height: int, tile: int) -> tuple[int, int]:
    """(columns, rows) of the tiles: the grid of 2 to 9 tiles with the proportions nearest to the page's.

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


def count_tiles(grid: tuple[int, int]) -> int:
    """Tiles of a grid; a grid of one is a page that was not cut."""
    return 0 if grid == NO_TILES else math.prod(grid)


def count_image_tokens(config: DeepSeekOcrConfig, mode: ImageMode, grid: tuple[int, int]) -> int:
    """One per feature, one per row of features for the newline, and one that separates the views.

    With side s of the global view and k of a tile: s * (s + 1) + 1, plus (columns * k + 1) * rows * k when there are
    tiles.
    """
    side = config.sam.feature_side(mode.global_size)
    tokens = side * (side + 1) + 1
    if mode.crop_size is not None and grid != NO_TILES:
        tile_side = config.sam.feature_side(mode.crop_size)
        tokens += (grid[0] * tile_side + 1) * grid[1] * tile_side
    return tokens


def mode_of_sizes(config: DeepSeekOcrConfig, base_size: int, crop_size: int | None) -> tuple[DeepSeekOcrConfig, str]:
    """A configuration that has the mode, and the mode's name; the same configuration if it had it already.

    Released inference stretches a page to a small view and pads it to a large one. A new mode does likewise: small is
    what is no larger than the largest stretched mode.
    """
    for name, mode in config.modes.items():
        if (mode.global_size, mode.crop_size) == (base_size, crop_size):
            return config, name
    for size in (base_size, *((crop_size,) if crop_size is not None else ())):
        if size < config.sam.patch_size:
            raise UsageError(
                f"A view of {size} pixels a side is too small.",
                why=f"a patch has {config.sam.patch_size}",
                fix="give a larger size",
            )
    small = max((mode.global_size for mode in config.modes.values() if mode.is_stretched), default=0)
    mode = ImageMode(global_size=base_size, crop_size=crop_size, is_stretched=crop_size is None and base_size <= small)
    name = f"{base_size}" if crop_size is None else f"{base_size}+{crop_size}"
    return replace(config, modes=MappingProxyType({**config.modes, name: mode})), name


def require_sizes_of_model(config: DeepSeekOcrConfig, *, patch_size: int, downsample_ratio: int) -> None:
    """Refuse sizes that the weights fix otherwise: each of SAM's last convolutions halves its map."""
    halvings = len(config.sam.downsample_channels)
    fixed = {"patch_size": (patch_size, config.sam.patch_size), "downsample_ratio": (downsample_ratio, 2**halvings)}
    for name, (given, own) in fixed.items():
        if given != own:
            raise UsageError(
                f"{name} cannot be {given}.", why=f"the weights of this model are made for {own}", fix=f"give {own}"
            )

"""Pages become the views that the released inference makes of them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.models.deepseek_ocr.configuration import RELEASED_MODES
from llm_perf_opt.models.deepseek_ocr.page_geometry import MOST_PIXELS, crop_grid
from llm_perf_opt.models.deepseek_ocr.pages import cut_views, open_page, stored_size, synthetic_page

GRIDS = {(i, j) for i in range(1, 10) for j in range(1, 10) if 2 <= i * j <= 9}
SIDES = st.integers(min_value=1, max_value=6000)
TIED_PROPORTIONS = st.sampled_from([(1, 1), (5, 4), (1, 2), (2, 1), (7, 12)])
SIZES = st.one_of(
    st.tuples(SIDES, SIDES),
    st.builds(lambda ratio, scale: (ratio[0] * scale, ratio[1] * scale), TIED_PROPORTIONS, st.integers(1, 1500)),
)


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((1240, 1754), (2, 3)),  # A4 portrait
        ((1754, 1240), (3, 2)),
        ((640, 640), (1, 1)),
        ((641, 640), (2, 2)),
        ((300, 700), (1, 2)),  # 0.43: 1/2 is nearer than 1/3
        ((1358, 1358), (3, 3)),  # 1,844,164 pixels are more than half of nine tiles, 1,843,200
        ((1357, 1357), (2, 2)),  # 1,841,449 are not
        ((1000, 2000), (2, 4)),  # 2,000,000 pixels are more than half of eight tiles
        ((900, 1800), (1, 2)),  # 1,620,000 are not
        (
            (1250, 1000),
            (3, 2),
        ),  # 1.25 is as near to 2/2 as to 3/2; 1,250,000 pixels exceed half of six tiles, 1,228,800
        ((1235, 988), (2, 2)),  # 1,220,180 do not
        ((100, 6000), (1, 9)),
        ((6000, 100), (9, 1)),
        ((1600, 1000), (3, 2)),
    ],
)
def test_grid_by_hand(size: tuple[int, int], grid: tuple[int, int]) -> None:
    assert crop_grid(*size, 640) == grid


@given(SIZES)
def test_no_grid_is_nearer_to_the_proportions_of_the_page(size: tuple[int, int]) -> None:
    width, height = size
    grid = crop_grid(width, height, 640)
    if max(width, height) <= 640:
        assert grid == (1, 1)
        return
    gaps = {(i, j): abs(width / height - i / j) for i, j in GRIDS}
    assert gaps[grid] == min(gaps.values())


@given(SIZES.filter(lambda size: max(size) > 640))
def test_a_tie_is_decided_by_the_pixels_of_the_page(size: tuple[int, int]) -> None:
    width, height = size
    grid = crop_grid(width, height, 640)
    gaps = {(i, j): abs(width / height - i / j) for i, j in GRIDS}
    tied = [other for other in GRIDS if gaps[other] == min(gaps.values())]
    fewest = min(i * j for i, j in tied)
    earned = [i * j for i, j in tied if width * height > 0.5 * 640 * 640 * i * j]
    assert grid[0] * grid[1] == max([fewest, *earned])


def test_tiles_are_cut_row_by_row_from_the_stretched_page() -> None:
    page = noise(900, 1400)
    views = cut_views(page, RELEASED_MODES["gundam"])
    assert views.grid == (2, 3)
    stretched = page.resize((1280, 1920))
    assert [tile.size for tile in views.tiles] == [(640, 640)] * 6
    assert same(views.tiles[1], stretched.crop((640, 0, 1280, 640)))
    assert same(views.tiles[4], stretched.crop((0, 1280, 640, 1920)))
    assert views.global_view.size == (1024, 1024)


def test_a_forced_grid_wins() -> None:
    page = synthetic_page(100, 100)
    assert len(cut_views(page, RELEASED_MODES["gundam"], (3, 1)).tiles) == 3
    assert cut_views(page, RELEASED_MODES["gundam"], (1, 1)).tiles == ()


def test_base_pads_with_grey_and_small_stretches() -> None:
    page = Image.new("RGB", (500, 1000), "red")
    padded = cut_views(page, RELEASED_MODES["base"]).global_view
    assert padded.getpixel((10, 512)) == (127, 127, 127)
    assert padded.getpixel((512, 512)) == (255, 0, 0)
    stretched = cut_views(page, RELEASED_MODES["small"]).global_view
    assert stretched.size == (640, 640)
    assert set(stretched.get_flattened_data()) == {(255, 0, 0)}


def test_a_photo_is_turned_upright_and_made_rgb(tmp_path: Path) -> None:
    stored = noise(60, 40).convert("RGBA")
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side
    path = tmp_path / "photo.png"
    stored.save(path, exif=exif)
    page = open_page(str(path))
    assert (page.size, page.mode) == ((40, 60), "RGB")
    assert same(page, ImageOps.exif_transpose(Image.open(path)).convert("RGB"))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_in_the_head_of_a_file_is_that_of_the_upright_page(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "photo.jpg"
    noise(60, 40).save(path, exif=exif)
    assert stored_size(str(path)) == open_page(str(path)).size


def test_a_synthetic_page_may_be_as_large_as_a_stored_one() -> None:
    assert MOST_PIXELS == Image.MAX_IMAGE_PIXELS


def test_a_size_gives_a_page_with_something_on_it() -> None:
    page = open_page("124x175")
    assert page.size == (124, 175)
    assert len(page.getcolors()) == 2


@pytest.mark.parametrize("image", ["0x10", "100000x100000", "no-such-file.png", "12x", ""])
def test_what_is_no_page_is_refused(image: str) -> None:
    with pytest.raises(UsageError):
        open_page(image)


def test_a_file_that_is_no_image_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "page.png"
    path.write_text("not an image")
    with pytest.raises(UsageError, match="Cannot read"):
        open_page(str(path))


@pytest.mark.parametrize("read", [open_page, stored_size])
def test_a_small_file_of_a_huge_page_is_refused(tmp_path: Path, read: Callable[[str], object]) -> None:
    """Its head says 20,000 x 20,000 pixels, which would take 1.2 GB."""
    path = tmp_path / "bomb.png"
    size = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    chunks = [
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in ((b"IHDR", size), (b"IDAT", b""))
    ]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    with pytest.raises(UsageError, match="Cannot read") as refused:
        read(str(path))
    assert "exceeds limit" in refused.value.why


def test_a_page_too_thin_to_pad_is_refused() -> None:
    with pytest.raises(UsageError, match="vanishes"):
        cut_views(synthetic_page(1, 9000), RELEASED_MODES["base"])


def noise(width: int, height: int) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def same(left: Image.Image, right: Image.Image) -> bool:
    return left.size == right.size and left.tobytes() == right.tobytes()

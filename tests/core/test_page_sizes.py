from __future__ import annotations

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.workload import read_page_size


@pytest.mark.parametrize(
    ("given", "width", "height"),
    [
        ("640x480", 640, 480),
        ("A4@150dpi", 1240, 1754),  # 210 / 25.4 * 150 = 1240.2, 297 / 25.4 * 150 = 1753.9
        ("a4@300", 2480, 3508),
        ("letter@100dpi", 850, 1100),  # 8.5 by 11 inches
        ("Letter-landscape@100dpi", 1100, 850),
        (" 128x128 ", 128, 128),
    ],
)
def test_a_page_is_pixels_or_a_sheet_at_a_resolution(given: str, width: int, height: int) -> None:
    page = read_page_size(given)
    assert (page.width, page.height) == (width, height)
    assert page.text == f"{width}x{height}"
    assert page.pixels == width * height


@pytest.mark.parametrize("given", ["", "0x10", "A4", "A4@0dpi", "A9@100dpi", "10x", "page.png", "1e9x1", "999999x1"])
def test_anything_else_is_refused_with_an_example(given: str) -> None:
    with pytest.raises(UsageError, match="A4@150dpi"):
        read_page_size(given)

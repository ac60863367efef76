"""Tokens, masks and pixels fit together and have the released lengths."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from llm_perf_opt.models.deepseek_ocr.configuration import RELEASED_MODES, DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.inputs import PromptIds, make_inputs, pixels, placeholder_ids
from llm_perf_opt.models.deepseek_ocr.pages import cut_views, synthetic_page
from llm_perf_opt.models.deepseek_ocr.plan import count_image_tokens

RELEASED = DeepSeekOcrConfig()


@pytest.mark.parametrize(
    ("mode", "grid", "tokens"),
    [
        ("tiny", (1, 1), 73),  # 8 rows of 9, and the separator
        ("small", (1, 1), 111),
        ("base", (1, 1), 273),
        ("large", (1, 1), 421),
        ("gundam", (1, 1), 273),
        ("gundam", (2, 3), 903),  # 273, and 30 rows of 21
        ("gundam", (3, 2), 893),
        ("gundam", (3, 3), 1203),
        ("gundam", (2, 1), 483),
    ],
)
def test_image_tokens(mode: str, grid: tuple[int, int], tokens: int) -> None:
    assert count_image_tokens(RELEASED, RELEASED_MODES[mode], grid) == tokens


def test_the_sequence_is_bos_then_image_then_text() -> None:
    mode = RELEASED_MODES["base"]
    views = cut_views(synthetic_page(1240, 1754), mode)
    inputs = make_inputs(
        RELEASED, mode, views, prompt=PromptIds(after=placeholder_ids(20)), batch=2, dtype=torch.bfloat16
    )
    ids = inputs.input_ids[1].tolist()
    assert inputs.num_tokens == 294
    assert ids == [0] + [128815] * 273 + list(range(5, 25))
    assert torch.equal(inputs.images_seq_mask, inputs.input_ids == 128815)
    assert inputs.images_spatial_crop.tolist() == [[1, 1], [1, 1]]
    assert len(inputs.images) == 2


def test_a_page_without_tiles_carries_zeros_in_their_place() -> None:
    mode = RELEASED_MODES["base"]
    views = cut_views(synthetic_page(600, 600), mode)
    inputs = make_inputs(
        RELEASED, mode, views, prompt=PromptIds(after=placeholder_ids(0)), batch=1, dtype=torch.float32
    )
    tiles, page = inputs.images[0]
    assert tiles.shape == page.shape == (1, 3, 1024, 1024)
    assert not tiles.any()
    assert page.any()


def test_tiles_are_stacked_and_the_grid_is_columns_by_rows() -> None:
    mode = RELEASED_MODES["gundam"]
    views = cut_views(synthetic_page(1240, 1754), mode)
    inputs = make_inputs(
        RELEASED, mode, views, prompt=PromptIds(after=placeholder_ids(20)), batch=1, dtype=torch.bfloat16
    )
    tiles, page = inputs.images[0]
    assert (list(tiles.shape), tiles.dtype) == ([6, 3, 640, 640], torch.bfloat16)
    assert list(page.shape) == [1, 3, 1024, 1024]
    assert inputs.images_spatial_crop.tolist() == [[2, 3]]
    assert inputs.num_tokens == 924


def test_pixels_are_channels_first_between_minus_one_and_one() -> None:
    image = Image.new("RGB", (2, 3), (255, 0, 51))
    values = pixels([image])
    assert list(values.shape) == [1, 3, 3, 2]
    assert values[0, :, 0, 0].tolist() == pytest.approx([1.0, -1.0, -0.6])

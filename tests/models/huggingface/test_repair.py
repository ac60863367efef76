from __future__ import annotations

import pytest

from llm_perf_opt.models.huggingface.inputs.plan import Filled, Noise
from llm_perf_opt.models.huggingface.inputs.search import CountLesson, ShapeLesson, count_lesson, shape_lesson


@pytest.mark.parametrize(
    ("message", "lesson"),
    [
        (
            "Image features and image tokens do not match, tokens: 64, features: 784",
            CountLesson("image", 64, 784),
        ),
        ("Audio features and audio tokens do not match, tokens: 3, features 12", CountLesson("audio", 3, 12)),
        ("Placeholder tokens (64) and features (49) do not match for token id 5", CountLesson("image", 64, 49)),
        ("shape mismatch", None),
    ],
)
def test_a_count_is_read_from_the_message(message: str, lesson: CountLesson | None) -> None:
    assert count_lesson(message) == lesson


@pytest.mark.parametrize(
    ("message", "lesson"),
    [
        ("a and b must have same reduction dim, but got [256, 588] X [1176, 1536].", ShapeLesson(588, 1176)),
        ("mat1 and mat2 shapes cannot be multiplied (10x80 and 320x512)", ShapeLesson(80, 320)),
        ("Input height (224) doesn't match model (336).", ShapeLesson(224, 336, dims=(-1, -2))),
        ("`input_values` length 16000 is not a multiple of 1920.", ShapeLesson(16000, 17280)),
        (
            "split_with_sizes expects split_sizes to sum exactly to 2 (input tensor's size at dimension 0), "
            "but got split_sizes=[3, 3]",
            ShapeLesson(2, 6, dims=(1,), rank=5),
        ),
        ("something else", None),
    ],
)
def test_a_size_is_read_from_the_message(message: str, lesson: ShapeLesson | None) -> None:
    assert shape_lesson(message) == lesson


def test_only_the_input_of_the_given_size_changes() -> None:
    plan = {"wide": Noise((1, 8, 80)), "other": Noise((1, 8, 81)), "mask": Filled((1, 80), 1)}
    assert ShapeLesson(80, 320).applied(plan) == {**plan, "wide": Noise((1, 8, 320))}
    square = {"pixels": Noise((1, 3, 224, 224)), "page": Noise((1, 3, 448, 224))}
    assert ShapeLesson(224, 336, dims=(-1, -2)).applied(square) == {**square, "pixels": Noise((1, 3, 336, 336))}

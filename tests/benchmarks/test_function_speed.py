"""A function answers many points about as fast as its formulas do in plain numpy."""

from __future__ import annotations

import numpy as np
import pytest

import llm_perf_opt as lpo
from benchmarks.function_speed import bare, compared, largest_cell, random_points
from llm_perf_opt.sweeps.function.phase_function import PhaseFunction
from tests.models.huggingface.folders import LLAMA, write_folder

pytestmark = pytest.mark.slow
NAMES = ("flops", "vector_flops", "bytes_moved", "peak_bytes")


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> PhaseFunction:
    folder = write_folder(tmp_path_factory.mktemp("model"), {**LLAMA, "max_position_embeddings": 131_072})
    return lpo.trace(folder, prompt_tokens=20).over(batch=(2, 64), context=(8, 2_000)).phase("decode")


def test_a_hundred_thousand_points_take_no_more_than_a_few_bare_evaluations(decode: PhaseFunction) -> None:
    ours, theirs, numbers = compared(decode, 100_000, rounds=9)
    assert numbers == "64 bits"
    assert ours < 6 * theirs  # measured: twice; a busy machine disturbs both sides


def test_both_sides_give_the_same_numbers(decode: PhaseFunction) -> None:
    cell = largest_cell(decode)
    points = random_points(cell, 1_000)
    ours = decode.figures(points, NAMES)
    assert all(np.array_equal(ours[name], column) for name, column in zip(NAMES, bare(cell, points), strict=True))

"""How often the blocks of a folder must run: from the depths in its configuration, against the trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.graphs.call_checks import CallCheck
from tests.models.huggingface.folders import LLAMA, LLAVA, MIXTRAL, T5, write_folder

transformers = pytest.importorskip(
    "transformers", reason="a Hugging Face folder is run by transformers, an optional extra"
)


def checks_of(folder: Path, config: dict[str, Any], **options: Any) -> tuple[CallCheck, ...]:
    return lpo.trace(write_folder(folder, config), **options).stages().call_checks


def figures(checks: tuple[CallCheck, ...]) -> list[tuple[str, str, int, int]]:
    return [(check.phase, check.what, check.at_least, check.found) for check in checks]


@pytest.mark.parametrize("config", [LLAMA, MIXTRAL], ids=["llama", "mixtral"])
def test_layers_run_once_in_the_prefill_and_once_per_step(tmp_path: Path, config: dict[str, Any]) -> None:
    checks = checks_of(tmp_path, config, prompt_tokens=16, decode_steps=3)
    assert figures(checks) == [("prefill", "layers", 2, 2), ("decode", "layers", 6, 6)]


def test_the_vision_tower_runs_on_a_batch_of_images_and_not_in_the_decode(tmp_path: Path) -> None:
    checks = checks_of(tmp_path, LLAVA, image="32x32", batch=2, decode_steps=2)
    assert figures(checks) == [
        ("prefill", "vision blocks", 3, 3),
        ("prefill", "layers", 2, 2),
        ("decode", "vision blocks", 0, 0),
        ("decode", "layers", 4, 4),
    ]
    assert checks[0].formula == "3 blocks x 1 batch, images: 2"


def test_an_encoder_that_reads_text_has_no_rule(tmp_path: Path) -> None:
    assert checks_of(tmp_path, T5) == ()

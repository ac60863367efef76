"""Many questions to one process: served models stay in memory, answers stay as they were, and memory stays flat."""

from __future__ import annotations

import gc
import json
import logging
import tracemalloc
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core import store
from llm_perf_opt.serving import served_model
from tests.models.huggingface.folders import LLAMA, write_folder

GPU = "mi300x"  # timed by its data sheet: nothing is read


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "store"))
    (tmp_path / "model").mkdir()
    return write_folder(tmp_path / "model", LLAMA)


def asked(folder: Path, gpus: str = GPU, **question: Any) -> tuple[dict[str, Any], dict[str, float], str]:
    """Every figure of an answer, and its report."""
    answer = lpo.serve(folder, gpus, **{"input": 40, "output": 8, **question})
    return answer.to_dict(), dict(answer.step_seconds), repr(answer.report())


QUESTIONS: tuple[dict[str, Any], ...] = (
    {"users": 4},
    {"users": 9},
    {"users": 9, "input": 41},
    {"rate": "5/s", "slo": "ttft=2s,tpot=40ms"},
    {"rate": "5/s", "slo": "ttft=2s,tpot=400ms"},
    {"users": 4, "engine": "vllm,sglang"},
    {"users": 4, "engine": "sglang"},
    {"users": 4, "max_sequences": 2},
    {"users": 4, "gpus": "2x mi300x"},
    {"users": 4, "gpus": "mi300x,mi325x"},
    {"users": 4, "input": "lognormal(60,0.8)"},
    {"users": 4, "weights": "fp8"},
    {"users": 4, "cache": "fp8"},
    {"users": 4, "engine_only": True},
)


def test_a_process_that_was_asked_before_answers_as_one_that_was_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered = [asked(folder, **question) for question in (*QUESTIONS, *QUESTIONS)]
    monkeypatch.setenv(store.VARIABLE, store.OFF)  # nothing is remembered
    fresh = [asked(folder, **question) for question in QUESTIONS]
    assert remembered == [*fresh, *fresh]


def test_another_content_of_the_folder_is_another_model(folder: Path) -> None:
    before = asked(folder, users=4)
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_hidden_layers": 1}))
    assert asked(folder, users=4) != before


def test_devices_of_a_file_are_not_taken_for_those_of_the_package(folder: Path, tmp_path: Path) -> None:
    before = asked(folder, users=4)
    file = tmp_path / "devices.toml"
    of_package = resources.files("llm_perf_opt.core.hardware").joinpath("devices.toml").read_text()
    block = of_package[of_package.index(f"[devices.{GPU}]") :].partition("\n[devices.")[0]
    file.write_text(block.replace("bandwidth_gb_per_s = 5300", "bandwidth_gb_per_s = 530"))
    assert asked(folder, users=4, devices_file=file) != before
    assert asked(folder, users=4) == before


def test_memory_stays_flat(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MOST_REPLICAS", "_MOST_MEMORIES", "_MOST_MODELS"):
        monkeypatch.setattr(served_model, name, 8)

    def held_after(questions: range) -> int:
        for number in questions:
            lpo.serve(folder, GPU, input=100 + number, output=8, users=1 + number % 7, max_sequences=8 + number % 12)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    logging.disable(logging.CRITICAL)  # pytest keeps every line of the log
    tracemalloc.start()
    try:
        first = held_after(range(30))
        then = held_after(range(30, 60))
    finally:
        tracemalloc.stop()
        logging.disable(logging.NOTSET)
    assert then - first < 30_000, f"30 questions left {then - first:,} bytes behind"
    assert len([entry for entry in store.entries() if entry.kind == "shares of a step"]) <= 1

"""The sweep over full-size configurations: a sample of it, and the parts it is made of."""

from __future__ import annotations

import json
import resource
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.breadth.full_size import CHANGES_FILE, align, run_model_type, section
from benchmarks.runner import Caps, run_jobs

transformers = pytest.importorskip("transformers", reason="the sweep is over the model types of transformers")

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "breadth.md"
DATA = Path(__file__).parents[2] / "docs" / "data" / "breadth_full_size.json"
CAPS = Caps(seconds=60, memory_bytes=4 << 30)

# model type -> parameters of the default configuration, as the classes themselves count them when built with weights
SAMPLE = {
    "bert": 109_514_298,
    "clip": 151_277_313,
    "detr": None,
    "llama": 6_738_415_616,
    "mamba": None,
    "mixtral": 46_702_792_704,
    "qwen2_5_vl": None,
    "resnet": 23_508_032,
    "t5": 60_506_624,
    "whisper": None,
}


@pytest.fixture(scope="module")
def sample() -> dict[str, dict[str, Any]]:
    """One record for each model type, with the memory that its child needed beside what it inherited."""
    if int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("the changes to default configurations are written for transformers 5")
    run_model_type("llama")  # what every child would otherwise import for itself
    inherited = _resident_bytes()
    records = dict(run_jobs(list(SAMPLE), run_model_type, CAPS, workers=1))
    return {name: {**record, "own_bytes": record.get("rss_bytes", 0) - inherited} for name, record in records.items()}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.breadth
@pytest.mark.parametrize("model_type", SAMPLE)
def test_full_size_models_run_without_weights(sample: dict[str, dict[str, Any]], model_type: str) -> None:
    record = sample[model_type]
    assert record["status"] == "ok", record.get("message")
    assert set(record["accepts"]) <= {*record["modalities"], "text"}
    assert record["own_bytes"] < 1 << 30
    if (parameters := SAMPLE[model_type]) is not None:
        assert record["parameters"] == parameters


class Config(SimpleNamespace):
    """As much of a configuration as the alignment looks at."""

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


def test_parts_that_do_not_fit_are_aligned_and_told() -> None:
    config = Config(
        image_token_id=32000,
        text_config=Config(vocab_size=32000, hidden_size=4096),
        vision_config=Config(out_hidden_size=3584),
    )
    assert len(list(align(config))) == 2
    assert config.text_config.vocab_size == 32064
    assert config.vision_config.out_hidden_size == 4096
    assert list(align(config)) == []


def test_every_change_has_a_reason_and_a_model_type() -> None:
    if int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("the changes to default configurations are written for transformers 5")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    changes = tomllib.loads(CHANGES_FILE.read_text())
    assert [name for name, change in changes.items() if not change.get("why")] == []
    assert set(changes) <= set(CONFIG_MAPPING_NAMES)


def job(name: str) -> dict[str, object]:
    if name == "raises":
        raise ValueError("no")
    if name == "spins":
        while True:
            pass
    if name == "grows":
        # More than a worker of many tests can have freed and kept: from that, memory is handed out beside any limit.
        return {"status": "ok", "sizes": [len(bytearray(1 << 30)) for _ in range(16)]}
    return {"status": "ok"}


def test_one_bad_job_costs_one_record() -> None:
    caps = Caps(seconds=4, memory_bytes=512 << 20)
    records = dict(run_jobs(["fine", "raises", "spins", "grows", "too"], job, caps, workers=2))
    assert {name: record["status"] for name, record in records.items()} == {
        "fine": "ok",
        "raises": "crash",
        "spins": "timeout",
        "grows": "memory",
        "too": "ok",
    }


def test_the_page_shows_the_data() -> None:
    data = json.loads(DATA.read_text())
    header = {key: value for key, value in data.items() if key != "records"}
    assert section(header, data["records"]) in PAGE.read_text()


def test_the_figures_are_at_least_those_promised() -> None:
    records = json.loads(DATA.read_text())["records"]
    ran = [name for name, record in records.items() if record["status"] == "ok"]
    assert len(records) >= 622
    assert len(ran) >= 503

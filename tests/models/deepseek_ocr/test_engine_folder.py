"""The folder that an engine takes says what the released configuration says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_perf_opt.core.plugins import MODELS
from llm_perf_opt.core.protocols import WritesEngineFolder

RELEASED = Path(__file__).parents[2] / "facts" / "deepseek_ocr" / "config.json"
_OF_THE_CODE = {"model_type", "architectures", "torch_dtype"}  # an engine has classes and a type of its own


def _differences(ours: Any, released: Any, place: str = "") -> list[str]:
    if isinstance(ours, dict) and isinstance(released, dict):
        shared = [name for name in ours if name in released and name not in _OF_THE_CODE]
        return [
            difference for name in shared for difference in _differences(ours[name], released[name], f"{place}.{name}")
        ]
    return [] if ours == released else [f"{place}: {ours} is not {released}"]


def test_every_size_is_that_of_the_released_model(tmp_path: Path) -> None:
    adapter = MODELS.get("deepseek-ocr")()
    assert isinstance(adapter, WritesEngineFolder)
    adapter.write_engine_folder(tmp_path)
    ours, released = json.loads((tmp_path / "config.json").read_text()), json.loads(RELEASED.read_text())
    assert _differences(ours, released) == []
    compared = [name for name in ours if name in released]
    assert {"hidden_size", "num_hidden_layers", "language_config", "vision_config"} <= set(compared)

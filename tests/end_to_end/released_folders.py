"""The released folder with a small decoder: its code and vision encoders as they are, quick enough to run for real."""

from __future__ import annotations

import json
import os
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

FOLDER = os.environ.get("LLM_PERF_OPT_DSOCR_DIR")
needs_released_code = [
    pytest.mark.skipif(FOLDER is None, reason="LLM_PERF_OPT_DSOCR_DIR names no folder with the released code"),
    pytest.mark.skipif(
        FOLDER is not None and not version("transformers").startswith(("4.46.", "4.47.")),
        reason="the released code needs transformers 4.46 or 4.47",
    ),
]
SMALL = {"n_routed_experts": 8, "intermediate_size": 512, "moe_intermediate_size": 128}


def small_folder(place: Path, layers: int) -> Path:
    """A copy without weights, with that many small decoder layers."""
    shutil.copytree(str(FOLDER), place, ignore=shutil.ignore_patterns("*.safetensors*"))
    config = json.loads((place / "config.json").read_text("utf-8"))
    small = {**SMALL, "num_hidden_layers": layers}
    (place / "config.json").write_text(
        json.dumps({**config, **small, "language_config": {**config["language_config"], **small}}), encoding="utf-8"
    )
    return place

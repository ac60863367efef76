"""Study files of models small enough to trace in a fraction of a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.api.tiny_folders import llama_folder

GRID: dict[str, Any] = {
    "workload": {"users": 2, "input": 16},
    "deployments": {"plan": ["one device", "tp2", "dp2", "pp2"], "weights": ["checkpoint", "fp8", "int4-g128"]},
    "gpus": ["h100-sxm", "l40s"],
    "prices": {"h100-sxm": 2.5},
}


def written(folder: Path, name: str = "tiny", **changed: Any) -> Path:
    """A study file; JSON is YAML."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "study.yaml"
    path.write_text(json.dumps({"name": name, **GRID, **changed}))
    return path


def tiny_study(folder: Path, models: int, name: str = "tiny", **changed: Any) -> Path:
    """A study of this many decoders that differ in width."""
    for number in range(models):
        if not (folder / f"models/m{number:02}").exists():
            llama_folder(folder / f"models/m{number:02}", num_hidden_layers=2, intermediate_size=128 + 16 * number)
    return written(folder, name, models=["models/*"], **changed)

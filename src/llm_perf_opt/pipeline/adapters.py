"""From the name that a person gives to the adapter that knows the model."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.errors import UsageError
from llm_perf_opt.plugins import FOLDERS, MODELS, ModelAdapter


def find_adapter(model: str, trust_remote_code: bool) -> ModelAdapter:
    """The adapter registered as `model`, or the one for the folder of that name."""
    if model in MODELS.names():
        return MODELS.get(model)()
    if Path(model).is_dir():
        return FOLDERS.get("huggingface")(Path(model), trust_remote_code)
    if "/" in model:
        raise UsageError(
            f"There is no folder {model!r}.",
            why="a name with a slash is read as a local folder; nothing is downloaded",
            fix=f'fetch the code and configuration alone: hf download {model} --include "*.json" "*.py" '
            f"--local-dir {Path(model).name}",
        )
    return MODELS.get(model)()

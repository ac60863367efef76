"""The configuration each model type is swept with: the defaults, plus recorded changes where they cannot run."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config_alignment import align

CHANGES_FILE = Path(__file__).with_name("full_size_changes.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class FullSizeConfig:
    """A configuration, what was changed in it and why, and the class if not the preferred one."""

    config: Any
    why: str | None
    changes: Mapping[str, Any]
    alignments: tuple[str, ...]
    class_name: str | None


def full_size_config(model_type: str) -> FullSizeConfig:
    """The default configuration of `model_type` with the changes of `full_size_changes.toml`, its parts aligned."""
    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    entry = _entries().get(model_type, {})
    changes = entry.get("config", {})
    config = auto.CONFIG_MAPPING[model_type](**_built(changes))
    return FullSizeConfig(
        config=config,
        alignments=tuple(align(config)),
        why=entry.get("why"),
        changes=changes,
        class_name=entry.get("class"),
    )


def _entries() -> dict[str, Any]:
    return tomllib.loads(CHANGES_FILE.read_text(encoding="utf-8"))


def _built(value: Any) -> Any:
    """Tables with a `repeat` stand for long lists and name tables, which would drown the file."""
    match value:
        case {"repeat": item, "times": int() as times, **rest}:
            return [*rest.get("first", []), *[item] * times]
        case {"numbered": str() as pattern, "times": int() as times, "start": int() as start, **rest}:
            return rest.get("also", {}) | {pattern.format(index): start + index for index in range(times)}
        case dict():
            return {key: _built(item) for key, item in value.items()}
        case _:
            return value

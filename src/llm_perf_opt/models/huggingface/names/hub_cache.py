"""Models in the cache of huggingface_hub on this machine: found by their folders, without a request.

The layout is the documented one: `models--ORG--NAME/refs/main` holds a revision, `snapshots/REVISION` its files.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.reading import MODEL_FILE, read_foreign_json
from llm_perf_opt.models.huggingface.identity import code_names

CONFIG = "config.json"
_PREFIX = "models--"
REVISION = re.compile(r"[0-9a-f]{7,64}")
_LONGEST_REF = 100  # bytes: a revision has 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The files of one revision of a model."""

    folder: Path
    revision: str

    @property
    def has_its_code(self) -> bool:
        """Whether every Python file that the configuration names lies beside it; true where it names none."""
        return all((self.folder / f"{module}.py").is_file() for module in _own_modules(self.folder / CONFIG))


def is_installed() -> bool:
    """Whether huggingface_hub, which comes with the extra `hf`, is there."""
    return importlib.util.find_spec("huggingface_hub") is not None


def cache_folder() -> Path | None:
    """Where huggingface_hub keeps its files, as HF_HOME and HF_HUB_CACHE say; None where it is not installed."""
    if not is_installed():
        return None
    from huggingface_hub import constants  # quick: neither requests nor torch are loaded

    return Path(constants.HF_HUB_CACHE)


def snapshot(name: str) -> Snapshot | None:
    """What the cache holds of a model: the revision of its main branch, with a configuration."""
    root = cache_folder()
    if root is None:
        return None
    place = root / f"{_PREFIX}{name.replace('/', '--')}"
    try:
        with (place / "refs" / "main").open("rb") as file:
            revision = file.read(_LONGEST_REF).decode("ascii", "replace").strip()
    except OSError:
        return None
    folder = place / "snapshots" / revision
    if not REVISION.fullmatch(revision) or not (folder / CONFIG).is_file():
        return None
    return Snapshot(folder=folder, revision=revision)


def cached_names() -> tuple[str, ...]:
    """Every model of which the cache holds a configuration."""
    root = cache_folder()
    places = sorted(root.glob(f"{_PREFIX}*--*")) if root is not None and root.is_dir() else []
    names = (place.name.removeprefix(_PREFIX).replace("--", "/", 1) for place in places)
    return tuple(name for name in names if snapshot(name) is not None)


def _own_modules(config: Path) -> set[str]:
    """Python modules beside the configuration that its `auto_map` names; a bad file is reported by who reads it."""
    try:
        fields = read_foreign_json(config, MODEL_FILE)
        names = list(code_names(fields.get("auto_map") if isinstance(fields, Mapping) else None))
    except PerfOptError:
        return set()
    return {name.split(".")[0] for _, name in names if "--" not in name}

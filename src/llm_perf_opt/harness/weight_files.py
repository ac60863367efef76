"""Which files of a folder hold its weights: what an index names is checked before anything is opened.

An index comes from outside. It may name files of its own folder and no others.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.reading import FileKind, read_foreign_json

_INDEX = "*.safetensors.index.json"
WEIGHTS_INDEX = FileKind(name="index of weights", fix="fetch the file again", stays_in_folder=True, error=UsageError)
_MOST_FILES = 10_000


def find_index(folder: Path) -> Path | None:
    """The index of the folder's weights; None where there is none."""
    return next(iter(sorted(folder.glob(_INDEX))), None)


def read_weight_map(index: Path) -> dict[str, str]:
    """Name of a tensor -> name of the file that holds it, a file of the folder that the index lies in."""
    document = read_foreign_json(index, WEIGHTS_INDEX)
    shards = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise _refused(index, 'it has no object "weight_map" of file names')
    names = set(shards.values())
    if len(names) > _MOST_FILES:
        raise _refused(index, f"it names {len(names):,} files, more than {_MOST_FILES:,}")
    for name in sorted(names):
        if not _is_inside(name):
            raise _refused(index, f"it names {name[:200]!r}, which is no file of its own folder")
    return shards


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name.replace("\\", "/"))
    is_plain = name.isprintable() and len(name) <= 255 and ":" not in name
    return is_plain and name.endswith(".safetensors") and not path.is_absolute() and ".." not in path.parts


def _refused(index: Path, why: str) -> UsageError:
    return UsageError(f"{index} is no index of weights.", why=why, fix=WEIGHTS_INDEX.fix)

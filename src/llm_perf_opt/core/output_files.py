"""Files that are written: refused before the work begins where one would be overwritten, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import PerfOptError


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Write beside `path` under another name and rename when complete; on an error nothing is left behind."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.writelines(pieces)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def plain_values(record: object) -> dict[str, Any]:
    """The record of a file as the mappings, lists and numbers of its JSON text; NaN and infinities raise."""
    import msgspec

    document: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(record), allow_nan=False))
    return document


def require_free(files: Iterable[Path], *, force: bool) -> None:
    """Nothing is overwritten silently; `force` is the word that allows it."""
    taken = [str(file) for file in files if file.exists()]
    if taken and not force:
        raise PerfOptError(
            f"Would overwrite {', '.join(taken)}.",
            why="a result is never overwritten silently",
            fix="add --force (in Python force=True) to replace what is there, or choose another --out",
        )


def make_folder(folder: Path) -> None:
    """Make it, and whatever is above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PerfOptError(
            f"Cannot make the folder {folder}.", why=error.strerror or type(error).__name__, fix="choose another --out"
        ) from error


def free_file(file: Path, *, force: bool) -> None:
    """The same for one file: its place is free, and its folder is there."""
    require_free([file], force=force)
    make_folder(file.parent)


def write_result(file: Path, content: str | bytes) -> None:
    """Write it whole or not at all."""
    try:
        write_whole(file, [content.encode() if isinstance(content, str) else content])
    except OSError as error:
        raise PerfOptError(
            f"Cannot write {file}.", why=error.strerror or type(error).__name__, fix="choose another --out"
        ) from error

"""Where results go: refused before the work begins when something would be overwritten or cannot be written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from llm_perf_opt.errors import PerfOptError
from llm_perf_opt.whole_files import write_whole


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

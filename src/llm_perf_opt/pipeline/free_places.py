"""Where results go: refused before the work begins when something would be overwritten."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from llm_perf_opt.errors import PerfOptError


def require_free(files: Iterable[Path], *, force: bool) -> None:
    """Nothing is overwritten silently; `force` is the word that allows it."""
    taken = [str(file) for file in files if file.exists()]
    if taken and not force:
        raise PerfOptError(
            f"Would overwrite {', '.join(taken)}.",
            why="a result is never overwritten silently",
            fix="add --force to replace what is there, or choose another --out",
        )


def make_folder(folder: Path) -> None:
    """Make it, and whatever is above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PerfOptError(
            f"Cannot make the folder {folder}.", why=error.strerror or type(error).__name__, fix="choose another --out"
        ) from error

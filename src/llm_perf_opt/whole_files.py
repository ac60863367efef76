"""Files that appear whole or not at all: a reader never meets half of one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Write beside `path` under another name and rename when complete; on an error nothing is left behind."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.writelines(pieces)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)

"""The Chrome trace of a profile as a file: torch writes it by itself, and does not say when it could not."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import profile

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import scratch_folder

# torch writes the name of the file last, behind the list of events; a brace alone may be that of an event.
_END = re.compile(rb'"traceName":\s*"(?:\\.|[^"\\])*"\s*\}\s*\Z')
_TAIL = 16_384  # bytes, among which that name must be


@contextmanager
def exported_trace(profiler: profile, folder: Path | None) -> Iterator[Path]:
    """A whole temporary file in `folder`, to be read or to be moved to its name. Default: in the temporary folder."""
    with scratch_folder(folder) as scratch:
        file = scratch / "chrome-trace.json"
        profiler.export_chrome_trace(str(file))
        if not _is_whole(file):
            raise PerfOptError(
                f"Cannot write the Chrome trace to {scratch.parent}.",
                why="torch's profiler left no whole file, which is what it does on a full disk",
                fix="make room there, or choose another folder",
            )
        yield file


def _is_whole(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        opened.seek(-min(_TAIL, file.stat().st_size), os.SEEK_END)
        return _END.search(opened.read()) is not None

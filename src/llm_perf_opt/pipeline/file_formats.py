"""The format of a file, told from how its name ends."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.errors import UsageError
from llm_perf_opt.plugins import DRAWINGS, REPORTERS


def report_format_of(path: Path) -> str:
    """The report format whose files end like this."""
    known = {REPORTERS.get(name).suffix: name for name in REPORTERS.names()}
    if path.suffix not in known:
        raise UsageError(
            f"No format ends in {path.suffix!r}.",
            why=f"the suffix is the format, one of: {', '.join(known)}",
            fix="name the file so, or give --format",
        )
    return known[path.suffix]


def drawing_format_of(path: Path) -> str:
    """The drawing whose files end like this; the longer of two endings wins: `.speedscope.json` over `.json`."""
    suffixes = {name: DRAWINGS.get(name).suffix for name in DRAWINGS.names()}
    named = [name for name, suffix in suffixes.items() if path.name.endswith(suffix)]
    if named:
        return max(named, key=lambda name: len(suffixes[name]))
    alike = [name for name, suffix in suffixes.items() if path.suffix and suffix.endswith(path.suffix)]
    if not alike:
        raise UsageError(
            f"No format is known for the ending of {path}.",
            why="without --format it tells how to draw",
            fix=f"add --format, one of: {', '.join(DRAWINGS.names())}",
        )
    return alike[0]

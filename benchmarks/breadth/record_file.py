"""Records kept as JSON, one per line, so that a sweep can be continued and a change can be read in a diff."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from .fork_pool import Record, write_atomically


def load_records(path: Path) -> dict[str, Record]:
    """Key -> record; empty when the file does not exist yet."""
    if not path.exists():
        return {}
    records: dict[str, Record] = json.loads(path.read_text(encoding="utf-8"))["records"]
    return records


def save_records(path: Path, header: Mapping[str, object], records: Mapping[str, Record]) -> None:
    """Write `header`, then the records sorted by key."""
    head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in header.items())
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(records[key])}" for key in sorted(records))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f'{{{head}"records": {{\n{lines}\n}}}}\n')

"""How programs call the columns of a table: words in snake_case with the unit at the end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count

from llm_perf_opt.document import Column, Kind

# Counts and words need no unit; "bytes moved" already has one.
UNIT_OF: dict[Kind, str] = {kind: kind.value for kind in Kind if kind not in (Kind.TEXT, Kind.COUNT)}


def column_keys(columns: Sequence[Column]) -> list[str]:
    """One key per column, all different: `activations` of kind bytes -> `activations_bytes`."""
    keys: dict[str, None] = {}
    for column in columns:
        wanted = _key(column)
        numbered = (wanted if number == 1 else f"{wanted}_{number}" for number in count(1))
        keys[next(key for key in numbered if key not in keys)] = None
    return list(keys)


def _key(column: Column) -> str:
    words = "_".join(re.findall(r"\w+", column.name.lower())) or "column"
    unit = UNIT_OF.get(column.kind)
    return words if unit is None or f"_{unit}_" in f"_{words}_" else f"{words}_{unit}"

"""Free-form values (constructor parameters, op arguments, workloads) in the one form that survives a JSON file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from llm_perf_opt.core.callgraph.records import Json
from llm_perf_opt.core.reading import FileKind

MAX_DEPTH = 32
SMALLEST_INT = -(2**63)
LARGEST_INT = 2**64 - 1  # the range of torch's own scalars, int64 and uint64


def json_safe(value: object, depth: int = 0) -> Json:
    """The value as null, bool, int, float, str, list or dict, so that it reads the same before and after saving.

    Tuples become lists and keys become text. What JSON cannot hold, the infinities, NaN and integers beyond 64 bits,
    becomes its own text ("-inf"). Any other type is the caller's to translate: ValueError.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"a value nested more than {MAX_DEPTH} levels deep has no place in a trace")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if SMALLEST_INT <= value <= LARGEST_INT else str(int(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): json_safe(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item, depth + 1) for item in value]
    raise ValueError(f"a {type(value).__name__} has no JSON form: {value!r:.80}")


def canonical_text(value: Json) -> str:
    """Equal texts for equal values only: unlike `==` it tells 1 from True and from 1.0."""
    return json.dumps(value, sort_keys=True, allow_nan=False)


def require_safe(values: Mapping[str, Json], where: str, kind: FileKind, depth: int = 0) -> None:
    """Values out of a JSON text are within the bounds of what `json_safe` lets in."""
    if values and depth >= MAX_DEPTH:
        raise kind.malformed(where, f"at most {MAX_DEPTH} levels", values)
    for value in values.values() if isinstance(values, Mapping) else values:
        if type(value) is int and not SMALLEST_INT <= value <= LARGEST_INT:
            raise kind.malformed(where, "an integer of at most 64 bits", value)
        if type(value) in (dict, list):
            require_safe(value, where, kind, depth + 1)

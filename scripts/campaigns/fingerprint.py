"""A call graph as a number: equal for two runs of the same work, whatever time they took."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from llm_perf_opt.core.callgraph import CallGraph, to_json_dict

_OF_TIME = frozenset({"started_ns", "ended_ns", "duration_ns", "device_ns"})


def fingerprint(graph: CallGraph) -> str:
    """Everything that the file of the graph would hold, but for times."""
    text = json.dumps(_timeless(to_json_dict(graph)), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(item) for name, item in value.items() if name not in _OF_TIME}
    if isinstance(value, list):
        return [_timeless(item) for item in value]
    return value

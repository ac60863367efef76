"""The recorded runs of the released code as call graphs, so that a trace can be held against them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from llm_perf_opt.core.callgraph import CallGraph, Observation, TensorMeta

FOLDER = Path(__file__).parents[1] / "facts" / "deepseek_ocr"
PHASES = {"prefill": "prefill", "decode": "decode_step"}


def recorded_run(name: str, phase: str) -> CallGraph:
    """One phase of `callgraph-<name>.json`. A cache is one word there; its tensors were not written down."""
    record = _read(f"callgraph-{name}")[PHASES[phase]]
    return CallGraph(
        model="deepseek-ocr",
        phase=phase,
        tracer="released code",
        call_counts=record["call_counts"],
        root_calls={"": 1},
        edges=record["edges"],
        module_types=_read("structure")["modules"],
        input_metadata={path: _observations(calls, "in") for path, calls in record["io"].items()},
        output_metadata={path: _observations(calls, "out") for path, calls in record["io"].items()},
    )


def _read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def _observations(calls: list[dict[str, Any]], way: str) -> tuple[Observation, ...]:
    counts = Counter(tuple(_meta(*tensor) for tensor in call[way] if tensor != "cache") for call in calls)
    return tuple(Observation(tensors=tensors, calls=count) for tensors, count in counts.items())


def _meta(shape: list[int], dtype: str) -> TensorMeta:
    return TensorMeta(tuple(shape), dtype.removeprefix("torch."), "cpu")

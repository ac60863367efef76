"""The runs that are too large for a test: their records hold what the page about tracers says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "evidence" / "tracers.md").read_text("utf-8")


def record(name: str) -> Any:
    return json.loads((DOCS / "data" / f"{name}.json").read_text("utf-8"))


def test_hooks_equal_the_facts_and_weightless_at_full_size() -> None:
    phases = record("full_size_hooks")["phases"]
    assert {name: phase["differences"] for name, phase in phases.items()} == {"prefill": [], "decode": []}
    for phase in phases.values():
        assert f"| {phase['module_calls']:,} | {phase['seconds_of_forward']} s |" in PAGE


def test_hooks_cost_at_most_three_percent() -> None:
    overhead = record("tracer_overhead")
    assert overhead["plain_cpu_seconds_median"] >= 1
    assert overhead["hooks_cpu_overhead_percent"] <= 3
    assert f"{overhead['hooks_cpu_overhead_percent']} %" in PAGE
    assert f"{overhead['profiler_cpu_overhead_percent']} %" in PAGE


def test_torchlens_agrees_at_full_width() -> None:
    run = record("full_width_torchlens")
    assert (run["calls_equal"], run["edges_equal"], run["problems"]) == (True, True, [])
    assert run["modules_with_other_shapes"] == ["model.layers.0", "model.layers.0.input_layernorm"]
    assert f"{run['module_calls']:,} calls and {run['ops']:,} ops in {run['seconds']} s" in PAGE

"""Weightless equals real: calls, edges, shapes and dtypes of every module, as recorded from the released code."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.weightless import ReplayRouting
from tests.end_to_end.deepseek_ocr_runs import facts, trace, workload

EXPERT = re.compile(r"(.*\.mlp)\.experts\.(\d+)")
CACHE = "cache"  # the record's mark for a cache object, whose tensors it does not list
RUNS = [
    pytest.param("base", "prefill", id="base-prefill"),
    pytest.param("base", "decode_step", id="base-decode"),
    pytest.param("gundam-2x3", "prefill", id="gundam-prefill"),
    pytest.param("gundam-2x3", "decode_step", id="gundam-decode"),
]


def recorded(run: str, phase: str) -> dict[str, Any]:
    return facts(f"callgraph-{run}.json")[phase]  # type: ignore[no-any-return]


@cache
def traced(run: str, phase: str, *, replay: bool = False) -> CallGraph:
    crops = facts(f"callgraph-{run}.json")["workload"]["crops"]
    routing = ReplayRouting(expert_counts(recorded(run, phase))) if replay else None
    chosen = workload("base" if run == "base" else "gundam", crops)
    return trace(chosen, "prefill" if phase == "prefill" else "decode", routing)


def expert_counts(record: dict[str, Any], experts: int = 64) -> list[list[int]]:
    """Rows that each expert received, layer by layer."""
    rows: dict[int, list[int]] = {}
    for path, observations in record["io"].items():
        match = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)", path)
        if match:
            counts = rows.setdefault(int(match[1]), [0] * experts)
            counts[int(match[2])] = observations[0]["in"][0][0][0]
    return [rows[layer] for layer in sorted(rows)]


def without_experts(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if not EXPERT.search(name)}


@pytest.mark.parametrize(("run", "phase"), RUNS)
def test_calls_and_edges_outside_the_experts_are_identical(run: str, phase: str) -> None:
    record, graph = recorded(run, phase), traced(run, phase)
    assert graph.problems() == []
    assert without_experts(graph.call_counts) == without_experts(record["call_counts"])
    assert without_experts(graph.edges) == without_experts(record["edges"])


@pytest.mark.parametrize(("run", "phase"), RUNS)
def test_shapes_and_dtypes_outside_the_experts_are_identical(run: str, phase: str) -> None:
    record, graph = recorded(run, phase), traced(run, phase)
    compared = 0
    for path, observations in record["io"].items():
        if EXPERT.search(path):
            continue
        for side, observed in (("in", graph.input_metadata[path]), ("out", graph.output_metadata[path])):
            expected = {pattern(observation[side]) for observation in observations}
            got = {tuple((tuple(meta.shape), meta.dtype) for meta in row.tensors) for row in observed}
            assert len(got) == len(expected), path
            assert all(any(fits(row, wanted) for wanted in expected) for row in got), (path, side, expected, got)
            compared += 1
    assert compared == 2 * len(without_experts(record["call_counts"]))


def pattern(tensors: list[Any]) -> tuple[Any, ...]:
    return tuple(
        CACHE if tensor == CACHE else (tuple(tensor[0]), tensor[1].removeprefix("torch.")) for tensor in tensors
    )


def fits(row: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    """Equal, where a cache stands last and for any number of key and value tensors of this model."""
    if CACHE not in wanted:
        return row == wanted
    plain = len(wanted) - 1
    assert wanted.index(CACHE) == plain
    cached = row[plain:]
    return row[:plain] == wanted[:plain] and all(len(shape) == 4 and shape[3] == 128 for shape, _ in cached)


@pytest.mark.parametrize(("run", "phase"), RUNS)
def test_every_token_reaches_six_experts_in_every_layer(run: str, phase: str) -> None:
    graph = traced(run, phase)
    tokens = facts(f"callgraph-{run}.json")["workload"]["seq_len"] if phase == "prefill" else 1
    rows: dict[str, int] = {}
    for path, observed in graph.input_metadata.items():
        match = EXPERT.fullmatch(path)
        if match:
            rows[match[1]] = rows.get(match[1], 0) + sum(row.tensors[0].shape[0] * row.calls for row in observed)
    assert rows == {f"model.layers.{layer}.mlp": 6 * tokens for layer in range(1, 12)}


@pytest.mark.parametrize(("run", "phase"), RUNS)
def test_replayed_counts_make_the_experts_identical_too(run: str, phase: str) -> None:
    record, graph = recorded(run, phase), traced(run, phase, replay=True)
    assert graph.call_counts == record["call_counts"]
    assert graph.edges == record["edges"]
    for path, observations in record["io"].items():
        if EXPERT.search(path):
            (observed,) = graph.input_metadata[path]
            assert (list(observed.tensors[0].shape), observed.calls) == (observations[0]["in"][0][0], 1)

"""FLOPs to the last integer: counted from weightless traces, held against counts from the released code."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.costs.stage_costs import module_costs, stage_costs
from llm_perf_opt.ops.table import price
from tests.end_to_end.deepseek_ocr_runs import facts, trace, workload

VISION = ("sam", "clip", "projector")
RUNS = {f"{run['workload']}-{run['phase']}": run for run in facts("flops.json")["runs"]}
RECORDS = facts("measured-flops.json")
GRIDS = sorted({tuple(record["workload"]["crop_grid_h_x_w"]) for record in RECORDS})


def flops_by_stage(graph: CallGraph) -> dict[str, int]:
    return {stage.name: stage.flops for stage in stage_costs(graph).stages}


@pytest.mark.parametrize("name", RUNS)
def test_every_module_costs_what_the_released_code_costs(name: str) -> None:
    run = RUNS[name]
    prefill = RUNS[f"{run['workload']}-prefill"]
    mode = run["workload"].split("-")[0]
    graph = trace(workload(mode, prefill["crops"]), "prefill" if run["phase"] == "prefill" else "decode")
    assert graph.workload["context_tokens"] == prefill["seq_len"]
    costs = module_costs(graph)
    expected = {path: sum(by_op.values()) for path, by_op in run["by_module"].items()}
    assert {path: costs.by_path[path].inclusive.flops for path in expected} == expected
    assert sum(flops_by_stage(graph).values()) == run["total_flops"]


def records(kind: str) -> list[Any]:
    prefix = f"flopcounter-{kind}-"
    return [pytest.param(record, id=record["id"]) for record in RECORDS if record["id"].startswith(prefix)]


def grid_workload(rows: int, columns: int, decode_steps: int = 0) -> Any:
    # The records have ten tokens besides the image: the first of the sequence and nine of text.
    return workload("gundam", [columns, rows], prompt_tokens=9, decode_steps=decode_steps)


@cache
def prefill_of(rows: int, columns: int) -> dict[str, int]:
    return flops_by_stage(trace(grid_workload(rows, columns), "prefill"))


@pytest.mark.parametrize("record", records("vision"))
def test_vision_of_every_crop_grid(record: dict[str, Any]) -> None:
    stages = prefill_of(*record["workload"]["crop_grid_h_x_w"])
    assert sum(stages[name] for name in VISION) == record["metrics"]["flops"]


@pytest.mark.parametrize("record", records("vision+prefill"))
def test_prefill_of_every_crop_grid(record: dict[str, Any]) -> None:
    assert sum(prefill_of(*record["workload"]["crop_grid_h_x_w"]).values()) == record["metrics"]["flops"]


@pytest.mark.slow
@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"h{grid[0]}w{grid[1]}")
def test_decode_of_64_and_100_steps(grid: tuple[int, int]) -> None:
    expected = {
        record["workload"]["decode_steps"]: record["metrics"]["flops"]
        for record in RECORDS
        if record["workload"]["decode_steps"] and tuple(record["workload"]["crop_grid_h_x_w"]) == grid
    }
    graph = trace(grid_workload(*grid, decode_steps=max(expected)), "decode")
    by_step = flops_by_step(graph)
    assert {steps: sum(by_step[:steps]) for steps in expected} == expected


def flops_by_step(graph: CallGraph) -> list[int]:
    """FLOPs of each call of the whole model."""
    assert graph.calls is not None and graph.ops is not None
    of_kind = [cost.flops if (cost := price(kind)) is not None else 0 for kind in graph.op_kinds]
    calls = graph.calls
    return [
        sum(of_kind[row] for row in graph.ops.kind[calls.first_op[call] : calls.end_op[call]])
        for call, parent in enumerate(calls.parent)
        if parent < 0
    ]


def test_all_48_records_are_covered() -> None:
    assert len(RECORDS) == len(records("vision")) + len(records("vision+prefill")) + 2 * len(GRIDS) == 48

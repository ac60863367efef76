"""The exported graphs as a source of figures: torch's formulas on torch's graph agree with our trace of the model."""

from __future__ import annotations

from functools import cache

import pytest

from llm_perf_opt.core.source_figures import Method, SourceFigures
from llm_perf_opt.costs.stage_costs import stage_costs
from llm_perf_opt.exports.export_source import ExportSource
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from tests.exports.tiny_lab import ADAPTER, WORKLOAD, targets


@cache
def told() -> dict[tuple[str, str], SourceFigures]:
    return {(said.phase, said.stage): said for said in ExportSource().figures(ADAPTER, WORKLOAD)}


@pytest.mark.parametrize("stage", ["sam", "clip", "projector"])
def test_the_source_agrees_with_the_trace_to_the_flop(stage: str) -> None:
    costs = {cost.name: cost.flops for cost in stage_costs(WeightlessTracer().trace(targets()["prefill"])).stages}
    said = told()["prefill", stage]
    assert (said.failure, said.blind_spots, said.method) == (None, (), Method.ISOLATED)
    assert said.flops == costs[stage]
    assert said.is_cross_check
    assert said.flops == sum(operator.flops or 0 for operator in said.operators)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_stage_that_does_not_export_says_where_it_stops(phase: str) -> None:
    said = told()[phase, phase]
    assert said.flops is None
    assert (said.failure or "").startswith("model.layers.1 does not export: ")
    assert "in moe_infer" in (said.failure or "")

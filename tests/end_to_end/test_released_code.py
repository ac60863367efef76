"""The released DeepSeek-OCR code, unmodified and without weights: the calls and FLOPs that were recorded from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

import llm_perf_opt as lpo
from llm_perf_opt.api.cost import cost_of
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.collectives import Collective, collective_of
from llm_perf_opt.core.plugins import FOLDERS
from llm_perf_opt.core.source_figures import Method
from llm_perf_opt.costs.memory.need import run_memory
from llm_perf_opt.costs.stage_costs import module_costs
from llm_perf_opt.graphs.call_checks import call_checks
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.tracing.origin import Origin
from llm_perf_opt.weightless import ReplayRouting
from tests.end_to_end.deepseek_ocr_runs import facts, workload
from tests.end_to_end.released_ranks import logits_of_both
from tests.end_to_end.test_deepseek_ocr_callgraph import expert_counts, recorded, without_experts

FOLDER = os.environ.get("LLM_PERF_OPT_DSOCR_DIR")
pytestmark = [
    pytest.mark.skipif(FOLDER is None, reason="LLM_PERF_OPT_DSOCR_DIR names no folder with the released code"),
    pytest.mark.skipif(
        FOLDER is not None and not version("transformers").startswith(("4.46.", "4.47.")),
        reason="the released code needs transformers 4.46 or 4.47",
    ),
]
RUNS = {"base": "base-1024", "gundam-2x3": "gundam-2x3"}


@cache
def traced(run: str, phase: str, *, replay: bool = False) -> CallGraph:
    adapter = FOLDERS.get("huggingface")(Path(str(FOLDER)), True)
    crops = facts(f"callgraph-{run}.json")["workload"]["crops"]
    chosen = workload("base" if run == "base" else "gundam", crops)
    wanted = "prefill" if phase == "prefill" else "decode"
    (target,) = [target for target in adapter.targets(chosen) if target.phase == wanted]
    counts = ReplayRouting(expert_counts(recorded(run, phase))) if replay else "balanced"
    return WeightlessTracer(routing=counts).trace(target)


@pytest.mark.parametrize("phase", ["prefill", "decode_step"])
@pytest.mark.parametrize("run", RUNS)
def test_calls_and_edges_are_identical(run: str, phase: str) -> None:
    record, graph = recorded(run, phase), traced(run, phase)
    assert graph.problems() == []
    assert without_experts(graph.call_counts) == without_experts(record["call_counts"])
    assert without_experts(graph.edges) == without_experts(record["edges"])
    assert traced(run, phase, replay=True).call_counts == record["call_counts"]


@pytest.mark.parametrize("phase", ["prefill", "decode_step"])
@pytest.mark.parametrize("run", RUNS)
def test_flops_of_every_module_are_identical(run: str, phase: str) -> None:
    wanted = {"workload": RUNS[run], "phase": phase}
    (fact,) = [entry for entry in facts("flops.json")["runs"] if wanted.items() <= entry.items()]
    costs = module_costs(traced(run, phase))
    expected: dict[str, Any] = {path: sum(by_op.values()) for path, by_op in fact["by_module"].items()}
    assert {path: costs.by_path[path].inclusive.flops for path in expected} == expected
    assert costs.by_path[""].inclusive.flops == fact["total_flops"]


@pytest.mark.parametrize("run", RUNS)
def test_closed_forms_of_the_folder_are_the_count_of_its_own_code(run: str) -> None:
    """FLOPs of every stage of both phases, to the last integer, and as many parameters."""
    crops = facts(f"callgraph-{run}.json")["workload"]["crops"]
    asked = workload("base" if run == "base" else "gundam", crops)
    origin = Origin(name="released", source=FOLDERS.get("huggingface")(Path(str(FOLDER)), True), workload=asked)
    answer = cost_of(origin, ("counted", "closed-form"))
    by_formula = {(stage.phase, stage.name): stage.by_method(Method.CLOSED_FORM) for stage in answer.stages}
    assert by_formula == {(stage.phase, stage.name): stage.by_method(Method.EXTRACTED) for stage in answer.stages}
    assert [name for _, name in by_formula] == ["sam", "clip", "projector", "prefill", "decode"]
    assert None not in by_formula.values()
    assert (answer.missing, answer.unexplained) == ((), ())


def test_fvcore_takes_the_released_code_as_a_whole_and_by_stage() -> None:
    asked = workload("base", None)
    origin = Origin(name="released", source=FOLDERS.get("huggingface")(Path(str(FOLDER)), True), workload=asked)
    answer = cost_of(origin, ("counted", "fvcore"))
    for whole in answer.whole_runs:
        assert whole.completed_flops == answer.static.phase_flops(whole.phase)
    assert {stage.name: stage.isolated_flops for stage in answer.stages} == {
        stage.name: stage.flops for stage in answer.stages
    }


@pytest.mark.parametrize("run", RUNS)
def test_modules_run_as_often_as_page_configuration_and_steps_imply(run: str) -> None:
    checks = call_checks([traced(run, "prefill"), traced(run, "decode_step")])
    assert len(checks) == 11
    assert [check for check in checks if not check.is_as_expected] == []


@pytest.mark.parametrize(("sizes", "rank"), [({"tp": 2}, 0), ({"tp": 2, "ep": 2}, 1), ({"tp": 4, "ep": 2}, 3)])
def test_a_rank_of_the_released_code_does_what_one_of_the_blueprint_does(sizes: dict[str, int], rank: int) -> None:
    """Collectives in order with their modules, FLOPs, and weights; no file of the released code is changed."""
    released, ours = (
        lpo.trace(model, image="1240x1754", trust_remote_code=True, rank=rank, **sizes)
        for model in (str(FOLDER), "deepseek-ocr")
    )
    for its, blueprint in zip(released.graphs, ours.graphs, strict=True):
        assert its.problems() == []
        assert list(_collectives(its)) == list(_collectives(blueprint)) != []
        assert module_costs(its).by_path[""].inclusive.flops == module_costs(blueprint).by_path[""].inclusive.flops
    assert run_memory(released.graphs).phases[0].weight_bytes == run_memory(ours.graphs).phases[0].weight_bytes


@pytest.mark.slow
def test_two_real_ranks_of_the_released_code_compute_what_one_device_computes(tmp_path: Path) -> None:
    for whole, *spread in logits_of_both(Path(str(FOLDER)), tmp_path):
        assert len(spread) == 2 and float(whole[0].std()) > 0.1
        for logits in spread:
            torch.testing.assert_close(logits, whole, rtol=1e-4, atol=1e-5)


def _collectives(graph: CallGraph) -> Iterator[tuple[Collective, str]]:
    assert graph.ops is not None and graph.calls is not None
    for kind, call in zip(graph.ops.kind, graph.ops.call, strict=True):
        if (found := collective_of(graph.op_kinds[kind])) is not None:
            yield found, graph.paths[graph.calls.path[call]]

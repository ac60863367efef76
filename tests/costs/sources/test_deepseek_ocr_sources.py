"""Both counters on DeepSeek-OCR: their figures plus their named gaps are the facts, to the last FLOP."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from llm_perf_opt.core.plugins import SOURCES
from llm_perf_opt.core.source_figures import Method, SourceFigures, WorkFamily
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.counted import counted
from llm_perf_opt.costs.reconcile import reconcile
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from tests.costs.sources.one_module import accounted
from tests.end_to_end.deepseek_ocr_runs import facts, workload

COUNTERS = ("torch-counter", "fvcore")
RUNS = {(run["workload"], run["phase"]): run for run in facts("flops.json")["runs"]}
STAGE_PATHS = {"sam": "model.sam_model", "clip": "model.vision_model", "projector": "model.projector"}
TINY = DeepSeekOcrAdapter(DeepSeekOcrConfig.tiny())


@cache
def told(
    counter: str, mode: str, crops: tuple[int, int] | None = None, tiny: bool = False
) -> tuple[SourceFigures, ...]:
    adapter = TINY if tiny else DeepSeekOcrAdapter()
    return SOURCES.get(counter)().figures(adapter, workload(mode, list(crops) if crops else None))


def by_stage(source_figures: tuple[SourceFigures, ...], phase: str) -> dict[str, SourceFigures]:
    return {figures.stage: figures for figures in source_figures if figures.phase == phase}


@pytest.mark.slow
@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize(("mode", "name"), [("base", "base-1024"), ("gundam", "gundam-2x3")])
def test_figures_and_gaps_are_the_facts(counter: str, mode: str, name: str) -> None:
    prefill = RUNS[name, "prefill"]
    source_figures = told(counter, mode, (2, 3) if mode == "gundam" else None)
    stages = by_stage(source_figures, "prefill")
    facts_of_stages = {stage: sum(prefill["by_module"][path].values()) for stage, path in STAGE_PATHS.items()}
    assert {stage: accounted(stages[stage]) for stage in STAGE_PATHS} == facts_of_stages
    assert sum(map(accounted, stages.values())) == prefill["total_flops"]
    decode = next(run for (workload_name, phase), run in RUNS.items() if workload_name == name and phase != "prefill")
    assert sum(map(accounted, by_stage(source_figures, "decode").values())) == decode["total_flops"]


@pytest.mark.slow
def test_the_torch_counter_is_exact_by_operator() -> None:
    by_module = RUNS["gundam-2x3", "prefill"]["by_module"]
    stages = by_stage(told("torch-counter", "gundam", (2, 3)), "prefill")
    for stage, path in STAGE_PATHS.items():
        # The facts were counted where fused attention falls apart into `bmm`, and here it is one op.
        figures = Counter({operator.name: operator.flops for operator in stages[stage].operators if operator.flops})
        fused = figures.pop("aten._scaled_dot_product_flash_attention_for_cpu", 0)
        assert figures + Counter({"aten.bmm": fused}) == Counter(by_module[path])
        assert (fused > 0) == (stage in ("sam", "clip"))
        assert stages[stage].is_complete
    decoder = Counter(by_module[""]) - Counter(by_module["model.sam_model"])
    decoder = decoder - Counter(by_module["model.vision_model"]) - Counter(by_module["model.projector"])
    prefill = stages["prefill"]
    assert {operator.name: operator.flops for operator in prefill.operators} == dict(decoder)
    assert prefill.blind_spots == ()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("counter", COUNTERS)
def test_nothing_stays_unexplained_on_the_small_model(counter: str, attention: str) -> None:
    asked = DeepSeekOcrWorkload(image="1240x1754", crops=(2, 1), attention=attention, decode_steps=2)
    ours = [part for target in TINY.targets(asked) for part in counted(WeightlessTracer().trace(target))]
    theirs = SOURCES.get(counter)().figures(TINY, asked)
    assert [(t.phase, t.stage) for t in theirs] == [(t.phase, t.stage) for t in ours]
    assert [accounted(t) for t in theirs] == [t.flops for t in ours]
    ledger = reconcile([*ours, *theirs])
    assert ledger.unexplained == ()
    assert ledger.missing == ()


def test_every_difference_of_the_small_model_has_its_name() -> None:
    sam = by_stage(told("fvcore", "base", tiny=True), "prefill")["sam"]
    assert {spot.cause for spot in sam.blind_spots} <= {
        "fused-attention-uncounted",
        "elementwise-counted",
        "rounded-up",
        "rounded-down",
    }
    assert sam.unit == "mac"
    assert sam.method is Method.ISOLATED
    assert {operator.family for operator in sam.operators} == {
        WorkFamily.CONVOLUTION,
        WorkFamily.MATMUL,
        WorkFamily.OTHER,
    }


def test_fvcore_counts_activations_as_elements_put_out() -> None:
    """Of the projector, one linear layer: two FLOPs per element and input value."""
    projector = by_stage(told("fvcore", "base", tiny=True), "prefill")["projector"]
    (linear,) = projector.operators
    assert projector.activations == linear.activations
    assert linear.activations is not None
    assert linear.flops == 2 * linear.activations * DeepSeekOcrConfig.tiny().projector_input_size


def test_fvcore_hands_over_its_own_table() -> None:
    stages = by_stage(told("fvcore", "base", tiny=True), "prefill")
    assert all(figures.own_table for figures in stages.values())
    table = stages["sam"].own_table or ""
    assert "#parameters or shape" in table
    assert "sam: model.sam_model, 1 x, on [1, 3," in table


def test_layers_that_are_alike_are_asked_for_once() -> None:
    """The layers of the small decoder: a dense one, and the others as one call."""
    layers = DeepSeekOcrConfig.tiny().decoder.num_hidden_layers
    table = by_stage(told("fvcore", "base", tiny=True), "prefill")["prefill"].own_table or ""
    headings = [line for line in table.splitlines() if line.startswith("prefill: model.layers.")]
    assert [heading.split(", ")[1] for heading in headings] == ["1 x", f"{layers - 1} x"]


class _Broken:
    title = "a model that raises"

    def targets(self, asked: Workload) -> tuple[Target, ...]:
        def invoke(model: object, given: object = None) -> object:
            raise ValueError("no such token")

        return tuple(replace(target, invoke=invoke) for target in TINY.targets(asked))


@pytest.mark.parametrize("counter", COUNTERS)
def test_a_model_that_raises_gives_figures_with_the_reason(counter: str) -> None:
    source_figures = SOURCES.get(counter)().figures(_Broken(), workload("base"))
    assert [t.stage for t in source_figures] == [
        "sam",
        "clip",
        "projector",
        "prefill",
        "sam",
        "clip",
        "projector",
        "decode",
    ]
    assert {t.failure for t in source_figures} == {"ValueError: no such token"}
    assert {t.flops for t in source_figures} == {None}


def test_without_fvcore_every_stage_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    source_figures = SOURCES.get("fvcore")().figures(TINY, workload("base"))
    assert source_figures
    assert all("pip install 'llm-perf-opt[fvcore]'" in (t.failure or "") for t in source_figures)

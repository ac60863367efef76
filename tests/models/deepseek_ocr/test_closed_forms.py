"""The closed forms of a workload agree with a weightless count of it, on any configuration."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds_by_stage
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.source_figures import Method, SourceFigures, WorkFamily, family_of
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.coverage import price_coverage
from llm_perf_opt.costs.parameters import active_parameters
from llm_perf_opt.costs.stage_costs import module_costs, stage_costs
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.attention import ATTENTION_CLASSES
from llm_perf_opt.models.deepseek_ocr.closed_forms import views_of
from llm_perf_opt.models.deepseek_ocr.configuration import ClipConfig, DeepSeekOcrConfig, ImageMode, SamConfig
from llm_perf_opt.models.deepseek_ocr.formulas import (
    decode_passes,
    decoder_work,
    prefill_pass,
)
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.models.deepseek_ocr.plan import make_plan
from llm_perf_opt.ops.table import price
from tests.models.deepseek_ocr.released_formulas import module_flops, vision_work

TINY = DeepSeekOcrConfig.tiny()
TRACER = WeightlessTracer()

ATTENTIONS = Workload.options()["attention"].choices

WORKLOADS = st.builds(
    DeepSeekOcrWorkload,
    image=st.builds("{}x{}".format, st.integers(20, 300), st.integers(20, 300)),
    mode=st.sampled_from(sorted(TINY.modes)),
    prompt_tokens=st.integers(0, 12),
    decode_steps=st.integers(0, 3),
    batch=st.integers(1, 3),
    attention=st.sampled_from(ATTENTIONS),
) | st.builds(
    DeepSeekOcrWorkload,
    crops=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    prompt_tokens=st.integers(0, 12),
    batch=st.integers(1, 2),
    attention=st.sampled_from(ATTENTIONS),
)


@st.composite
def configurations(draw: st.DrawFn) -> DeepSeekOcrConfig:
    """Small models of every proportion; what one encoder hands the next must fit."""

    def pick(low: int, high: int) -> int:
        return draw(st.integers(low, high))

    sam_heads, clip_heads, heads = pick(1, 3), pick(1, 3), pick(1, 3)
    layers, features = pick(1, 3), clip_heads * pick(2, 6)
    sam = SamConfig(
        image_size=4 * pick(6, 12),
        patch_size=4,
        hidden_size=sam_heads * pick(2, 6),
        num_layers=layers,
        num_heads=sam_heads,
        mlp_ratio=pick(1, 4),
        window_size=pick(2, 7),
        global_attn_indexes=tuple(sorted(draw(st.sets(st.integers(0, layers - 1))))),
        neck_channels=pick(2, 8),
        downsample_channels=(pick(2, 8), features),
    )
    clip = ClipConfig(
        image_size=16,
        patch_size=pick(2, 8),
        hidden_size=features,
        num_layers=pick(1, 2),
        num_heads=clip_heads,
        ffn_hidden_size=pick(4, 24),
    )
    experts = pick(2, 6)
    decoder = replace(
        TINY.decoder,
        hidden_size=2 * heads * pick(2, 8),
        num_attention_heads=heads,
        num_hidden_layers=pick(1, 3),
        first_k_dense_replace=pick(0, 2),
        intermediate_size=pick(4, 40),
        moe_intermediate_size=pick(2, 16),
        n_routed_experts=experts,
        n_shared_experts=pick(1, 3),
        num_experts_per_tok=pick(1, experts),
    )
    sides = draw(st.tuples(st.integers(6, 18), st.integers(6, 12)))
    modes = {**TINY.modes, "gundam": ImageMode(global_size=4 * sides[0], crop_size=4 * sides[1])}
    return DeepSeekOcrConfig(sam=sam, clip=clip, decoder=decoder, modes=modes)


def told_and_counted(config: DeepSeekOcrConfig, workload: Workload) -> list[tuple[SourceFigures, CallGraph]]:
    adapter = DeepSeekOcrAdapter(config)
    graphs = {target.phase: TRACER.trace(target) for target in adapter.targets(workload)}
    told = adapter.closed_forms(workload)
    assert {figures.phase for figures in told} == set(graphs)
    return [(figures, graphs[figures.phase]) for figures in told]


def assert_stage_agrees(figures: SourceFigures, graph: CallGraph) -> None:
    (stage,) = [stage for stage in stage_costs(graph).stages if stage.name == figures.stage]
    assert price_coverage(graph).unpriced_ops == 0
    assert (figures.flops, figures.parameters) == (stage.flops, stage.parameters)
    assert sum(operator.flops or 0 for operator in figures.operators) == figures.flops
    by_family: dict[WorkFamily, int] = {}
    outputs = 0
    for kind, count in count_kinds_by_stage(graph)[figures.stage].items():
        cost, family = price(kind), family_of(kind.name)
        if cost is None or not cost.flops:
            continue
        by_family[family] = by_family.get(family, 0) + cost.flops * count
        if family is not WorkFamily.ATTENTION:
            outputs += prod(kind.outputs[0].shape) * count
    assert by_family == {
        family: sum(operator.flops or 0 for operator in figures.operators if operator.family is family)
        for family in {operator.family for operator in figures.operators}
    }
    assert figures.activations == outputs
    assert figures.active_parameters == active_parameters(graph)[figures.stage]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(WORKLOADS)
def test_any_workload_costs_what_a_weightless_count_says(workload: Workload) -> None:
    for figures, graph in told_and_counted(TINY, workload):
        assert_stage_agrees(figures, graph)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(configurations(), st.sampled_from([(1, 1), (2, 1), (2, 2)]))
def test_any_configuration_costs_what_a_weightless_count_says(config: DeepSeekOcrConfig, grid: tuple[int, int]) -> None:
    workload = DeepSeekOcrWorkload(crops=grid, prompt_tokens=3)
    for figures, graph in told_and_counted(config, workload):
        assert_stage_agrees(figures, graph)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_module_and_call_agrees(attention: str) -> None:
    workload = DeepSeekOcrWorkload(crops=(2, 3), prompt_tokens=4, decode_steps=2, batch=2, attention=attention)
    plan = make_plan(TINY, workload)
    vision = [piece for view in views_of(plan) for piece in vision_work(TINY, view)]
    prefill = decoder_work(TINY.decoder, prefill_pass(plan.context_tokens, batch=2), attention)
    decode = decoder_work(TINY.decoder, decode_passes(plan.context_tokens, steps=2, batch=2), attention)
    work = {"prefill": [*vision, *prefill], "decode": list(decode)}
    for target in DeepSeekOcrAdapter(TINY).targets(workload):
        graph = TRACER.trace(target)
        pieces = work[target.phase]
        for path, cost in module_costs(graph).by_path.items():
            if ".experts." not in path:  # which expert gets how many tokens is the router's affair
                assert (path, module_flops(pieces, path)) == (path, cost.inclusive.flops)
        linears = [piece for piece in pieces if piece.kind in ("linear", "conv") and piece.calls is not None]
        calls: dict[str, int] = {}
        for piece in linears:
            calls[piece.path] = calls.get(piece.path, 0) + (piece.calls or 0)
        assert calls == {path: graph.call_counts[path] for path in calls}


def test_the_default_workload_has_five_stages_in_order() -> None:
    told = DeepSeekOcrAdapter().closed_forms(Workload())
    assert [(t.phase, t.stage) for t in told] == [
        ("prefill", "sam"),
        ("prefill", "clip"),
        ("prefill", "projector"),
        ("prefill", "prefill"),
        ("decode", "decode"),
    ]
    assert {t.method for t in told} == {Method.CLOSED_FORM}
    assert sum(t.flops or 0 for t in told if t.phase == "prefill") == 4_582_251_702_272


def test_the_decoder_tells_weights_cache_and_active_parameters() -> None:
    *_, prefill, decode = DeepSeekOcrAdapter().closed_forms(Workload(decode_steps=100, batch=2))
    assert (decode.weight_bytes, decode.kv_bytes_per_token) == (2 * 3_336_106_240, 61_440)
    assert (prefill.kv_cache_bytes, decode.kv_cache_bytes) == (2 * 924 * 61_440, 2 * 1024 * 61_440)
    single = DeepSeekOcrAdapter().closed_forms(Workload())[-1]
    assert single.active_parameters == 574_095_360
    assert "1,148,257,280 bytes" in single.notes[0]  # two for each of these, for 25 norms and one row of the embedding


def test_without_steps_there_is_no_decode() -> None:
    assert {t.phase for t in DeepSeekOcrAdapter().closed_forms(Workload(decode_steps=0))} == {"prefill"}


def test_the_attentions_of_a_plan_are_those_of_the_blueprint() -> None:
    assert tuple(ATTENTION_CLASSES) == ATTENTIONS


@pytest.mark.parametrize("workload", [DeepSeekOcrWorkload(mode="huge"), DeepSeekOcrWorkload(image="no-such.png")])
def test_nonsense_is_refused_as_by_the_targets(workload: Workload) -> None:
    with pytest.raises(UsageError):
        DeepSeekOcrAdapter().closed_forms(workload)

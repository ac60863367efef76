"""Traces of vLLM's code, read as any other trace: cost and estimate, cache, necessary work, graph, comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.api.trace import Trace
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.parallel_plan import plan_in
from llm_perf_opt.costs.necessary.anatomy import anatomy_of
from llm_perf_opt.ops.kernel_shape import ExpertsShape
from llm_perf_opt.timing.fused_blocks import fused_experts
from llm_perf_opt.timing.fusions import Fusion

TRACES = Path(__file__).parents[1] / "facts" / "vllm_traces"
BATCH, PROMPT, TP, LAYERS = 2, 64, 2, 3


@pytest.fixture(scope="module", params=["llama", "deepseek"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def engine(name: str) -> Trace:
    return lpo.load(TRACES / name)


@pytest.fixture(scope="module")
def reference(name: str) -> Trace:
    return lpo.trace(TRACES / name, tp=TP, batch=BATCH, prompt_tokens=PROMPT)


def test_the_graphs_are_sound_and_name_the_code_and_the_rank(engine: Trace) -> None:
    assert engine.phases == ("prefill", "decode")
    for graph in engine.graphs:
        assert graph.problems() == []
        assert graph.deployment["code"] == "vllm"
        assert str(graph.deployment["engine"]).startswith("vllm ")
        plan = plan_in(graph.deployment)
        assert plan is not None
        assert (plan.tp, plan.rank) == (TP, 0)


def test_the_cost_holds_vllms_estimate_and_every_difference_has_a_cause(engine: Trace) -> None:
    answer = engine.cost()
    assert answer.unpriced_ops == 0
    assert answer.ledger.unexplained == ()
    assert {(entry.left, entry.right) for entry in answer.ledger.entries} == {("counted", "vllm-estimate")}


def test_experts_are_timed_by_their_own_sizes() -> None:
    """One op holds all experts of a layer; its sizes are those of the configuration, over all ranks."""
    config = json.loads((TRACES / "deepseek" / "config.json").read_text(encoding="utf-8"))
    wanted = ExpertsShape(
        tokens=BATCH * PROMPT,
        hidden=config["hidden_size"],
        inner=config["moe_intermediate_size"],
        experts=config["n_routed_experts"],
        chosen=config["num_experts_per_tok"],
        tensor_ranks=TP,
        weight_format="bfloat16",
    )
    graph = lpo.load(TRACES / "deepseek").graphs[0]
    fused = [one for one in fused_experts(graph, anatomy_of(graph)) if one.rule is Fusion.EXPERTS]
    assert {kernel.shape for one in fused for kernel in one.kernels} == {wanted}
    assert len(fused) == config["num_hidden_layers"] - config["first_k_dense_replace"]


def test_the_estimate_lacks_routers_and_the_absorbed_step_of_latent_attention() -> None:
    differences = lpo.load(TRACES / "deepseek").cost().ledger.differences
    causes = {(entry.phase, part.cause) for entry in differences for part in entry.explanations}
    assert causes == {
        ("prefill", "router-uncounted"),
        ("decode", "router-uncounted"),
        ("decode", "latent-attention-expanded"),
    }
    assert lpo.load(TRACES / "llama").cost().ledger.differences == ()


def test_other_sources_are_refused_for_an_engines_code(engine: Trace) -> None:
    with pytest.raises(UsageError, match="no figures from fvcore"):
        engine.cost(["counted", "fvcore"])


@pytest.mark.parametrize(("name", "per_token"), [("llama", LAYERS * 2 * (4 // TP) * 64 * 2), ("deepseek", 3 * 576 * 2)])
def test_the_cache_is_found_in_the_pages(name: str, per_token: int) -> None:
    cost = lpo.load(TRACES / name).cost()
    figures = [told for stage in cost.stages for told in stage.sources if told.kv_bytes_per_token is not None]
    assert [told.kv_bytes_per_token for told in figures] == [per_token]
    assert figures[0].kv_cache_bytes == BATCH * (PROMPT + 1) * per_token


def test_necessary_work_is_no_more_than_what_the_code_does(engine: Trace) -> None:
    from llm_perf_opt.costs.necessary.stage_needs import necessary_by_stage

    prefill, decode = (necessary_by_stage(graph)[graph.phase] for graph in engine.graphs)
    written = [sum(stage.flops or 0 for stage in answer) for answer in _written(engine)]
    assert 0 < prefill.flops < written[0]
    assert 0 < decode.flops <= written[1]
    assert decode.cache_bytes is not None
    assert decode.cache_bytes > 0
    assert prefill.cache_bytes == 0


def _written(trace: Trace) -> list[Any]:
    from llm_perf_opt.costs.stage_costs import stage_costs

    return [stage_costs(graph).ran for graph in trace.graphs]


def test_only_experts_with_rows_must_be_read() -> None:
    from llm_perf_opt.costs.necessary.stage_needs import necessary_by_stage

    graph = lpo.load(TRACES / "deepseek").graphs[1]
    work = necessary_by_stage(graph)["decode"]
    (reads,) = work.distinct_experts
    assert (reads.layers, reads.experts, reads.chosen, reads.tokens) == (2, 8, 2, BATCH)
    each = 3 * 256 * (128 // TP) * 2 + 4  # gate, up and down of one expert in bfloat16, its bias in float32
    assert work.fewest_expert_bytes == 2 * 2 * each


def test_layers_that_are_alike_fold_into_one_box(engine: Trace) -> None:
    text = engine.graph().draw("text")
    assert isinstance(text, str)
    assert "@ .layers.[1-2]" in text


def test_two_codes_of_one_model_differ_for_named_reasons_alone(engine: Trace, reference: Trace, name: str) -> None:
    answer = reference.compare(engine)
    assert answer.unexplained == 0
    causes = {finding.cause for phase in answer.phases for finding in phase.findings}
    own = {"llama": {"fused QKV", "attention on pages"}, "deepseek": {"grouped experts", "latent attention in one op"}}
    assert causes >= {"gate and up in one", "fused norm", *own[name]}


def test_two_codes_of_llama_do_the_same_matrix_work() -> None:
    engine = lpo.load(TRACES / "llama")
    reference = lpo.trace(TRACES / "llama", tp=TP, batch=BATCH, prompt_tokens=PROMPT)
    mine, theirs = (
        [sum(stage.flops or 0 for stage in stages) for stages in _written(one)] for one in (engine, reference)
    )
    assert mine == theirs


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fsdp": 2}, "neither fully sharded"),
        ({"tp": 4, "ep": 2}, "does not divide the experts among 2 of 4"),
        ({"attention": "eager"}, "chooses its attention itself"),
        ({"cache": "int8"}, "not traced with a cache of int8"),
        ({"tracer": "hooks"}, "runs only without weights"),
        ({"code": "sglang"}, "code cannot be 'sglang'"),
    ],
)
def test_what_vllms_code_does_not_do_is_refused_before_it_starts(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        lpo.trace(TRACES / "llama", **{"code": "vllm", **given})


def test_a_name_without_a_folder_is_refused() -> None:
    with pytest.raises(UsageError, match=r"runs a folder with a config\.json"):
        lpo.trace("deepseek-ocr", code="vllm")

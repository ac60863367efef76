"""What an engine fuses: every rule on traced models, with the FLOPs and the shapes that it leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of
from llm_perf_opt.costs.necessary.anatomy import anatomy_of
from llm_perf_opt.costs.necessary.stage_needs import contexts_of
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.models.huggingface.options import HuggingFaceWorkload
from llm_perf_opt.ops.kernel_shape import AttentionShape, ExpertsShape, MatmulShape
from llm_perf_opt.ops.op import KernelKind
from llm_perf_opt.ops.table import kernels_of
from llm_perf_opt.timing.engine_kernels import engine_rules, fused_run
from llm_perf_opt.timing.fusions import FusedOps, Fusion, readers_of_one_input
from llm_perf_opt.timing.stage_work import stage_works
from tests.models.huggingface.folders import LLAVA, MIXTRAL, write_folder
from tests.timing.made_decode import made_decode

pytest.importorskip("transformers", reason="the traced models are built by transformers, an optional extra")

CONFIGS = Path(__file__).parents[1] / "facts" / "serving" / "configs"
BATCH, PROMPT = 3, 160
AS_MANY = (  # rules that leave every FLOP
    Fusion.QKV,
    Fusion.LATENT_INPUTS,
    Fusion.GATE_UP,
    Fusion.EXPERTS,
    Fusion.LAYOUT,
    Fusion.CACHE_IN_PLACE,
    Fusion.OUTER,
    Fusion.PREPARED,
)


def traced(folder: Path, config: dict[str, Any], **options: Any) -> dict[str, CallGraph]:
    workload = HuggingFaceWorkload(**{"batch": BATCH, "prompt_tokens": PROMPT, **options})
    targets = HuggingFaceAdapter(write_folder(folder, config), False).targets(workload)
    return {graph.phase: graph for graph in map(WeightlessTracer().trace, targets)}


def published(name: str, **changed: Any) -> dict[str, Any]:
    """The configuration of a released model, with fewer layers."""
    config: dict[str, Any] = json.loads((CONFIGS / name / "config.json").read_text())
    config.pop("quantization_config", None)
    return {**config, **changed}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, CallGraph]]:
    configs = {
        "dense": published("llama-3.1-8b", num_hidden_layers=2),
        "latent": published("deepseek-r1", num_hidden_layers=2, first_k_dense_replace=1),
        "window": published("gpt-oss-20b", num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"]),
        "grouped": published("qwen3-30b-a3b", num_hidden_layers=2),
        "experts": MIXTRAL,
        "pictures": LLAVA,
    }
    options = {"pictures": {"image": "32x32", "prompt_tokens": 8}}
    return {
        name: traced(tmp_path_factory.mktemp(name), config, **options.get(name, {})) for name, config in configs.items()
    }


def flops_of(graph: CallGraph, rows: tuple[int, ...]) -> int:
    kinds = ops_of(graph).kind
    return sum(kernel.flops for row in rows for kernel in kernels_of(graph.op_kinds[kinds[row]]))


def rules_of(graph: CallGraph, *rules: Fusion) -> list[FusedOps]:
    return [one for one in engine_rules(graph) if one.rule in rules]


def shapes_of(graph: CallGraph, kind: type) -> set[Any]:
    return {kernel.shape for _, kernel in fused_run(graph).sequence if isinstance(kernel.shape, kind)}


def test_matmuls_of_one_input_are_found_in_order(models: dict[str, dict[str, CallGraph]]) -> None:
    def shared(graph: CallGraph) -> tuple[tuple[int, ...], ...]:
        return readers_of_one_input(graph, anatomy_of(graph))

    def names(graph: CallGraph) -> set[tuple[str, ...]]:
        paths, calls, ops = graph.paths, calls_of(graph), ops_of(graph)
        return {tuple(paths[calls.path[ops.call[row]]].rpartition(".")[2] for row in rows) for rows in shared(graph)}

    assert names(models["dense"]["decode"]) == {("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")}
    assert names(models["latent"]["decode"]) == {("q_a_proj", "kv_a_proj_with_mqa"), ("gate_proj", "up_proj")}
    assert len(shared(models["dense"]["prefill"])) == 4
    assert shared(made_decode()) == (), "experts of the made run take one input and are called by themselves"


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", ["dense", "latent", "window", "grouped", "experts", "pictures"])
def test_no_rule_loses_or_adds_flops(models: dict[str, dict[str, CallGraph]], name: str, phase: str) -> None:
    graph = models[name][phase]
    found = rules_of(graph, *AS_MANY)
    assert found
    for one in found:
        assert sum(kernel.flops for kernel in one.kernels) == flops_of(graph, one.rows), one.rule
    eager = sum(work.flops for work in stage_works(graph))
    fused = sum(kernel.flops for _, kernel in fused_run(graph).sequence)
    needed = sum(work.necessary.flops for work in stage_works(graph) if work.necessary is not None)
    assert needed <= fused <= eager
    rows = [row for one in engine_rules(graph) for row in one.rows]
    assert len(rows) == len(set(rows)), "an op is in one rule at most"


@pytest.mark.parametrize("name", ["dense", "latent", "window", "pictures"])
def test_attention_does_the_pairs_that_a_mask_leaves(models: dict[str, dict[str, CallGraph]], name: str) -> None:
    for graph in models[name].values():
        anatomy = anatomy_of(graph)
        contexts, sites = contexts_of(graph, anatomy), {site.row: site for site in anatomy.attentions}
        found = rules_of(graph, Fusion.ATTENTION)
        assert len(found) == len(sites)
        for one in found:
            site = sites[one.rows[-1]]
            whole = replace(site, is_tail=False).necessary_flops(contexts.get(anatomy.forward_of_ops[site.row]))
            assert one.kernels[0].flops == whole


def test_queries_keys_and_values_of_llama_are_one_matmul(models: dict[str, dict[str, CallGraph]]) -> None:
    """32 query heads and 8 key heads of 128: 4096 + 1024 + 1024 columns; gate and up: twice 14336."""
    shapes = shapes_of(models["dense"]["decode"], MatmulShape)
    assert MatmulShape(rows=BATCH, columns=6144, depth=4096) in shapes
    assert MatmulShape(rows=BATCH, columns=28672, depth=4096) in shapes
    assert MatmulShape(rows=BATCH, columns=4096, depth=14336) in shapes
    (attention,) = shapes_of(models["dense"]["decode"], AttentionShape)
    assert (attention.heads, attention.key_heads, attention.keys, attention.window) == (32, 8, PROMPT + 1, None)
    launches = [kernel.kind for _, kernel in fused_run(models["dense"]["decode"]).sequence]
    assert launches.count(KernelKind.MATMUL) == 2 * 4 + 1
    assert launches.count(KernelKind.VECTOR) == 2 * 4 + 1, "norm, rotary, norm, activation; the last norm"


def test_an_input_is_read_once_by_matmuls_that_are_joined(models: dict[str, dict[str, CallGraph]]) -> None:
    one, *_ = rules_of(models["dense"]["decode"], Fusion.QKV)
    assert one.kernels[0].bytes_moved == 2 * (BATCH * 4096 + 6144 * 4096 + BATCH * 6144)


def test_experts_of_a_layer_are_one_kernel_with_their_shape(models: dict[str, dict[str, CallGraph]]) -> None:
    (shape,) = shapes_of(models["grouped"]["decode"], ExpertsShape)
    assert shape == ExpertsShape(tokens=BATCH, hidden=2048, inner=768, experts=128, chosen=8)
    (prefill,) = shapes_of(models["latent"]["prefill"], ExpertsShape)
    assert prefill == ExpertsShape(tokens=BATCH * PROMPT, hidden=7168, inner=2048, experts=256, chosen=8)


def test_the_loop_over_experts_is_the_same_kernel(tmp_path: Path) -> None:
    config = {**MIXTRAL, "experts_implementation": "eager"}
    (shape,) = shapes_of(traced(tmp_path, config)["prefill"], ExpertsShape)
    assert shape == ExpertsShape(tokens=BATCH * PROMPT, hidden=64, inner=96, experts=8, chosen=2)


def test_a_step_on_latent_vectors_absorbs_their_expansion(models: dict[str, dict[str, CallGraph]]) -> None:
    """DeepSeek: 128 heads, rank 512, 128 + 64 wide keys, 128 wide values. Two matmuls per head in place of one."""
    graph = models["latent"]["decode"]
    one, other = rules_of(graph, Fusion.ABSORBED)
    shapes = [kernel.shape for kernel in one.kernels]
    assert shapes == [
        MatmulShape(rows=BATCH, columns=512, depth=128, count=128),
        MatmulShape(rows=BATCH, columns=128, depth=512, count=128),
    ]
    assert [kernel.flops for kernel in other.kernels] == 2 * [2 * BATCH * 128 * 512 * 128]
    (attention,) = shapes_of(graph, AttentionShape)
    assert (attention.latent_rank, attention.key_heads, attention.width, attention.value_width) == (512, 1, 576, 512)
    (prefill,) = shapes_of(models["latent"]["prefill"], AttentionShape)
    assert (prefill.latent_rank, prefill.key_heads, prefill.width) == (512, 128, 192), "expanded where that is cheaper"
    assert not rules_of(models["latent"]["prefill"], Fusion.ABSORBED)


def test_written_scores_are_one_kernel_with_its_window(models: dict[str, dict[str, CallGraph]]) -> None:
    """gpt-oss writes scores out and copies keys for 64 query heads; every other layer sees 128 keys."""
    shapes = shapes_of(models["window"]["prefill"], AttentionShape)
    assert {(shape.window, shape.key_heads, shape.heads) for shape in shapes} == {(128, 8, 64), (None, 8, 64)}
    assert all(shape.is_causal for shape in shapes)
    assert rules_of(models["window"]["decode"], Fusion.LAYOUT)


def test_encoders_see_all_pairs(models: dict[str, dict[str, CallGraph]]) -> None:
    shapes = shapes_of(models["pictures"]["prefill"], AttentionShape)
    assert {shape.is_causal for shape in shapes} == {True, False}


def test_a_cache_is_extended_in_place(models: dict[str, dict[str, CallGraph]]) -> None:
    """Of a step only the new entries are read and written: 8 heads of 128 numbers for each sequence."""
    found = rules_of(models["dense"]["decode"], Fusion.CACHE_IN_PLACE)
    assert len(found) == 4
    needed = {kernel.bytes_moved - kernel.avoidable_bytes for one in found for kernel in one.kernels}
    assert needed == {2 * BATCH * 8 * 128 * 2}


def test_fused_vector_ops_move_what_crosses_their_border(models: dict[str, dict[str, CallGraph]]) -> None:
    """The norm of a layer: state and update in, state and normed state out, and the weight of the norm."""
    sequence = fused_run(models["dense"]["decode"]).sequence
    moved = [kernel.bytes_moved - kernel.avoidable_bytes for _, kernel in sequence if kernel.kind is KernelKind.VECTOR]
    state = BATCH * 4096 * 2
    assert 4 * state + 4096 * 2 in moved
    assert 3 * BATCH * 14336 * 2 in moved, "gate and up in, their matmul out"


def test_a_report_names_the_rules(models: dict[str, dict[str, CallGraph]]) -> None:
    uses = {use.rule: use for use in fused_run(models["dense"]["decode"]).rules}
    assert (uses[Fusion.QKV].times, uses[Fusion.QKV].before, uses[Fusion.QKV].after) == (2, 6, 2)
    assert uses[Fusion.NORM].times == 5
    assert uses[Fusion.ACTIVATION].times == uses[Fusion.ROTARY].times == 2
    assert {use.stage for use in uses.values()} == {"decode"}


@pytest.mark.parametrize(("plan", "ranks"), [({"tp": 4}, (4, 1)), ({"tp": 4, "ep": 4}, (1, 4))])
def test_experts_of_a_plan_have_the_shape_of_all_ranks(
    tmp_path: Path, plan: dict[str, int], ranks: tuple[int, int]
) -> None:
    """A rank has a quarter of each expert, or a quarter of the experts: a quarter of the FLOPs either way."""
    folder = write_folder(tmp_path, published("qwen3-30b-a3b", num_hidden_layers=1))
    (graph,) = (
        one for one in llm_perf_opt.trace(folder, batch=4, prompt_tokens=8, **plan).graphs if one.phase == "decode"
    )
    ((kernel, shape),) = {
        (kernel, kernel.shape) for _, kernel in fused_run(graph).sequence if isinstance(kernel.shape, ExpertsShape)
    }
    assert (shape.tokens, shape.hidden, shape.inner, shape.experts, shape.chosen) == (4, 2048, 768, 128, 8)
    assert (shape.tensor_ranks, shape.expert_ranks) == ranks
    assert kernel.flops == 2 * 3 * 2048 * 768 * 8 * 4 // 4

"""Active parameters of mixtures of experts as transformers stacks them: published figures, all ways to run them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.plugins import TRACERS
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.parameters import active_parameters, parameters_by_stage
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.models.huggingface.options import HuggingFaceWorkload
from tests.models.huggingface.folders import MIXTRAL, TEXT, write_folder

transformers = pytest.importorskip(
    "transformers", reason="mixtures of experts are built by transformers, an optional extra"
)

IS_OLDER = int(transformers.__version__.split(".")[0]) < 5


def decoded(folder: Path, config: dict[str, Any], **options: Any) -> CallGraph:
    *_, target = HuggingFaceAdapter(write_folder(folder, config), False).targets(HuggingFaceWorkload(**options))
    return WeightlessTracer().trace(target)


def tiny_mixtral(experts: int) -> int:
    """Attention, router, the experts that are reached, and the head."""
    width, mlp = TEXT["hidden_size"], TEXT["intermediate_size"]
    layer = 4 * width * width + 8 * width + experts * 3 * width * mlp
    return TEXT["num_hidden_layers"] * layer + TEXT["vocab_size"] * width


def test_a_decoded_token_of_mixtral_8x7b_uses_the_published_thirteen_billion(tmp_path: Path) -> None:
    """12.9 B of 46.7 B, https://mistral.ai/news/mixtral-of-experts; published figures count embedding and norms too."""
    graph = decoded(tmp_path, {"model_type": "mixtral"})
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 8 + 2 * 3 * 4096 * 14336
    active = 32 * layer + 32000 * 4096
    assert active == 12_748_587_008
    assert active_parameters(graph) == {"decode": active}
    embedding, norms = 32000 * 4096, (2 * 32 + 1) * 4096
    assert round((active + embedding + norms) / 1e9, 1) == 12.9
    assert round(parameters_by_stage(graph)["decode"] / 1e9, 1) == 46.7


def test_a_decoded_token_of_olmoe_uses_the_published_one_point_three_billion(tmp_path: Path) -> None:
    """OLMoE-1B-7B: 64 experts of width 1024, 8 per token; 1.3 B of 6.9 B, https://arxiv.org/abs/2409.02060."""
    graph = decoded(tmp_path, {"model_type": "olmoe", "intermediate_size": 1024})
    layer = 4 * 2048 * 2048 + 2048 * 64 + 8 * 3 * 2048 * 1024
    active = 16 * layer + 50304 * 2048
    assert active == 1_178_861_568
    assert active_parameters(graph) == {"decode": active}
    embedding = 50304 * 2048
    assert round((active + embedding) / 1e9, 1) == 1.3
    assert round(parameters_by_stage(graph)["decode"] / 1e9, 1) == 6.9


@pytest.mark.parametrize(
    ("routing", "batch", "used"),
    [
        ("uniform", 1, 2),
        ("uniform", 3, 5),  # 8 * (1 - 0.75 ** 3) = 4.6
        ("uniform", 5, 6),  # 6.1
        ("balanced", 3, 6),
        ("balanced", 5, 8),
        ("one", 5, 2),
    ],
)
def test_more_tokens_use_more_experts_as_the_policy_says(tmp_path: Path, routing: str, batch: int, used: int) -> None:
    *_, target = HuggingFaceAdapter(write_folder(tmp_path, MIXTRAL), False).targets(Workload(batch=batch))
    graph = WeightlessTracer(routing=routing).trace(target)
    assert active_parameters(graph) == {"decode": tiny_mixtral(used)}


@pytest.mark.skipif(IS_OLDER, reason="earlier versions run experts one way")
@pytest.mark.parametrize("experts", ["grouped_mm", "batched_mm", "eager"])
def test_every_way_to_run_experts_uses_the_same_number(tmp_path: Path, experts: str) -> None:
    *_, target = HuggingFaceAdapter(write_folder(tmp_path, MIXTRAL), False).targets(Workload())

    def build() -> Any:
        model = target.build()
        model.set_experts_implementation(experts)
        return model

    graph = WeightlessTracer().trace(replace(target, build=build))
    assert active_parameters(graph) == {"decode": tiny_mixtral(2)}


def test_ops_without_their_tensors_leave_it_unknown(tmp_path: Path) -> None:
    """The profiler names the ops and not what they were given: that is no reason to say zero."""
    prefill, *_ = HuggingFaceAdapter(write_folder(tmp_path, MIXTRAL), False).targets(Workload(dtype="float32"))
    assert active_parameters(TRACERS.get("profiler")().trace(prefill)) == {"prefill": None}

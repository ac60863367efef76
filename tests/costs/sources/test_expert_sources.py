"""Experts in grouped matmuls: FLOPs and bytes have a second source, and it tells a wrong count."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_perf_opt.api.cost import CostAnswer, cost_of
from llm_perf_opt.core.source_figures import SourceFigures, WorkFamily, flops_in
from llm_perf_opt.core.workload import Deployment, Workload
from llm_perf_opt.costs.reconcile import reconcile
from llm_perf_opt.costs.sources.torch_counter import TorchCounter, has_grouped_experts, looped_experts
from llm_perf_opt.costs.sources.torch_prices import grouped_flops
from llm_perf_opt.harness.isolation import build_on_ghosts
from llm_perf_opt.tracing.origin import Origin, find_adapter
from llm_perf_opt.weightless import Engine
from tests.models.huggingface.folders import MIXTRAL, TEXT, write_folder

pytest.importorskip("transformers", minversion="5", reason="experts are grouped matmuls from version 5 on")

SOURCES = ("counted", "torch-counter", "byte-counter")
QWEN: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "head_dim": 16,
    **TEXT,
}
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "head_dim": 16,
    "layer_types": ["sliding_attention", "full_attention"],
    **TEXT,
}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    **TEXT,
}
MODELS = {config["model_type"]: config for config in (MIXTRAL, QWEN, GPT_OSS, DEEPSEEK)}


@cache
def folder_of(name: str, root: Path) -> Path:
    folder = root / name
    folder.mkdir()
    return write_folder(folder, MODELS[name])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("folders")


@cache
def cost(name: str, root: Path, **options: Any) -> CostAnswer:
    adapter = find_adapter(str(folder_of(name, root)))
    return cost_of(Origin(name=name, source=adapter, workload=Workload(prompt_tokens=5), **options), SOURCES)


@pytest.mark.parametrize(
    ("name", "routing"),
    [*((name, "uniform") for name in MODELS), ("mixtral", "balanced"), ("qwen3_moe", "one"), ("gpt_oss", "random:7")],
)
def test_the_sources_agree_on_flops_and_bytes_of_every_stage(name: str, routing: str, root: Path) -> None:
    static = cost(name, root, routing=routing).static
    assert static.ledger.missing == ()
    assert static.ledger.differences == ()
    assert [figure for figure in static.ledger.figures if figure.difference] == []
    single = {(found.figure, found.family) for found in static.ledger.single}
    assert not single & {("flops", WorkFamily.GROUPED), ("flops", WorkFamily.ATTENTION), ("flops", WorkFamily.MATMUL)}
    assert ("bytes_moved", None) not in single
    for stage in static.stages:
        ours = next(source for source in stage.sources if source.source == "counted")
        assert flops_in(ours, WorkFamily.GROUPED) > 0


@pytest.mark.parametrize("name", MODELS)
def test_torch_counts_the_experts_itself_as_plain_matmuls(name: str, root: Path) -> None:
    for stage in cost(name, root).static.stages:
        told = next(source for source in stage.sources if source.source == "torch-counter")
        assert told.is_complete
        assert flops_in(told, WorkFamily.GROUPED) == 0
        assert "experts were run one after the other, as plain matmuls" in told.notes


@pytest.mark.parametrize("name", MODELS)
def test_counted_group_by_group_they_cost_the_same(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The formula for a grouped matmul that is left where a model offers no loop."""
    adapter = find_adapter(str(folder_of(name, root)), trust_remote_code=False)
    looped = TorchCounter().figures(adapter, Workload(prompt_tokens=5))
    monkeypatch.setattr("llm_perf_opt.costs.sources.torch_counter.has_grouped_experts", lambda module: False)
    grouped = TorchCounter().figures(adapter, Workload(prompt_tokens=5))
    assert [told.flops for told in grouped] == [told.flops for told in looped]
    assert all(flops_in(told, WorkFamily.GROUPED) > 0 and told.is_complete for told in grouped)


@pytest.mark.parametrize("source", ["counted", "byte-counter"])
def test_experts_without_rows_are_not_read(source: str, root: Path) -> None:
    """Five tokens with two experts each: spread evenly they take all 8, and sent to one place 2.

    The 6 that get nothing are 3 matrices of 64 x 96 each, in 2 layers, of 2 bytes per value.
    """
    read = {}
    for routing in ("balanced", "one"):
        prefill, _ = cost("mixtral", root, routing=routing).static.stages
        (read[routing],) = (told.bytes_moved or 0 for told in prefill.sources if told.source == source)
    assert read["balanced"] - read["one"] == 2 * 6 * 3 * 64 * 96 * 2


def test_a_count_that_reads_the_whole_stack_is_found_out(root: Path) -> None:
    static = cost("mixtral", root).static
    told = [source for stage in static.stages for source in stage.sources]
    idle = 2 * 3 * 6 * 64 * 96 * 2  # bytes of the experts that a decoded token leaves alone
    wrong = [
        replace(source, bytes_moved=(source.bytes_moved or 0) + idle)
        if (source.source, source.phase) == ("counted", "decode")
        else source
        for source in told
    ]
    (entry,) = reconcile(wrong).unexplained_figures
    assert (entry.stage, entry.figure, entry.difference, entry.cause) == ("decode", "bytes_moved", idle, None)


@pytest.mark.parametrize("weights", ["int4-g128", "mxfp4", "fp8", "int8"])
def test_a_stored_format_explains_the_bytes_that_it_saves_and_no_more(weights: str, root: Path) -> None:
    static = cost("qwen3_moe", root, deployment=Deployment(weights=weights)).static
    apart = [figure for figure in static.ledger.figures if figure.figure == "bytes_moved"]
    assert {(figure.stage, figure.cause) for figure in apart} == {
        ("prefill", "stored-format"),
        ("decode", "stored-format"),
    }
    told = [source for stage in static.stages for source in stage.sources]
    off_by_one = [
        replace(source, bytes_as_held=source.bytes_as_held + 1) if source.bytes_as_held is not None else source
        for source in told
    ]
    assert {entry.figure for entry in reconcile(off_by_one).unexplained_figures} == {"bytes_moved"}


def test_the_model_is_told_what_it_was_before_also_when_its_loop_raises(root: Path) -> None:
    adapter = find_adapter(str(folder_of("mixtral", root)), trust_remote_code=False)
    model = build_on_ghosts(adapter.targets(Workload())[0], Engine())
    chosen = model.config._experts_implementation
    assert has_grouped_experts(model)
    with pytest.raises(RuntimeError), looped_experts(model):
        assert model.config._experts_implementation == "eager"
        raise RuntimeError("half-way")
    assert model.config._experts_implementation == chosen != "eager"


@pytest.mark.parametrize(
    ("left", "right", "ends", "flops"),
    [
        ((24, 16), (4, 16, 32), [6, 6, 20, 24], 2 * 24 * 16 * 32),
        ((24, 16), (4, 16, 32), [6, 6, 20, 20], 2 * 20 * 16 * 32),  # four rows belong to no group
        ((4, 10, 16), (16, 24), [6, 6, 20, 24], 2 * 10 * 16 * 24),  # the columns are split
        ((10, 24), (24, 32), [6, 6, 20, 20], 2 * 10 * 32 * 20),  # the summed dimension is
        ((4, 10, 16), (4, 16, 32), None, 4 * 2 * 10 * 16 * 32),
    ],
)
def test_a_grouped_matmul_costs_what_its_groups_cost(
    left: tuple[int, ...], right: tuple[int, ...], ends: list[int] | None, flops: int
) -> None:
    offsets = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    assert grouped_flops(torch.empty(left), torch.empty(right), offsets) == flops


def test_every_count_of_bytes_is_of_the_whole_run(root: Path) -> None:
    static = cost("qwen3_moe", root).static
    told: list[SourceFigures] = [source for stage in static.stages for source in stage.sources]
    by_watch = {source.phase: source.bytes_moved for source in told if source.source == "byte-counter"}
    assert by_watch == {source.phase: source.bytes_moved for source in told if source.source == "counted"}
    assert all(by_watch.values())

"""The second source: formulas from configurations, by hand-worked numbers and against 72 closed forms."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.bounds.closed_form import Reach, closed_form
from benchmarks.bounds.evaluation import formulas, models
from benchmarks.bounds.page import CONFIGS, CORRECTIONS, formula, is_corrected, stated_flops, truth

RECORDS: list[dict[str, Any]] = truth()["records"]


def test_a_window_a_chunk_and_a_choice_limit_what_a_token_sees() -> None:
    assert [Reach().visible(context) for context in (1, 4, 9)] == [1, 4, 9]
    assert [Reach(window=4).visible(context) for context in (1, 4, 9)] == [1, 4, 4]
    assert [Reach(chosen=4).visible(context) for context in (1, 4, 9)] == [1, 4, 4]
    assert [Reach(chunk=4).visible(context) for context in (1, 4, 5, 9)] == [1, 4, 1, 1]


@pytest.mark.parametrize("reach", [Reach(), Reach(window=4), Reach(chunk=4), Reach(chosen=3)])
@pytest.mark.parametrize("prompt", [1, 4, 5, 11])
def test_the_pairs_of_a_prompt_are_what_its_tokens_see(reach: Reach, prompt: int) -> None:
    assert reach.pairs(prompt) == sum(reach.visible(context) for context in range(1, prompt + 1))


def test_a_dense_model_by_hand() -> None:
    """Llama 3.1 8B: 32 layers of 4096 x 128 x (32 + 2 x 8 + 32) + 3 x 4096 x 14336, and a head of 4096 x 128256."""
    llama = closed_form(CONFIGS / "llama31-8b")
    layer = 4096 * 128 * 80 + 3 * 4096 * 14336
    assert llama.active_matrix_parameters == 32 * layer + 4096 * 128256 == 7_504_658_432
    assert llama.cached_bytes_per_token() == 32 * 2 * 8 * 128 * 2 == 131_072
    step = llama.step(batch=8, context=1025)
    assert step.flops == 8 * (2 * 7_504_658_432 + 32 * 4 * 32 * 128 * 1025) == 124_373_696_512
    assert step.bytes == 2 * 7_504_658_432 + 8 * 1025 * 131_072


def test_the_last_layer_of_a_prompt_is_needed_for_its_last_token_alone() -> None:
    llama = closed_form(CONFIGS / "llama31-8b")
    layer, cache_making = 4096 * 128 * 80 + 3 * 4096 * 14336, 4096 * 128 * 16
    pair_flops = 4 * 32 * 128
    before = 31 * (2 * 100 * layer + pair_flops * 5050)
    last = 2 * 99 * cache_making + 2 * (layer + 4096 * 128256) + pair_flops * 100
    assert llama.prefill(batch=1, prompt=100).flops == before + last


def test_experts_by_policy() -> None:
    mixtral = closed_form(CONFIGS / "mixtral-8x7b")
    fixed = mixtral.step(batch=1, context=1, routing="fewest").weight_bytes
    expert_bytes = 2 * 32 * 3 * 4096 * 14336
    assert mixtral.step(batch=8, context=1, routing="fewest").weight_bytes == fixed
    assert mixtral.step(batch=3, context=1, routing="balanced").weight_bytes == fixed + 4 * expert_bytes
    expected = 8 * (1 - 0.75**3)  # 4.625 of 8
    assert mixtral.step(batch=3, context=1, routing="uniform").weight_bytes == pytest.approx(
        fixed + (expected - 2) * expert_bytes
    )


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: f"{r['model']}-{r['prompt_tokens']}-{r['batch']}")
def test_the_formulas_give_every_record_or_its_correction(record: dict[str, Any]) -> None:
    work, form = formula(record), closed_form(CONFIGS / record["model"])
    assert form.active_matrix_parameters == record["matrix_parameters_active"]
    assert form.cached_bytes_per_token() == record["kv_bytes_per_token"]
    if is_corrected(record):
        assert record["model"] in CORRECTIONS
        assert work.flops < stated_flops(record)
        assert work.bytes < record["decode_bytes_read_once_bf16"]
    else:
        assert work.flops == stated_flops(record)
        assert round(work.bytes) == record["decode_bytes_read_once_bf16"]


def test_nine_records_are_corrected() -> None:
    corrected = {(r["model"], r["prompt_tokens"]) for r in RECORDS if is_corrected(r)}
    assert corrected == {("gpt-oss-20b", 1024), ("gpt-oss-120b", 1024), ("llama4-scout", 8192)}


def test_a_window_in_every_second_layer_by_hand() -> None:
    """gpt-oss-20b after 1,024 tokens: 12 layers see 1,025 of them and 12 see 128, 2 x 8 x 64 numbers each."""
    step = closed_form(CONFIGS / "gpt-oss-20b").step(batch=1, context=1025)
    assert step.cache_bytes == 12 * (1025 + 128) * 2 * 8 * 64 * 2 == 28_336_128
    assert step.flops == 2 * 3_607_142_400 + 4 * 64 * 64 * 12 * (1025 + 128) == 7_440_973_824


def test_a_chunk_begins_anew_by_hand() -> None:
    """Llama 4 Scout after 8,192 tokens: 12 layers see all 8,193, in the 36 others the new token begins a chunk."""
    step = closed_form(CONFIGS / "llama4-scout").step(batch=1, context=8193)
    assert step.cache_bytes == (12 * 8193 + 36) * 2 * 8 * 128 * 2
    assert step.flops == 2 * 16_137_912_320 + 4 * 40 * 128 * (12 * 8193 + 36) == 34_290_073_600


# In billions, as their makers publish them. The formulas leave out embeddings, norms and biases.
PUBLISHED = {
    "deepseek-r1": 671.0,
    "kimi-k2.5": 1026.4,
    "minimax-m2.5": 228.7,
    "glm-5": 743.9,
    "gpt-oss-120b": 116.8,
    "qwen3-235b-a22b": 235.1,
    "qwen3.5-397b-a17b": 396.3,
    "llama-4-maverick": 400.7,
    "llama-4-scout": 107.8,
    "mixtral-8x22b": 140.6,
    "mixtral-8x7b": 46.7,
    "llama-3.1-70b": 70.55,
    "llama-2-70b": 68.98,
    "qwen3-32b": 32.76,
    "yi-34b": 34.39,
    "codellama-34b": 33.74,
    "mistral-nemo": 12.25,
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_the_configurations_have_as_many_parameters_as_published(model: str) -> None:
    form = formulas(model)
    with_embedding = (form.matrix_parameters + form.head) / 1e9  # none of these ties its head
    assert with_embedding == pytest.approx(PUBLISHED[model], rel=1e-3)


def test_every_model_of_a_measured_run_has_formulas() -> None:
    assert {formulas(model).active_matrix_parameters > 0 for model in models()} == {True}
    assert len(models()) == 28

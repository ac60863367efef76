"""Sentences that reports print, each computed another way: from the sizes of the model, by plain arithmetic, from a
data sheet. The models are named by no other test."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import llm_perf_opt as lpo
from llm_perf_opt.models.huggingface.names import INDEX
from tests.end_to_end.sentence_forms import BF16, Decoder, Twin, printed, read, shows, told

pytest.importorskip("transformers", reason="the models here are transformers', an optional extra")

CLARA = Decoder(hidden=192, inner=448, layers=5, heads=6, key_heads=2, width=32, words=1504)
MOIRA = replace(CLARA, inner=64, layers=3, experts=12, chosen=3)
SMOL = Decoder(
    hidden=2048, inner=8192, layers=24, heads=32, key_heads=32, width=64, words=49152, is_tied=True
)  # HuggingFaceTB/SmolLM2-1.7B
OLMO_PARAMETERS = 13_716_198_400  # of OLMo-2 13B, as published
BATCH, TOKENS = 3, 40
ROWS = json.loads(INDEX.read_text("utf-8"))
L40S_BYTES, L40S_BANDWIDTH, L40S_L2 = 46_068 * 2**20, 864e9, 96 * 2**20  # driver, data sheet
L4_BYTES = 23_034 * 2**20


@pytest.fixture(scope="module")
def clara(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(CLARA.write(tmp_path_factory.mktemp("sentences") / "clara"))


@pytest.fixture(scope="module")
def moira(tmp_path_factory: pytest.TempPathFactory) -> str:
    experts = {"num_experts": MOIRA.experts, "num_experts_per_tok": MOIRA.chosen, "moe_intermediate_size": MOIRA.inner}
    folder = tmp_path_factory.mktemp("sentences") / "moira"
    return str(MOIRA.write(folder, model_type="qwen3_moe", norm_topk_prob=True, **experts))


def traced(folder: str, *more: str, batch: int = BATCH, tokens: int = TOKENS) -> str:
    return printed("trace", folder, "--batch", str(batch), "--prompt-tokens", str(tokens), "--verbose", *more)


# ---- trace


def test_all_flops_of_a_run(clara: str) -> None:
    (flops,) = told(traced(clara), r"clara: # and ~ moved")
    assert shows(flops, CLARA.prefill_flops(BATCH, TOKENS) + CLARA.step_flops(BATCH, TOKENS))


def test_module_calls_and_parameters(clara: str) -> None:
    calls, parameters = told(traced(clara), r"in # module calls, # parameters\.")
    assert shows(calls, 2 * CLARA.calls)
    assert shows(parameters, CLARA.parameters)


def test_the_phases_with_most_flops(clara: str) -> None:
    prefill, decode = told(traced(clara), r"Most FLOPs: prefill #, decode #;")
    flops = CLARA.prefill_flops(BATCH, TOKENS), CLARA.step_flops(BATCH, TOKENS)
    assert shows(prefill, flops[0] / sum(flops))
    assert shows(decode, flops[1] / sum(flops))


def test_a_phase_that_has_nearly_all_flops_has_over_99_percent(clara: str) -> None:
    flops = CLARA.prefill_flops(1, 2000), CLARA.step_flops(1, 2000)
    assert 0.995 < flops[0] / sum(flops) < 1
    assert "Most FLOPs: prefill over 99 %, decode under 1 %;" in traced(clara, batch=1, tokens=2000)


def test_what_is_necessary_of_a_prefill(clara: str) -> None:
    written, necessary = told(traced(clara), r"prefill: the code runs # where # are necessary\.")
    flops = CLARA.prefill_flops(BATCH, TOKENS)
    assert shows(written, flops)
    left_out = CLARA.unused_flops(BATCH, TOKENS) + CLARA.hidden_flops(BATCH, TOKENS) + CLARA.width * TOKENS
    assert shows(necessary, flops - left_out)


def test_positions_whose_result_nobody_uses(clara: str) -> None:
    (flops,) = told(traced(clara), r"# are positions with a result that nobody uses")
    assert shows(flops, CLARA.unused_flops(BATCH, TOKENS))


def test_pairs_that_the_mask_hides(clara: str) -> None:
    (flops,) = told(traced(clara, tokens=400), r"# are pairs of query and key that the causal mask")
    assert shows(flops, CLARA.hidden_flops(BATCH, 400))


def test_what_a_decode_step_must_read(clara: str) -> None:
    weights, cache = told(traced(clara), r"of it cache .*? decode ~ ~ ~ ~ # #")
    rows = BATCH * CLARA.hidden  # of the embedding
    assert shows(weights, BF16 * (CLARA.active() + CLARA.norms + rows))
    assert shows(cache, BATCH * TOKENS * CLARA.cache_per_token)


def test_each_of_several_steps_reads_a_longer_cache(clara: str) -> None:
    (cache,) = told(traced(clara, "--decode-steps", "3"), r"of it cache .*? decode ~ ~ ~ ~ ~ #")
    assert shows(cache, BATCH * (3 * TOKENS + 1 + 2) * CLARA.cache_per_token)


def test_the_workload_as_it_ran(clara: str) -> None:
    prompt, context, batch = told(traced(clara), r"Workload: prompt tokens #, context tokens #, .* batch #,")
    assert (prompt, context, batch) == (str(TOKENS), str(TOKENS), str(BATCH))


def test_how_many_experts_a_step_reads(moira: str) -> None:
    """Each token leaves an expert out with probability 9 / 12; four tokens do so independently."""
    layers, distinct, experts, tokens, chosen = told(
        traced(moira, batch=4), r"decode: each of # expert layers reads # of its # experts \(# tokens choosing #\)"
    )
    assert (layers, experts, tokens, chosen) == ("3", "12", "4", "3")
    assert float(distinct) == pytest.approx(12 * (1 - (9 / 12) ** 4), abs=5e-4)


def test_how_many_experts_the_ranks_read_together(moira: str) -> None:
    text = traced(moira, "--tp", "2", "--ep", "2", batch=4)
    each, own, ranks, together, all_ = told(
        text,
        r"decode: each of ~ expert layers reads # of the # experts of a rank, on average over the # ranks that read # "
        r"of # together",
    )
    expected = 12 * (1 - (9 / 12) ** 4)
    assert (own, ranks, all_) == ("6", "2", "12")
    assert float(each) == pytest.approx(expected / 2, abs=5e-4)
    assert float(together) == pytest.approx(expected, abs=5e-4)


def test_what_a_quantised_checkpoint_stores(tmp_path: Path) -> None:
    """In fp8 with a float32 for each 32 x 32 block, but for the feed-forward networks of two layers."""
    left_out = ["lm_head", "backbone.layers.0.mlp", "model.layers.4.mlp"]
    block = {"quant_method": "fp8", "weight_block_size": [32, 32], "modules_to_not_convert": left_out}
    text = traced(str(CLARA.write(tmp_path / "carla", quantization_config=block)))
    matrices, stored = told(text, r"Weights: fp8-block32 in # matrices, bfloat16 elsewhere: # stored")
    assert int(matrices) == CLARA.layers * 7 - 2 * 3
    small = CLARA.layers * CLARA.layer() - 2 * CLARA.expert
    assert shows(stored, BF16 * (CLARA.parameters - small) + small + 4 * small / 32**2)


# ---- cost


def cost(folder: str, *, batch: int = BATCH) -> str:
    sources = "counted,torch-counter"
    words = ("--batch", str(batch), "--prompt-tokens", str(TOKENS), "--sources", sources, "--verbose")
    return printed("cost", folder, *words)


def test_cost_and_trace_name_a_folder_alike_and_agree(clara: str) -> None:
    (flops,) = told(cost(clara), r"^clara: # as written")
    assert shows(flops, CLARA.prefill_flops(BATCH, TOKENS) + CLARA.step_flops(BATCH, TOKENS))
    assert "counted, torch-counter agree." in cost(clara)


def test_parameters_that_are_active_per_token(clara: str, moira: str) -> None:
    for folder, model in ((clara, CLARA), (moira, MOIRA)):
        (active,) = told(cost(folder), r"# active per token")
        assert shows(active, model.active())


def test_parameters_that_a_decode_step_of_a_batch_uses(moira: str) -> None:
    """Eight of twelve experts: what four tokens are expected to reach, as a whole number."""
    (used,) = told(cost(moira, batch=4), r"# used by a decode step of batch 4")
    assert shows(used, MOIRA.active(round(12 * (1 - (9 / 12) ** 4))))


def test_the_cache_and_what_a_token_adds_to_it(clara: str) -> None:
    total, token = told(cost(clara), r"KV cache at the end KV per token [- ]+ ~ ~ ~ ~ # #")
    (before,) = told(cost(clara), r"KV cache tensors before the first decode step per token [- ]+ ~ # ~")
    assert shows(token, CLARA.cache_per_token)
    assert shows(before, BATCH * TOKENS * CLARA.cache_per_token)
    assert shows(total, BATCH * (TOKENS + 1) * CLARA.cache_per_token)


# ---- trace on a device


def smol(*words: str) -> str:
    shape = ("--batch", "4", "--prompt-tokens", "512", "--execution", "fused", "--rates", "data-sheet", "--verbose")
    return printed("trace", "HuggingFaceTB/SmolLM2-1.7B", *shape, *words)


def test_the_lower_bound_of_a_decode_step() -> None:
    """Weights, norms and the cache of 512 tokens, less what the second-level cache holds, at full bandwidth."""
    (bound,) = told(smol("--device", "l40s"), r"decode ~ ~ ~ # ~ ~ bandwidth")
    read_bytes = BF16 * (SMOL.active() + SMOL.norms + 4 * SMOL.hidden) + 4 * 512 * SMOL.cache_per_token
    assert read(bound)[0] == pytest.approx((read_bytes - L40S_L2) / L40S_BANDWIDTH, rel=0.005)


def test_whether_it_fits_and_in_how_much() -> None:
    needed, memory = told(smol("--device", "l40s"), r"fits, # of #\.")
    assert shows(memory, L40S_BYTES)
    assert read(f"{needed} GiB")[0] > BF16 * SMOL.parameters + 4 * 512 * SMOL.cache_per_token


def test_tokens_per_second_are_sequences_over_the_time_of_a_step() -> None:
    fast, slow, unit, least, most = told(smol("--device", "l40s"), r"TPOT #-# (ms|us), #-# tokens/s")
    assert read(least)[0] == pytest.approx(4 / read(f"{slow} {unit}")[0], rel=0.01)
    assert read(most)[0] == pytest.approx(4 / read(f"{fast} {unit}")[0], rel=0.01)


def test_how_many_devices_hold_what_does_not_fit_on_one() -> None:
    text = printed("trace", "allenai/OLMo-2-1124-13B", "--prompt-tokens", "64", "--device", "l4", "--verbose")
    needed, memory, devices = told(text, r"Does not fit on NVIDIA L4: # of #; # x l4 at least")
    assert shows(memory, L4_BYTES)
    other = read(f"{needed} GiB")[0] - BF16 * OLMO_PARAMETERS
    assert int(devices) == math.ceil(BF16 * OLMO_PARAMETERS / (L4_BYTES - other))
    (short,) = told(text, r"bfloat16: # over\.")
    assert read(short)[0] == pytest.approx(read(f"{needed} GiB")[0] - L4_BYTES, rel=0.02)


def test_a_run_of_several_steps(clara: str) -> None:
    text = printed("trace", clara, "--prompt-tokens", "40", "--decode-steps", "10", "--device", "l40s", "--verbose",
                   "--rates", "data-sheet")  # fmt: skip
    first, last = told(text, r"decode step 1, after # tokens ~ .*?decode step 10, after # tokens")
    assert (int(first), int(last)) == (40, 40 + 9)
    low, high, least, most = told(text, r"prefill and all steps ~ # # # #")
    assert read(least)[0] == pytest.approx(10 / read(high)[0], rel=0.01)
    assert read(most)[0] == pytest.approx(10 / read(low)[0], rel=0.01)


def test_the_largest_batch_that_a_server_holds() -> None:
    """The room for the cache, over 33 blocks of 16 tokens for each sequence of 513."""
    text = smol("--device", "l40s")
    batch, room, asked = told(text, r"NVIDIA L40S yes # ~ ~ ~ ~ ~ ~ # devices .*? NVIDIA L40S #")
    size = 33 * 16 * SMOL.cache_per_token
    shown, half = read(room)
    assert (shown - half) // size <= int(batch) <= (shown + half) // size
    assert shows(asked, 4 * size)
    assert "The largest context is the trained length" in text and "by memory alone" not in text


def test_pages_per_second_of_a_model_that_attends_to_an_image() -> None:
    words = ("--image", "560x560", "--prompt-tokens", "16", "--device", "h100-sxm", "--rates", "data-sheet")
    text = printed("trace", "meta-llama/Llama-3.2-11B-Vision-Instruct", *words)
    fast, slow, unit, least, most = told(text, r"TTFT #-# (ms|us), .*? #-# pages/s \(prefill only\)")
    assert read(least)[0] == pytest.approx(1 / read(f"{slow} {unit}")[0], rel=0.01)
    assert read(most)[0] == pytest.approx(1 / read(f"{fast} {unit}")[0], rel=0.01)


# ---- sweep


def sweep(folder: str) -> str:
    return printed("sweep", folder, "--users", "1,2,5", "--input", "64,128", "--gpus", "l4", "--verbose")


def test_what_one_more_sequence_and_one_more_token_add(clara: str) -> None:
    batch, context, sequence, token = told(sweep(clara), r"add to decode\? .*?batch # and context #") + told(
        sweep(clara), r"clara, decode, \+1 sequence: #,.*?\+1 token of context: #"
    )
    assert shows(sequence, CLARA.step_flops(1, int(context)) - CLARA.width)
    assert shows(token, int(batch) * CLARA.layers * CLARA.attention_flops(1))


def test_how_many_points_a_sweep_has(clara: str) -> None:
    assert told(sweep(clara), r"# points from ~ traces?; every point is proven") == (str(2 * 3 * 2),)


# ---- report


def test_memory_at_the_peak_and_its_share_of_the_device(clara: str) -> None:
    text = printed("report", clara, "--input", str(TOKENS), "--users", str(BATCH), "--gpus", "l4", "--verbose")
    peak, weights, share = told(text, r"yes: # at the peak, of which # are weights; # of NVIDIA L4")
    assert shows(weights, BF16 * CLARA.parameters)
    assert read(share)[0] == pytest.approx(read(peak)[0] / L4_BYTES, rel=0.01)


# ---- compare


def test_how_much_longer_prompts_change(clara: str, tmp_path: Path) -> None:
    for tokens in (TOKENS, 2 * TOKENS):
        printed("trace", clara, "--prompt-tokens", str(tokens), "--out", str(tmp_path / str(tokens)))
    sides = [str(tmp_path / str(tokens)) for tokens in (TOKENS, 2 * TOKENS)]
    text = printed("compare", *sides, "--budget", "flops<=+10%", "--budget", "parameters<=+0%")
    before, after, change = told(text, r"FLOPs: # -> # \(\+#\)")
    flops = [CLARA.prefill_flops(1, n) + CLARA.step_flops(1, n) for n in (TOKENS, 2 * TOKENS)]
    assert shows(before, flops[0])
    assert shows(after, flops[1])
    assert shows(change, flops[1] / flops[0] - 1)
    assert "Budgets met: 1 of 2; not met: flops<=+10%." in text


# ---- graph


def test_parts_of_one_class_are_told_apart() -> None:
    text = " ".join(repr(lpo.trace(Twin(), (torch.zeros(7, 64),)).graph()).split())
    wide, narrow = told(text, r"Most FLOPs: Linear \(wide\) #, Linear \(narrow\) #")
    assert shows(wide, 0.75)
    assert shows(narrow, 0.25)


def test_a_picture_begins_with_the_figures_of_the_whole(clara: str, tmp_path: Path) -> None:
    printed("trace", clara, "--prompt-tokens", str(TOKENS), "--out", str(tmp_path))
    text = printed("graph", str(tmp_path), "--format", "text", "--verbose")
    flops, parameters = told(text, r"clara prefill: #, ~ moved, # params\.")
    assert shows(flops, CLARA.prefill_flops(1, TOKENS))
    assert shows(parameters, CLARA.parameters)
    modules, calls = told(text, r"# modules and # calls in")
    assert (int(modules), int(calls)) == (CLARA.calls, CLARA.calls)
    assert "images" not in text


# ---- devices, models


def test_a_device_by_its_data_sheet() -> None:
    peak, bandwidth, memory = told(printed("devices", "show", "l40s"), r"bf16 # TFLOP/s, .*?# GB/s, #\.")
    assert (peak, bandwidth) == ("362", "864")
    assert shows(memory, L40S_BYTES)


def test_a_search_counts_the_names_that_hold_the_words() -> None:
    names = [row["name"] for row in ROWS] + [name for row in ROWS for name in row["shared_by"]]
    (count,) = told(printed("models", "--search", "smollm"), r"^# names\.")
    assert int(count) == sum("smollm" in name.lower() for name in names)


# ---- pages, profile, study


def test_what_one_more_crop_adds() -> None:
    """Two crops side by side are rows of 3 tokens for each crop and one that ends the row: 3 x (2 x 3 + 1)."""
    flops, tokens = told(
        printed("sweep", "deepseek-ocr-tiny", "--crops", "2x1,2x2"), r"One more crop adds # to vision and # tokens\."
    )
    assert float(tokens) == 3 * (2 * 3 + 1) / 2
    stages = [lpo.trace("deepseek-ocr-tiny", crops=grid, decode_steps=0).stages().stages for grid in ((2, 1), (2, 2))]
    small, large = (sum(one.cost.flops or 0 for one in found if one.name != "prefill") for found in stages)
    assert shows(flops, (large - small) / 2)


def test_pages_per_day_of_a_profile(tmp_path: Path) -> None:
    text = printed("profile", "deepseek-ocr-tiny", f"run.folder={tmp_path}", "run.repeats=1")
    page, rate, day = told(text, r"a page #, TTFT .*? # pages/s, # pages/day")
    assert read(rate)[0] == pytest.approx(1 / read(page)[0], rel=0.01)
    assert read(day)[0] == pytest.approx(86_400 / read(page)[0], rel=0.01)


def test_points_of_a_study_and_the_cheapest_of_them(clara: str, tmp_path: Path) -> None:
    prices = {"l4": 0.8, "l40s": 1.9}
    study = {"name": "sums", "models": [clara], "workload": {"users": [2, 4], "input": 16}}
    (tmp_path / "study.yaml").write_text(json.dumps({**study, "prices": prices, "gpus": [*prices]}))
    out = str(tmp_path / "out")
    points, computed = told(
        printed("study", str(tmp_path / "study.yaml"), "--out", out, "--workers", "1"),
        r"# points, # computed, 0 reused",
    )
    assert (points, computed) == ("4", "4")  # two batches on two devices
    text = printed("ask", out, "cheapest plan under 50 ms TPOT", "--verbose")
    device, batch, low, high, least, most = told(
        text, r"clara one device checkpoint checkpoint (\S+) 1 # 16 # # ~ .*? clara # # USD"
    )
    for step, cost_ in ((low, least), (high, most)):
        assert read(cost_)[0] == pytest.approx(prices[device] / 3600 * read(step)[0] / int(batch) * 1e6, rel=0.01)

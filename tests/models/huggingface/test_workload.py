"""The workload that was asked for is the one that runs, or it is refused, or the trace says in what it differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.target import Target
from llm_perf_opt.costs.memory.need import run_memory
from llm_perf_opt.costs.run_description import workload_note
from llm_perf_opt.costs.stage_costs import stage_costs
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.models.huggingface.options import HuggingFaceWorkload
from llm_perf_opt.timing.stage_work import stage_works
from tests.models.huggingface.folders import LLAMA, LLAVA, MIXTRAL, T5, TEXT, VISION, write_folder
from tests.models.huggingface.test_decode_step import MAMBA2, WHISPER

transformers = pytest.importorskip(
    "transformers", reason="a Hugging Face folder is run by transformers, an optional extra"
)

IS_OLDER = int(transformers.__version__.split(".")[0]) < 5
WIDTH, HEADS, LAYERS, WORDS = TEXT["hidden_size"], TEXT["num_key_value_heads"], TEXT["num_hidden_layers"], 200
ENCODER = {key: value for key, value in TEXT.items() if key != "num_key_value_heads"}
BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], **ENCODER, "max_position_embeddings": 64}
ROBERTA = {**BERT, "model_type": "roberta", "architectures": ["RobertaForMaskedLM"], "pad_token_id": 1}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 200}
VIT = {"model_type": "vit", **VISION}
CLIP = {
    "model_type": "clip",
    "text_config": {"model_type": "clip_text_model", **ENCODER, "max_position_embeddings": 77},
    "vision_config": {"model_type": "clip_vision_model", **VISION},
}
newer = pytest.mark.skipif(IS_OLDER, reason="older versions need an image, or count image tokens otherwise")


def targets_of(folder: Path, config: dict[str, Any], **options: Any) -> tuple[Target, ...]:
    return HuggingFaceAdapter(write_folder(folder, config), False).targets(HuggingFaceWorkload(**options))


def graphs_of(folder: Path, config: dict[str, Any], **options: Any) -> tuple[CallGraph, ...]:
    tracer = WeightlessTracer()
    return tuple(tracer.trace(target) for target in targets_of(folder, config, **options))


# ---- as many tokens as asked for


@pytest.mark.parametrize("tokens", [1, 7, 252, 256, 300])
def test_a_prompt_is_as_long_as_asked_for_even_beyond_the_trained_length(tmp_path: Path, tokens: int) -> None:
    """The configuration names 256 positions; rotary embeddings have no end."""
    prefill, decode = graphs_of(tmp_path, LLAMA, prompt_tokens=tokens)
    assert prefill.workload["prompt_tokens"] == prefill.workload["context_tokens"] == tokens
    (embedded,) = prefill.input_metadata["model.embed_tokens"]
    assert [meta.shape for meta in embedded.tensors] == [(1, tokens)]
    told = [note for note in prefill.notes if "trained length" in note]
    assert bool(told) == (tokens + 1 > 256) and decode.notes == prefill.notes
    if told:
        assert f"{tokens + 1:,} positions run, and the configuration names 256" in told[0]


def test_the_table_of_an_encoder_is_used_to_its_end_and_not_beyond(tmp_path: Path) -> None:
    (graph,) = graphs_of(tmp_path, BERT, prompt_tokens=64)
    assert graph.workload["inputs"]["input_ids"] == [1, 64]
    assert graph.notes == ()
    with pytest.raises(UsageError, match="65 tokens") as refusal:
        targets_of(tmp_path, BERT, prompt_tokens=65)
    assert refusal.value.fix == "use --prompt-tokens 64 or less"


def test_a_table_that_keeps_positions_for_padding_ends_earlier_than_it_says(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        targets_of(tmp_path, ROBERTA, prompt_tokens=100)
    assert refusal.value.fix == "use --prompt-tokens 62 or less"  # positions 0 and 1 are never those of a token


@pytest.mark.parametrize(("tokens", "steps", "runs"), [(64, 0, True), (64, 1, False), (60, 4, True), (60, 5, False)])
def test_decode_steps_need_positions_too(tmp_path: Path, tokens: int, steps: int, runs: bool) -> None:
    if runs:
        *_, last = graphs_of(tmp_path, GPT2, prompt_tokens=tokens, decode_steps=steps)
        assert last.workload["decode_steps"] == steps
        return
    with pytest.raises(UsageError, match=f"after {tokens} tokens") as refusal:
        targets_of(tmp_path, GPT2, prompt_tokens=tokens, decode_steps=steps)
    assert refusal.value.fix == f"shorten the prompt by 1, or use --decode-steps {64 - tokens}"


def test_a_default_prompt_fits_by_itself(tmp_path: Path) -> None:
    (graph,) = graphs_of(tmp_path, BERT)
    assert graph.workload["prompt_tokens"] == 60  # 128, or what 64 positions leave free


@pytest.mark.parametrize("tokens", [1, 9, 447])
def test_whispers_prompt_is_what_its_decoder_begins_with(tmp_path: Path, tokens: int) -> None:
    """The decoder has 448 positions; the encoder has 50, each of two frames."""
    prefill, decode = graphs_of(tmp_path, WHISPER, prompt_tokens=tokens)
    workload = prefill.workload
    assert (workload["prompt_tokens"], workload["decoder_tokens"]) == (tokens, tokens)
    assert (workload["audio_frames"], workload["encoder_tokens"]) == (100, 50)
    assert workload["inputs"]["decoder_input_ids"] == [1, tokens]
    assert decode.workload["inputs"]["decoder_input_ids"] == [1, 1]
    assert [note for note in prefill.notes if "100 audio frames" in note]


def test_whisper_refuses_what_its_decoder_has_no_positions_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="449 tokens"):
        targets_of(tmp_path, WHISPER, prompt_tokens=449, decode_steps=0)
    with pytest.raises(UsageError, match="no position for a decode step after 448"):
        targets_of(tmp_path, WHISPER, prompt_tokens=448)


def test_the_prompt_of_t5_is_read_by_its_encoder(tmp_path: Path) -> None:
    prefill, decode = graphs_of(tmp_path, T5, prompt_tokens=40)
    assert {name: prefill.workload[name] for name in ("prompt_tokens", "encoder_tokens", "decoder_tokens")} == {
        "prompt_tokens": 40,
        "encoder_tokens": 40,
        "decoder_tokens": 1,  # generation begins with the start token
    }
    assert "context_tokens" not in prefill.workload
    assert decode.workload["inputs"]["decoder_input_ids"] == [1, 1]


def test_a_prompt_for_a_model_that_reads_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes no prompt"):
        targets_of(tmp_path, VIT, prompt_tokens=512)


# ---- no image unless one was asked for


@newer
def test_a_vision_language_model_runs_on_text_unless_an_image_is_asked_for(tmp_path: Path) -> None:
    plain, _ = graphs_of(tmp_path, LLAVA, prompt_tokens=10)
    assert plain.workload["modalities"] == "text"
    assert "image" not in plain.workload and "pixel_values" not in plain.workload["inputs"]
    assert not [path for path in plain.call_counts if "vision_tower" in path]
    assert len(plain.notes) == 1 and "--image WIDTHxHEIGHT adds an image" in plain.notes[0]


@newer
@pytest.mark.parametrize("batch", [1, 3])
def test_text_and_image_tokens_are_told_apart_and_add_up(tmp_path: Path, batch: int) -> None:
    """32 x 32 pixels in patches of 8 x 8 are 16 image tokens."""
    shown, decode = graphs_of(tmp_path, LLAVA, prompt_tokens=10, image="32x32", batch=batch)
    lengths = ("prompt_tokens", "image_tokens", "context_tokens", "image")
    assert [shown.workload[name] for name in lengths] == [10, 16, 26, "32x32"]
    assert shown.workload["inputs"]["input_ids"] == [batch, 26]
    assert shown.workload["inputs"]["pixel_values"] == [batch, 3, 32, 32]
    assert shown.notes == ()
    assert decode.workload["inputs"] == {"input_ids": [batch, 1], "attention_mask": [batch, 27]}


@newer
def test_an_image_of_another_size_than_the_tower_takes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="333x222"):
        targets_of(tmp_path, LLAVA, image="333x222")


@pytest.mark.parametrize(("config", "why"), [(VIT, "reads image"), (CLIP, "does not run on text alone")])
def test_a_model_that_needs_an_image_gets_one_and_one_line_says_so(
    tmp_path: Path, config: dict[str, Any], why: str
) -> None:
    (graph,) = graphs_of(tmp_path, config)
    assert graph.workload["image"] == "32x32"
    (note,) = graph.notes
    assert why in note and "an image of 32x32 pixels" in note


# ---- logits as generate asks for them


@pytest.mark.parametrize("config", [LLAMA, MIXTRAL, MAMBA2], ids=lambda config: str(config["model_type"]))
def test_a_prefill_computes_the_logits_that_generate_asks_for(tmp_path: Path, config: dict[str, Any]) -> None:
    if IS_OLDER and config is MAMBA2:
        pytest.skip("does not keep the last position only")
    prefill, _ = graphs_of(tmp_path, config, prompt_tokens=24, batch=2)
    (head,) = prefill.output_metadata["lm_head"]
    assert [meta.shape for meta in head.tensors] == [(2, 1, WORDS)]
    assert prefill.workload["logits"] == "last position"
    assert "logits last position" in workload_note([prefill]).text


def test_a_model_that_cannot_leave_positions_out_says_so(tmp_path: Path) -> None:
    prefill, _ = graphs_of(tmp_path, WHISPER, prompt_tokens=9)
    assert prefill.workload["logits"] == "every position"
    (head,) = prefill.output_metadata["proj_out"]
    assert [meta.shape for meta in head.tensors] == [(1, 9, WORDS)]


# ---- the cache and the inputs are there when a phase begins


def cache_bytes(tokens: int, batch: int = 1) -> int:
    return 2 * LAYERS * batch * tokens * WIDTH * 2  # keys and values of every layer, as wide as the model, in bfloat16


@pytest.mark.parametrize("steps", [1, 3])
def test_filling_the_cache_is_no_work_of_a_decode_step(tmp_path: Path, steps: int) -> None:
    _, decode = graphs_of(tmp_path, LLAMA, prompt_tokens=100, decode_steps=steps)
    assert decode.ops is not None and decode.calls is not None
    assert min(decode.calls.first_op) == 0, "an op ran before the model did"
    names = {decode.op_kinds[kind].name for kind in decode.ops.kind}
    assert not {name for name in names if "zeros" in name or "full" in name}
    (stage,) = stage_costs(decode).stages
    (work,) = stage_works(decode)
    assert stage.bytes_moved == work.bytes_moved, "cost and prediction count the same step"


def test_the_cache_of_a_decode_is_an_input_and_counts_as_cache(tmp_path: Path) -> None:
    graphs = graphs_of(tmp_path, LLAMA, prompt_tokens=100, batch=2)
    decode = graphs[-1]
    assert decode.storages is not None
    given = sum(
        size for size, origin in zip(decode.storages.bytes, decode.storages.origin, strict=True) if origin == "input"
    )
    ids_and_mask = 2 * (1 + 101) * 8
    assert given == cache_bytes(100, batch=2) + ids_and_mask
    memory = run_memory(graphs)
    assert memory.cache is not None and memory.cache.bytes == cache_bytes(100, batch=2)
    phase = memory.phases[-1]
    assert phase.peak_input_bytes == ids_and_mask
    assert phase.peak_kv_bytes is not None and phase.peak is not None
    # At least the whole cache, at most one layer of it twice: a step copies it layer by layer.
    assert cache_bytes(100, batch=2) <= phase.peak_kv_bytes <= cache_bytes(101, batch=2) * (LAYERS + 1) // LAYERS
    assert phase.total_bytes == phase.weight_bytes + phase.buffer_bytes + (phase.constant_bytes or 0) + phase.peak.bytes


@newer
@pytest.mark.parametrize("batch", [1, 4])
def test_inputs_grow_with_the_batch_and_pixels_are_among_them(tmp_path: Path, batch: int) -> None:
    prefill = graphs_of(tmp_path, LLAVA, prompt_tokens=10, image="32x32", batch=batch)[0]
    (phase,) = run_memory([prefill]).phases
    pixels, ids_and_mask = 3 * 32 * 32 * 2, 2 * 26 * 8
    assert phase.peak_input_bytes == batch * (pixels + ids_and_mask)
    (stage, *_) = stage_costs(prefill).stages
    assert stage.name == "vision"
    assert not [kind.name for kind in prefill.op_kinds if "rand" in kind.name]


WAV2VEC2 = {
    "model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"], "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 64, "conv_dim": [16, 16], "conv_kernel": [10, 3],
    "conv_stride": [5, 2], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4, "vocab_size": 32,
}  # fmt: skip


def test_sound_is_as_long_as_asked_for(tmp_path: Path) -> None:
    (prefill,) = graphs_of(tmp_path, WAV2VEC2, audio_seconds=2.5)
    assert prefill.workload["inputs"]["input_values"] == [1, 40_000]  # at 16 kHz
    assert (prefill.workload["audio_samples"], prefill.workload["audio_seconds"]) == (40_000, 2.5)
    assert not [note for note in prefill.notes if "audio" in note]  # it was asked for


def test_a_decoder_begins_with_as_many_tokens_as_asked_for(tmp_path: Path) -> None:
    prefill, decode = graphs_of(tmp_path, T5, prompt_tokens=40, decoder_tokens=5)
    assert (prefill.workload["encoder_tokens"], prefill.workload["decoder_tokens"]) == (40, 5)
    assert decode.workload["inputs"]["decoder_input_ids"] == [1, 1]


@pytest.mark.parametrize(
    ("config", "option"),
    [
        (LLAMA, {"audio_seconds": 1.0}),
        (LLAMA, {"decoder_tokens": 4}),
        (WHISPER, {"audio_seconds": 1.0}),  # it reads features
        (WHISPER, {"decoder_tokens": 5, "prompt_tokens": 9}),
    ],
    ids=["no sound", "no decoder of its own", "features", "two prompts"],
)
def test_lengths_that_a_model_does_not_have_are_refused(
    tmp_path: Path, config: dict[str, Any], option: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="does not run with"):
        targets_of(tmp_path, config, **option)

"""The widest moment of a server's profile run, worked out tensor by tensor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.serving.engines import (
    VLLM_0_11_0,
    VLLM_0_12,
    VLLM_0_19,
    BatchLimits,
    ServingEngine,
    default_limits,
)
from llm_perf_opt.serving.working_memory import EncoderItem, ForwardWidths, working_memory
from tests.timing.step.made_deployments import made_device

# Llama-3.1-8B: gate and up 28,672, activated 14,336.
LLAMA = ForwardWidths(hidden=4096, vocabulary=128_256, between_matmuls=43_008)
LARGE = BatchLimits(chunk_tokens=8192, sequences=1024)
LOGITS = 1024 * 128_256
CUBLAS = 32 * 2**20
HIDDEN = (8192 + 2 * 1024) * 4096 * 2
H100 = find_device("h100-sxm")


@pytest.mark.parametrize(
    ("engine", "bytes_per_logit", "buffer"),
    [
        # 2 logits, 4 in float32; sorted 4, indices 8, indices to begin with 8, CUB 4 + 8
        (VLLM_0_12, 2 + 4 + 4 + 8 + 8 + 12, 0),
        (VLLM_0_11_0, 2 + 4 + 4 + 4, 0),  # masked logits, probabilities
        (VLLM_0_19, 2 + 4 + 4 + 4, 132 * 128_256 * 4),  # probabilities, noise; a row for each of 132 units
    ],
)
def test_sampling_a_thousand_sequences_is_wider_than_the_forward_of_a_chunk(
    engine: ServingEngine, bytes_per_logit: int, buffer: int
) -> None:
    working = working_memory(LLAMA, engine=engine, limits=LARGE, device=H100)
    assert working.moment == "sampling"
    assert working.bytes == CUBLAS + HIDDEN + LOGITS * bytes_per_logit + buffer


def test_few_rows_are_sorted_all_at_once_which_takes_more_for_each_logit() -> None:
    few = BatchLimits(chunk_tokens=64, sequences=127)
    many = BatchLimits(chunk_tokens=8192, sequences=128)
    assert _per_logit(few, rows=64) == 2 + 4 + 4 + 8 + 8 + 8 + 4 + 12
    assert _per_logit(many, rows=128) == 38


def _per_logit(limits: BatchLimits, *, rows: int) -> float:
    widths = replace(LLAMA, between_matmuls=0)
    working = working_memory(widths, engine=VLLM_0_12, limits=limits, device=H100)
    logits = [term.bytes for term in working.terms if "logits" in term.name or "top-k" in term.name]
    return sum(logits) / (rows * LLAMA.vocabulary)


def test_a_small_vocabulary_leaves_the_forward_as_the_widest_moment() -> None:
    small = replace(LLAMA, vocabulary=1000)
    working = working_memory(small, engine=VLLM_0_19, limits=LARGE, device=H100)
    assert working.moment == "forward"
    assert working.bytes == CUBLAS + 8192 * 2 * (43_008 + 3 * 4096)


def test_buffers_of_experts_are_part_of_both_moments_where_the_engine_keeps_them() -> None:
    # Qwen3-30B-A3B: 8 experts of 768 for each token; both buffers are at least as wide as the hidden size of 2,048.
    routed = ForwardWidths(hidden=2048, vocabulary=151_936, between_matmuls=9216, routed=8 * (2048 + 2048))
    buffers = 8192 * 8 * 4096 * 2
    kept = working_memory(routed, engine=VLLM_0_19, limits=LARGE, device=H100)
    without = working_memory(replace(routed, routed=0), engine=VLLM_0_19, limits=LARGE, device=H100)
    assert kept.bytes - without.bytes == buffers
    dropped = working_memory(replace(routed, vocabulary=10), engine=VLLM_0_12, limits=LARGE, device=H100)
    assert dropped.bytes == CUBLAS + buffers + 8192 * 2 * 3 * 2048


def test_float32_logits_need_no_copy() -> None:
    wide = replace(LLAMA, value_bytes=4)
    names = [term.name for term in working_memory(wide, engine=VLLM_0_12, limits=LARGE, device=H100).terms]
    assert "logits in float32" not in names


def test_a_chunk_of_images_is_held_while_the_engine_samples() -> None:
    # Mistral-Small: images of 1540 x 1540 in patches of 14, merged 2 x 2: 55 x 55 embeddings, 55 separators.
    image = EncoderItem(tokens=3080, embeddings=3025, input_bytes=3 * 1540 * 1540 * 2)
    outputs, pixels = 2 * 3025 * 4096 * 2, 2 * image.input_bytes
    bare = working_memory(LLAMA, engine=VLLM_0_19, limits=LARGE, device=H100).bytes
    assert working_memory(LLAMA, engine=VLLM_0_19, limits=LARGE, device=H100, encoder=image).bytes - bare == (
        outputs + pixels
    )
    bare = working_memory(LLAMA, engine=VLLM_0_11_0, limits=LARGE, device=H100).bytes
    padded = working_memory(LLAMA, engine=VLLM_0_11_0, limits=LARGE, device=H100, encoder=image).bytes
    assert padded - bare == outputs + pixels + 2 * 8192 * 4096 * 2


def test_the_sampler_has_a_row_for_each_unit_and_for_each_row_where_the_units_are_unknown() -> None:
    def buffer(units: int | None, sequences: int) -> int:
        limits = BatchLimits(chunk_tokens=sequences, sequences=sequences)
        terms = working_memory(LLAMA, engine=VLLM_0_19, limits=limits, device=made_device(units=units)).terms
        return next(term.bytes for term in terms if "program" in term.name) // (LLAMA.vocabulary * 4)

    assert (buffer(100, 1024), buffer(None, 1024)) == (100, 1024)
    assert (buffer(100, 40), buffer(100, 70)) == (64, 100)  # the next power of two, no more than there are units


def test_small_cards_and_the_a100_get_smaller_steps_and_only_hopper_a_large_workspace() -> None:
    small = BatchLimits(chunk_tokens=2048, sequences=256)
    assert default_limits(H100) == default_limits(find_device("h200-sxm")) == LARGE
    assert default_limits(find_device("b200-sxm")) == replace(LARGE, chunk_tokens=16384)
    assert default_limits(find_device("rtx-4090")) == small
    assert default_limits(find_device("a100-sxm-80g")) == small
    ada = working_memory(LLAMA, engine=VLLM_0_12, limits=LARGE, device=made_device(capability="8.9"))
    assert ada.terms[0].bytes == 8320 * 1024

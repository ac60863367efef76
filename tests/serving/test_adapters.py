"""LoRA adapters: bytes by hand from the sizes of a released model, kernels of a step, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.adapters import adapter_bytes, read_lora, require_adaptable
from llm_perf_opt.timing.step.engine_blocks import (
    DecoderPart,
    EngineBlocks,
    EngineExperts,
    EngineMatmul,
    LoraAdapters,
    Split,
)
from llm_perf_opt.timing.step.engine_step import Forward, forward_kernels
from llm_perf_opt.timing.step.engine_time import WorkKind, kind_of

_HIDDEN, _INNER, _LAYERS, _VOCABULARY, _KEYS = 5120, 13824, 40, 152_064, 2 * 8 * 128


def _matmul(columns: int, depth: int, split: Split, part: DecoderPart = DecoderPart.MLP, **more: int) -> EngineMatmul:
    sizes = {"layers": _LAYERS, **more}
    return EngineMatmul(
        columns=columns, depth=depth, weight_format="bfloat16", dtype="bfloat16", split=split, part=part, **sizes
    )


BLOCKS = EngineBlocks(  # Qwen2.5-14B
    hidden=_HIDDEN,
    layers=_LAYERS,
    reduced=0,
    layer_norms=0,
    matmuls=(
        _matmul(_HIDDEN + _KEYS, _HIDDEN, Split.COLUMNS, DecoderPart.ATTENTION, key_columns=_KEYS, key_heads=8),
        _matmul(_HIDDEN, _HIDDEN, Split.ROWS, DecoderPart.ATTENTION),
        _matmul(2 * _INNER, _HIDDEN, Split.COLUMNS),
        _matmul(_HIDDEN, _INNER, Split.ROWS),
        _matmul(_VOCABULARY, _HIDDEN, Split.COLUMNS, DecoderPart.HEAD, layers=1),
    ),
    attentions=(),
    experts=(),
    norms=(),
    states=None,
    cache_number_bytes=2,
)


def test_what_is_asked_for() -> None:
    assert read_lora("64x16") == LoraAdapters(count=64, rank=16)
    assert read_lora(None) is None


@pytest.mark.parametrize("text", ["64", "0x16", "64x12", "9999x16", "x16", "64x-8", "64x16x2", "1e3x16"])
def test_what_are_no_adapters_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="are not adapters"):
        read_lora(text)


def test_bytes_of_an_adapter_by_hand() -> None:
    """A has a row for each of the joined layers, B a column for each result; embedding and head for all words."""
    of_layer = (3 * 5120 + 7168) + (5120 + 5120) + (2 * 5120 + 27648) + (13824 + 5120)
    by_hand = 2 * 16 * (40 * of_layer + 2 * (152_064 + 5120))
    assert adapter_bytes(BLOCKS, LoraAdapters(count=1, rank=16), 1) == by_hand
    assert adapter_bytes(BLOCKS, LoraAdapters(count=64, rank=16), 1) == 64 * by_hand


def test_ranks_divide_the_columns_of_b_or_the_input_of_a() -> None:
    of_layer = (3 * 5120 + 7168 // 4) + (5120 // 4 + 5120) + (2 * 5120 + 27648 // 4) + (13824 // 4 + 5120)
    by_hand = 2 * 8 * (40 * of_layer + 2 * (152_064 + 5120))
    assert adapter_bytes(BLOCKS, LoraAdapters(count=1, rank=8), 4) == by_hand


def test_two_kernels_behind_each_matmul() -> None:
    lora = LoraAdapters(count=4, rank=16)
    forward, plan = Forward(sequences=1, queries=1, keys=100), ParallelPlan()
    kernels = list(forward_kernels(replace(BLOCKS, lora=lora), forward, plan))
    added = [(kernel, count) for kernel, count in kernels if kind_of(kernel) is WorkKind.LORA]
    assert sum(count for _, count in added) == 2 * (4 * 40 + 1)
    assert len(kernels) - len(added) == len(list(forward_kernels(BLOCKS, forward, plan)))
    shrink, expand = added[0][0], added[1][0]
    assert shrink.bytes_moved == 2 * (5120 + 3 * 16 * 5120) + 4 * 48, "one row, one adapter of three layers, sums"
    assert expand.bytes_moved == 2 * (2 * 7168 + 16 * 7168) + 4 * 48


def test_more_sequences_meet_more_adapters_but_never_more_than_there_are() -> None:
    lora = LoraAdapters(count=8, rank=16)
    met = [lora.active(count) for count in (1, 2, 8, 1000)]
    assert met[:2] == pytest.approx([1.0, 8 * (1 - (7 / 8) ** 2)])
    assert met == sorted(met)
    assert met[-1] == pytest.approx(8)


def test_experts_are_refused() -> None:
    experts = EngineExperts(
        hidden=8, inner=8, experts=4, chosen=2, weight_format="bfloat16", dtype="bfloat16", is_gated=True
    )
    require_adaptable(BLOCKS, "dense")
    with pytest.raises(UsageError, match="Adapters of mixture are not counted"):
        require_adaptable(replace(BLOCKS, experts=(experts,)), "mixture")

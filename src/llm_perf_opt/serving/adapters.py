"""LoRA adapters of a server: how they are asked for, and what vLLM keeps of them on every rank."""

from __future__ import annotations

import re

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.timing.step.engine_blocks import DecoderPart, EngineBlocks, LoraAdapters

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM takes: vllm/config/lora.py, MaxLoRARanks
MOST_ADAPTERS = 4096
_FORM = re.compile(r"(\d{1,4})\s*x\s*(\d{1,3})")
_NUMBER_BYTES = 2  # adapters have the type of the model's activations


def read_lora(text: str | None) -> LoraAdapters | None:
    """`64x16`: 64 adapters of rank 16."""
    if text is None:
        return None
    match = _FORM.fullmatch(text.strip().lower())
    if match is None or not 1 <= int(match[1]) <= MOST_ADAPTERS or int(match[2]) not in RANKS:
        raise UsageError(
            f"{text[:40]!r} are not adapters.",
            why=f"it takes 1 to {MOST_ADAPTERS} adapters and a rank that vLLM has: {', '.join(map(str, RANKS))}",
            fix="write --lora 64x16; adapters of another rank are padded to the next one",
        )
    return LoraAdapters(count=int(match[1]), rank=int(match[2]))


def require_adaptable(blocks: EngineBlocks, name: str) -> None:
    """Refuse a model with layers for which vLLM stores adapters in a way that is not counted here."""
    parts = {
        "routed experts": bool(blocks.experts),
        "latent attention": any(layer.latent is not None for layer in blocks.attentions),
        "recurrent layers": blocks.states is not None,
    }
    if refused := [what for what, is_there in parts.items() if is_there]:
        raise UsageError(
            f"Adapters of {name} are not counted.",
            why=f"it has {' and '.join(refused)}, and vLLM stores their adapters in another way than for linear layers",
            fix="leave --lora out, or choose a dense model with keys and values in its cache",
        )


def adapter_bytes(blocks: EngineBlocks, lora: LoraAdapters, ranks: int) -> int:
    """What one of the tensor-parallel ranks keeps: every slot in full, whatever is loaded into it.

    vllm/lora/layers: A is `[slots, 1, rank, input]` for each linear layer that a matmul joins, and not divided where
    the columns of B `[slots, 1, columns, rank]` are; of a matmul that is divided by its input A is. The embedding and
    the head have both for the whole vocabulary, on every rank.
    """
    numbers = 0
    for matmul in blocks.matmuls:
        if matmul.part is DecoderPart.HEAD:
            numbers += 2 * (matmul.columns + matmul.depth)  # the embedding has the same sizes
            continue
        columns, depth = matmul.shared_by(ranks)
        numbers += matmul.layers * (blocks.merged(matmul) * depth + columns)
    return lora.count * lora.rank * numbers * _NUMBER_BYTES

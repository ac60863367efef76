"""The decoder and the language head, for any number of new tokens on any cache: every product of every module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig
from llm_perf_opt.models.deepseek_ocr.formulas.work import MatrixWork, eager_attention, fused_attention, linear, product
from llm_perf_opt.ops.grouped_experts import expected_distinct


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """One or more forwards of the decoder, by what their cost depends on, summed over batch and forwards.

    `tokens` go through every matrix; `pairs` of a query and a key meet in attention, hidden ones included; `positions`
    are turned into rotation angles, once for all sequences where these share them.
    """

    tokens: int
    pairs: int
    positions: int
    forwards: int


def prefill_pass(tokens: int, *, batch: int = 1) -> Passes:
    """One forward of `tokens` new tokens per sequence on an empty cache: tokens^2 pairs each."""
    return Passes(tokens=batch * tokens, pairs=batch * tokens**2, positions=tokens, forwards=1)


def decode_passes(context: int, *, steps: int = 1, batch: int = 1) -> Passes:
    """`steps` forwards of one token; the first meets a cache of `context` tokens and itself, each next one more."""
    pairs = steps * context + steps * (steps + 1) // 2
    return Passes(tokens=batch * steps, pairs=batch * pairs, positions=batch * steps, forwards=steps)


def decoder_work(config: DecoderConfig, passes: Passes, attention: str = "eager") -> tuple[MatrixWork, ...]:
    """Every layer, and the head on every position. The kind of attention changes ops and memory, not FLOPs."""
    layers = (_layer(config, index, passes, attention) for index in range(config.num_hidden_layers))
    head = linear("lm_head", passes.tokens, config.hidden_size, config.vocab_size, passes.forwards)
    return (*(piece for layer in layers for piece in layer), head)


def _layer(config: DecoderConfig, index: int, passes: Passes, attention: str) -> Iterator[MatrixWork]:
    path = f"model.layers.{index}"
    yield from _attention(config, f"{path}.self_attn", passes, attention)
    if index < config.first_k_dense_replace:
        yield from _mlp(f"{path}.mlp", passes.tokens, config.hidden_size, config.intermediate_size, passes.forwards)
    else:
        yield from _mixture(config, f"{path}.mlp", passes)


def _attention(config: DecoderConfig, path: str, passes: Passes, attention: str) -> Iterator[MatrixWork]:
    width, forwards = config.hidden_size, passes.forwards
    for name in ("q_proj", "k_proj", "v_proj"):
        yield linear(f"{path}.{name}", passes.tokens, width, width, forwards)
    # Frequencies times positions, an outer product: the inner dimension is one.
    yield product(
        f"{path}.rotary_emb",
        "matmul of rotary angles",
        rows=passes.positions,
        inner=1,
        columns=config.head_dim // 2,
        calls=forwards,
    )
    if attention == "eager":
        yield from eager_attention(
            path,
            queries=passes.tokens,
            pairs=passes.pairs,
            heads=config.num_attention_heads,
            width=width,
            calls=forwards,
        )
    else:
        yield fused_attention(path, queries=passes.tokens, pairs=passes.pairs, width=width, calls=forwards)
    yield linear(f"{path}.o_proj", passes.tokens, width, width, forwards)


def _mixture(config: DecoderConfig, path: str, passes: Passes) -> Iterator[MatrixWork]:
    """Router, routed experts, shared experts.

    Each token goes to `num_experts_per_tok` experts, whichever they are: routing decides how many experts are called,
    not how much they compute.
    """
    width, inner = config.hidden_size, config.moe_intermediate_size
    yield linear(f"{path}.gate", passes.tokens, width, config.n_routed_experts, passes.forwards)
    for piece in _mlp(f"{path}.experts.*", passes.tokens * config.num_experts_per_tok, width, inner, None):
        yield replace(piece, weights=piece.weights * experts_in_use(config, passes))
    shared = inner * config.n_shared_experts
    yield from _mlp(f"{path}.shared_experts", passes.tokens, width, shared, passes.forwards)


def experts_in_use(config: DecoderConfig, passes: Passes) -> int:
    """Routed experts of one layer that a forward touches: as many as uniform routing is expected to, rounded."""
    tokens, chosen = passes.tokens // passes.forwards, config.num_experts_per_tok
    return max(chosen, round(expected_distinct(config.n_routed_experts, chosen, tokens)))


def _mlp(path: str, rows: int, width: int, inner: int, calls: int | None) -> Iterator[MatrixWork]:
    yield linear(f"{path}.gate_proj", rows, width, inner, calls)
    yield linear(f"{path}.up_proj", rows, width, inner, calls)
    yield linear(f"{path}.down_proj", rows, inner, width, calls)

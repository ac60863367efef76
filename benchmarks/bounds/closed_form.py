"""A second source of what a decoder needs: formulas from `config.json`, written without a look at any trace.

Matrices only: norms, biases, convolutions, rotary tables and the embedding row of a token count as nothing. One
multiply-add is two FLOPs. A context counts the new token, and the cache is read with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Config = Mapping[str, Any]
BF16_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Which positions a token sees: all before it, a sliding window, its own chunk, or the best `chosen` of all."""

    window: int | None = None
    chunk: int | None = None
    chosen: int | None = None

    def visible(self, context: int) -> int:
        """Positions that the last of `context` tokens sees, itself among them."""
        if self.chunk is not None:
            return (context - 1) % self.chunk + 1
        return min(context, self.window or context, self.chosen or context)

    def pairs(self, prompt: int) -> int:
        """Of query and key over a prompt from nothing."""
        if self.chunk is not None:
            whole, rest = divmod(prompt, self.chunk)
            return whole * _triangle(self.chunk) + _triangle(rest)
        limit = min(prompt, self.window or prompt, self.chosen or prompt)
        return _triangle(limit) + (prompt - limit) * limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a decoder. `fixed` are parameters of matrices that every token meets, routed experts apart.

    `cache_making` of them make what the cache keeps: of the last layer's work over a prompt that alone is needed for
    every token, since nothing but the last token's logits is asked for.
    `step_pair_flops` and `prompt_pair_flops` are for one query and one key: a latent cache is cheaper absorbed at
    a step and cheaper expanded over a prompt. `index_pair_flops` and `index_values` belong to the search for the best
    keys, which looks at every position. `state_values` are carried by each sequence whatever its length.
    """

    fixed: int
    cache_making: int
    expert: int = 0
    experts: int = 0
    chosen: int = 0
    reach: Reach = Reach()
    cached_values: int = 0
    step_pair_flops: int = 0
    prompt_pair_flops: int = 0
    index_values: int = 0
    index_pair_flops: int = 0
    state_values: int = 0
    state_bytes_per_value: int = BF16_BYTES
    state_flops: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedWork:
    flops: int
    weight_bytes: float
    cache_bytes: int

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.cache_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """A decoder in bfloat16 as formulas."""

    layers: tuple[Layer, ...]
    head: int

    @property
    def active_matrix_parameters(self) -> int:
        """That one token meets, the output head among them."""
        return self.head + sum(layer.fixed + layer.chosen * layer.expert for layer in self.layers)

    @property
    def matrix_parameters(self) -> int:
        return self.head + sum(layer.fixed + layer.experts * layer.expert for layer in self.layers)

    def cached_bytes_per_token(self) -> int:
        """What each further token adds to a cache, windows and chunks not yet full."""
        return BF16_BYTES * sum(layer.cached_values + layer.index_values for layer in self.layers)

    def step(self, *, batch: int, context: int, routing: str = "uniform") -> ClosedWork:
        """One token for each of `batch` sequences."""
        attention = sum(
            layer.step_pair_flops * layer.reach.visible(context) + layer.index_pair_flops * context + layer.state_flops
            for layer in self.layers
        )
        cache = sum(
            BF16_BYTES * (layer.cached_values * layer.reach.visible(context) + layer.index_values * context)
            + layer.state_values * layer.state_bytes_per_value
            for layer in self.layers
        )
        return ClosedWork(
            flops=batch * (2 * self.active_matrix_parameters + attention),
            weight_bytes=self._weight_bytes(batch, routing),
            cache_bytes=batch * cache,
        )

    def prefill(self, *, batch: int, prompt: int, routing: str = "uniform") -> ClosedWork:
        """`prompt` tokens for each of `batch` sequences; the head runs on the last one."""
        *before, last = self.layers
        flops = sum(
            2 * prompt * (layer.fixed + layer.chosen * layer.expert)
            + layer.prompt_pair_flops * layer.reach.pairs(prompt)
            + layer.index_pair_flops * _triangle(prompt)
            + layer.state_flops * prompt
            for layer in before
        )
        tail = (
            2 * (prompt - 1) * last.cache_making
            + 2 * (last.fixed + last.chosen * last.expert + self.head)
            + last.step_pair_flops * last.reach.visible(prompt)
            + last.index_pair_flops * prompt
        )
        return ClosedWork(
            flops=batch * (flops + tail),
            weight_bytes=self._weight_bytes(batch * prompt, routing, last_tokens=batch),
            cache_bytes=0,
        )

    def _weight_bytes(self, tokens: int, routing: str, last_tokens: int | None = None) -> float:
        """`last_tokens` reach the last layer's experts, where they are fewer."""
        *before, last = self.layers
        counted = [(layer, tokens) for layer in before] + [(last, last_tokens or tokens)]
        return BF16_BYTES * (
            self.head
            + sum(
                layer.fixed + _touched(layer.experts, layer.chosen, count, routing) * layer.expert
                for layer, count in counted
            )
        )


def closed_form(folder: Path) -> ClosedForm:
    """The formulas of the text model that the folder's `config.json` describes."""
    whole = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = {**whole, **whole.get("text_config", whole.get("language_config", {}))}
    return ClosedForm(layers=tuple(_layers(config)), head=config["hidden_size"] * config["vocab_size"])


def _touched(experts: int, chosen: int, tokens: int, routing: str) -> float:
    if not experts:
        return 0.0
    match routing:
        case "uniform":
            return experts * (1 - (1 - chosen / experts) ** tokens)
        case "balanced":
            return min(experts, chosen * tokens)
        case "fewest":
            return chosen
    raise ValueError(f"no routing {routing!r}")


def _triangle(side: int) -> int:
    return side * (side + 1) // 2


def _layers(config: Config) -> Iterator[Layer]:
    for index in range(config["num_hidden_layers"]):
        attention = _attention(config, index)
        yield Layer(**attention | _mlp(config, index) | {"fixed": attention["fixed"] + _mlp(config, index)["fixed"]})


def _attention(config: Config, index: int) -> dict[str, Any]:
    types = config.get("layer_types") or []
    if types and types[index] == "linear_attention":
        return _linear_attention(config)
    if config.get("kv_lora_rank"):
        return _latent_attention(config)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    size, kept = config.get("head_dim") or hidden // heads, config.get("num_key_value_heads") or heads
    gated = 2 if config.get("attn_output_gate") else 1
    return {
        "fixed": hidden * size * (heads * gated + 2 * kept + heads),
        "cache_making": hidden * size * 2 * kept,
        "cached_values": 2 * kept * size,
        "step_pair_flops": 4 * heads * size,
        "prompt_pair_flops": 4 * heads * size,
        "reach": _reach(config, index, types),
    }


def _reach(config: Config, index: int, types: list[str]) -> Reach:
    if types and types[index] == "sliding_attention":
        return Reach(window=config["sliding_window"])
    if config.get("attention_chunk_size") and (index + 1) % 4:  # every fourth layer has no rotary positions, sees all
        return Reach(chunk=config["attention_chunk_size"])
    return Reach()


def _latent_attention(config: Config) -> dict[str, Any]:
    """Keys and values from one vector of `rank` numbers and one rotary part for all heads.

    Absorbed, the scores and the sums run on the vector itself: `rank + rotary` and `rank` numbers a head and key.
    """
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    rotary, plain, values = config["qk_rope_head_dim"], config["qk_nope_head_dim"], config["v_head_dim"]
    query = config["q_lora_rank"]
    fixed = (
        hidden * query
        + query * heads * (plain + rotary)
        + hidden * (rank + rotary)
        + rank * heads * (plain + values)
        + heads * values * hidden
    )
    making, index = hidden * (rank + rotary), {}
    if config.get("index_topk"):
        index_heads, index_size = config["index_n_heads"], config["index_head_dim"]
        fixed += query * index_heads * index_size + hidden * index_size + hidden * index_heads
        making += hidden * index_size
        index = {"index_values": index_size, "index_pair_flops": 2 * index_heads * index_size}
    return {
        "fixed": fixed,
        "cache_making": making,
        "cached_values": rank + rotary,
        "step_pair_flops": 2 * heads * (2 * rank + rotary),
        "prompt_pair_flops": 2 * heads * (plain + rotary + values),
        "reach": Reach(chosen=config.get("index_topk")),
        **index,
    }


def _linear_attention(config: Config) -> dict[str, Any]:
    """A gated delta rule: each value head carries a matrix that a token decays, corrects and reads."""
    hidden = config["hidden_size"]
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_size, value_size = config["linear_key_head_dim"], config["linear_value_head_dim"]
    state = value_heads * key_size * value_size
    fixed = hidden * (2 * key_heads * key_size + 3 * value_heads * value_size + 2 * value_heads)
    return {
        "fixed": fixed,
        "cache_making": fixed,
        "state_values": state,
        "state_bytes_per_value": 4,  # kept in float32
        "state_flops": 6 * state,  # what it remembers of the key, the correction, the answer to the query
    }


def _mlp(config: Config, index: int) -> dict[str, int]:
    hidden = config["hidden_size"]
    experts = config.get("n_routed_experts") or config.get("num_experts") or config.get("num_local_experts") or 0
    if (
        not experts
        or index < config.get("first_k_dense_replace", 0)
        or bool((index + 1) % config.get("interleave_moe_layer_step", 1))
    ):
        return {"fixed": 3 * hidden * (config.get("intermediate_size_mlp") or config["intermediate_size"])}
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    shared = config.get("shared_expert_intermediate_size") or width * config.get("n_shared_experts", 0)
    if config.get("intermediate_size_mlp"):  # Llama 4 has one shared expert next to the routed ones
        shared = width
    gate = hidden if config.get("shared_expert_intermediate_size") else 0
    return {
        "fixed": hidden * experts + 3 * hidden * shared + gate,
        "expert": 3 * hidden * width,
        "experts": experts,
        "chosen": config["num_experts_per_tok"],
    }

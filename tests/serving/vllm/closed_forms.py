"""What one rank of a served decoder must hold, compute, keep and exchange, written out from its configuration.

Nothing here looks at a trace or at vLLM: h heads of width d over g key heads, hidden size H, L layers, V tokens in the
vocabulary, T = sequences x new tokens rows in a step, k keys behind each query.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BF16, FP32 = 2, 4
FACTS = Path(__file__).parents[2] / "facts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Equal sequences in one step of an engine."""

    sequences: int
    new_tokens: int
    keys: int

    @property
    def rows(self) -> int:
        return self.sequences * self.new_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Of one rank and one step. `routers` are part of `flops`: matmuls that score experts."""

    parameters: int
    flops: int
    cache_bytes_per_token: int
    all_reduces: int
    all_reduce_bytes: int
    all_gather_bytes: int
    routers: int = 0


def _collectives(config: dict[str, Any], step: Step, tp: int) -> dict[str, int]:
    """One all-reduce behind the embedding and two in each layer, of all rows; logits are gathered."""
    if tp == 1:
        return {"all_reduces": 0, "all_reduce_bytes": 0, "all_gather_bytes": 0}
    count = 1 + 2 * config["num_hidden_layers"]
    return {
        "all_reduces": count,
        "all_reduce_bytes": count * step.rows * config["hidden_size"] * BF16,
        "all_gather_bytes": step.sequences * config["vocab_size"] * BF16,
    }


def llama(config: dict[str, Any], step: Step, tp: int) -> Expected:
    """Grouped-query attention and a gated MLP."""
    size, layers, inner = config["hidden_size"], config["num_hidden_layers"], config["intermediate_size"]
    heads, groups = config["num_attention_heads"] // tp, config["num_key_value_heads"] // tp
    width = config.get("head_dim", size // config["num_attention_heads"])
    head = config["vocab_size"] // tp * size
    matrices = layers * (size * width * (2 * heads + 2 * groups) + 3 * size * inner // tp)
    attention = layers * 4 * heads * width * step.rows * step.keys
    return Expected(
        parameters=2 * head + matrices + (2 * layers + 1) * size,
        flops=2 * step.rows * matrices + attention + 2 * step.sequences * head,
        cache_bytes_per_token=layers * 2 * groups * width * BF16,
        **_collectives(config, step, tp),
    )


def qwen3_moe(config: dict[str, Any], step: Step, tp: int) -> Expected:
    """As Llama with norms on queries and keys, a router on every rank, and experts instead of the MLP.

    Sharing each expert between all ranks or giving each rank whole experts comes to the same sizes and, with balanced
    routing, to the same work.
    """
    size, layers, inner = config["hidden_size"], config["num_hidden_layers"], config["moe_intermediate_size"]
    heads, groups = config["num_attention_heads"] // tp, config["num_key_value_heads"] // tp
    width = config.get("head_dim", size // config["num_attention_heads"])
    experts, chosen = config["num_experts"], config["num_experts_per_tok"]
    head = config["vocab_size"] // tp * size
    attention_weights = size * width * (2 * heads + 2 * groups)
    router, expert = size * experts, 3 * size * inner
    held = layers * (attention_weights + router + experts * expert // tp)
    used = layers * (attention_weights + router) + layers * chosen * expert // tp
    attention = layers * 4 * heads * width * step.rows * step.keys
    return Expected(
        parameters=2 * head + held + layers * 2 * width + (2 * layers + 1) * size,
        flops=2 * step.rows * used + attention + 2 * step.sequences * head,
        cache_bytes_per_token=layers * 2 * groups * width * BF16,
        routers=2 * step.rows * layers * router,
        **_collectives(config, step, tp),
    )


def deepseek_v3(config: dict[str, Any], step: Step, tp: int) -> Expected:
    """Latent attention, some dense layers, then a shared expert beside the routed ones; a bias for each router."""
    size, layers, dense = config["hidden_size"], config["num_hidden_layers"], config["first_k_dense_replace"]
    heads, q_rank, rank = config["num_attention_heads"] // tp, config["q_lora_rank"], config["kv_lora_rank"]
    plain, rotary, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    experts, chosen, shared = config["n_routed_experts"], config["num_experts_per_tok"], config["n_shared_experts"]
    expert, head = 3 * size * config["moe_intermediate_size"], config["vocab_size"] // tp * size
    down = size * (q_rank + rank + rotary)  # replicated on every rank
    expand = rank * heads * (plain + value)
    projections = down + q_rank * heads * (plain + rotary) + heads * value * size
    sparse, mlp = layers - dense, 3 * size * config["intermediate_size"] // tp
    router = size * experts
    others = dense * mlp + sparse * (router + shared * expert // tp)
    held = layers * (projections + expand) + others + sparse * experts * expert // tp
    vectors = (2 * layers + 1) * size + layers * (q_rank + rank) + sparse * experts
    if step.new_tokens == 1:  # in the latent space
        attention = 2 * step.rows * heads * (plain * rank + (2 * rank + rotary) * step.keys + rank * value)
    else:
        attention = 2 * step.sequences * step.keys * expand
        attention += 2 * heads * (plain + rotary + value) * step.rows * step.keys
    used = layers * projections + others + sparse * chosen * expert // tp
    return Expected(
        parameters=2 * head + held + vectors,
        flops=2 * step.rows * used + layers * attention + 2 * step.sequences * head,
        cache_bytes_per_token=layers * (rank + rotary) * BF16,
        routers=2 * step.rows * sparse * router,
        **_collectives(config, step, tp),
    )


def minimax(config: dict[str, Any], step: Step, tp: int) -> Expected:
    """Norms over all heads of queries and of keys, whose squares all ranks exchange; a bias for each router."""
    size, layers, inner = config["hidden_size"], config["num_hidden_layers"], config["intermediate_size"]
    heads, groups = config["num_attention_heads"] // tp, config["num_key_value_heads"] // tp
    width, experts, chosen = config["head_dim"], config["num_local_experts"], config["num_experts_per_tok"]
    head = config["vocab_size"] // tp * size
    attention_weights, router = size * width * (2 * heads + 2 * groups), size * experts
    expert = 3 * size * inner
    held = layers * (attention_weights + router + experts * expert // tp)
    used = layers * (attention_weights + router) + layers * chosen * expert // tp
    vectors = layers * ((heads + groups) * width + experts + 2 * size) + size
    collectives = _collectives(config, step, tp)
    collectives["all_reduces"] += layers
    collectives["all_reduce_bytes"] += layers * step.rows * 2 * FP32
    return Expected(
        parameters=2 * head + held + vectors,
        flops=2 * step.rows * used + layers * 4 * heads * width * step.rows * step.keys + 2 * step.sequences * head,
        cache_bytes_per_token=layers * 2 * groups * width * BF16,
        routers=2 * step.rows * layers * router,
        **collectives,
    )


def gpt_oss(config: dict[str, Any], step: Step, tp: int) -> Expected:
    """Biases everywhere, a sink for each head, and every other layer sees a window alone."""
    size, layers, inner = config["hidden_size"], config["num_hidden_layers"], config["intermediate_size"] // tp
    heads, groups = config["num_attention_heads"] // tp, config["num_key_value_heads"] // tp
    width = config.get("head_dim", size // config["num_attention_heads"])
    experts, chosen, window = config["num_local_experts"], config["num_experts_per_tok"], config["sliding_window"]
    head = config["vocab_size"] // tp * size
    into, out = width * (heads + 2 * groups), width * heads
    matrices = size * (into + out) + size * experts
    expert = 3 * size * inner
    vectors = into + size + heads + experts + experts * (2 * inner + size) + 2 * size
    windowed = layers // 2
    keys = windowed * min(step.keys, window) + (layers - windowed) * step.keys
    return Expected(
        parameters=2 * head + layers * (matrices + experts * expert + vectors) + size,
        flops=2 * step.rows * layers * (matrices + chosen * expert)
        + 4 * heads * width * step.rows * keys
        + 2 * step.sequences * head,
        cache_bytes_per_token=layers * 2 * groups * width * BF16,
        routers=2 * step.rows * layers * size * experts,
        **_collectives(config, step, tp),
    )


def deepseek_ocr(config: dict[str, Any], step: Step, tp: int) -> Expected:
    """The text decoder: plain attention, one dense layer, shared and routed experts. Weights include both encoders."""
    text = config["language_config"]
    size, layers, dense = text["hidden_size"], text["num_hidden_layers"], text["first_k_dense_replace"]
    heads = text["num_attention_heads"]
    width, inner = size // heads, text["moe_intermediate_size"]
    experts, chosen, shared = text["n_routed_experts"], text["num_experts_per_tok"], text["n_shared_experts"]
    expert, head, router = 3 * size * inner, text["vocab_size"] * size, size * experts
    others = layers * 4 * size * size + dense * 3 * size * text["intermediate_size"]
    others += (layers - dense) * (router + shared * expert)
    used = others + (layers - dense) * chosen * expert
    decoder = 2 * head + others + (layers - dense) * experts * expert + (2 * layers + 1) * size
    return Expected(
        parameters=decoder + _encoder_parameters(),
        flops=2 * step.rows * used + layers * 4 * heads * width * step.rows * step.keys + 2 * step.sequences * head,
        cache_bytes_per_token=layers * 2 * heads * width * BF16,
        routers=2 * step.rows * (layers - dense) * router,
        **_collectives(text, step, tp),
    )


def _encoder_parameters() -> int:
    """Of everything beside the decoder, from the shapes in the released checkpoint."""
    shapes = json.loads((FACTS / "deepseek_ocr" / "structure.json").read_text())["state_dict"]
    decoder = ("lm_head", "model.layers", "model.norm", "model.embed_tokens")
    named = {name: shape for name, shape in shapes.items() if not name.endswith("position_ids")}  # no weight
    return sum(math.prod(shape) for name, shape in named.items() if not name.startswith(decoder))

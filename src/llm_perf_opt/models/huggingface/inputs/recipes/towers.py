"""Parts of composite models that are model types of their own, and read what another part hands them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_perf_opt.models.huggingface.inputs.leaves import Leaf, Noise, whole
from llm_perf_opt.models.huggingface.inputs.recipes.recipe import ModelRecipe
from llm_perf_opt.models.huggingface.inputs.subject import Subject
from llm_perf_opt.models.huggingface.inputs.text import prompt_length, text_inputs


def query_transformer(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """32 queries that look at the features of one image."""
    config, batch = subject.config, subject.sizes.batch
    return {
        "query_embeds": Noise((batch, 32, config.hidden_size)),
        "encoder_hidden_states": Noise((batch, 257, config.encoder_hidden_size)),
    }


def draft_model(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """One token to draft, on the keys and values that the main model's last layer of each kind left."""
    config, batch, seen = subject.config, subject.sizes.batch, prompt_length(subject)
    text: dict[str, Any] = config.get_text_config().to_dict()
    layers: list[dict[str, int]] = list(text.get("per_layer_config", {}).values())
    wide = layers[0]["head_dim"] if layers else text["head_dim"]
    heads = text["num_key_value_heads"]
    return {
        "inputs_embeds": Noise((batch, 1, 2 * config.backbone_hidden_size)),
        "position_ids": whole([[seen]] * batch),
        "shared_kv_states": {
            "full_attention": (Noise((batch, heads, seen, wide)),) * 2,
            "sliding_attention": (Noise((batch, heads, seen, text["head_dim"])),) * 2,
        },
    }


def block_drafter(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """A block of tokens to denoise, and the main model's states of the layers it listens to."""
    config, batch, seen = subject.config, subject.sizes.batch, prompt_length(subject)
    return {
        "noise_embeds": Noise((batch, config.block_size, config.hidden_size)),
        "context_hidden_states": Noise((batch, seen, config.hidden_size * len(config.target_layer_ids))),
    }


def timed_text(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Text, and the embedding of the delay it is spoken with."""
    return {**text_inputs(subject), "t_cond": Noise((1, 1, subject.config.hidden_size))}


_DRAFT = ModelRecipe(draft_model)
RECIPES = {
    "gemma4_assistant": _DRAFT,
    "gemma4_unified_assistant": _DRAFT,
    "muse_glimmer_assistant": ModelRecipe(block_drafter),
    "voxtral_realtime_text": ModelRecipe(timed_text),
    "blip_2_qformer": ModelRecipe(query_transformer, ("image",)),
}

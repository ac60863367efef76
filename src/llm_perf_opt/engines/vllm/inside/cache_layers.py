"""The pages of the cache that each layer needs, from the configuration that vLLM made of the model's folder."""

from __future__ import annotations

from typing import Any

from llm_perf_opt.core.errors import PerfOptError


def cache_layers(config: Any) -> dict[str, Any]:
    """A `KVCacheSpec` for each attention layer of one rank: latent, whole, or with a window where the model says so."""
    from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype

    model, parallel = config.model_config, config.parallel_config
    if model.is_hybrid or model.is_attention_free:
        raise PerfOptError(
            "The cache of this model has pages that are not known.",
            why="it keeps a recurrent state beside attention, or has no attention",
            fix="replay a model whose layers are all attention",
        )
    page = {
        "block_size": config.cache_config.block_size,
        "head_size": model.get_head_size(),
        "dtype": kv_cache_dtype_str_to_dtype(config.cache_config.cache_dtype, model),
        "num_kv_heads": 1 if model.use_mla else model.get_num_kv_heads(parallel),
    }
    start, end = model.get_layers_start_end_indices(parallel)
    return {
        f"model.layers.{layer}.self_attn.attn": _page(window, page, is_latent=model.use_mla)
        for layer, window in zip(range(start, end), _windows(model.hf_text_config)[start:end], strict=True)
    }


def _page(window: int | None, page: dict[str, Any], *, is_latent: bool) -> Any:
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

    if is_latent:
        return MLAAttentionSpec(**page)
    if window is not None:
        return SlidingWindowSpec(sliding_window=window, **page)
    return FullAttentionSpec(**page)


def _windows(text: Any) -> list[int | None]:
    """The window of each layer. Without a list of kinds of layers it is one of all layers, unless switched off."""
    window = getattr(text, "sliding_window", None)
    layers: int = text.num_hidden_layers
    kinds = getattr(text, "layer_types", None)
    if window is None or getattr(text, "use_sliding_window", True) is False:
        return [None] * layers
    if kinds is None:
        return [window] * layers
    return [window if kind == "sliding_attention" else None for kind in kinds]

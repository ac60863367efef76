"""The pages of the cache that each layer needs: from the configuration where that says all, else from vLLM's layers."""

from __future__ import annotations

from typing import Any


def cache_layers(config: Any) -> dict[str, Any]:
    """A `KVCacheSpec` for each layer of one rank that keeps something between steps.

    Plain attention and plain latent attention follow from the configuration. Recurrent states, the keys of a sparse
    indexer and mixtures of them do not: there the model is built on ghosts, and vLLM's own layers are asked.
    """
    model = config.model_config
    is_sparse = hasattr(model.hf_text_config, "index_topk")
    if model.is_hybrid or model.is_attention_free or is_sparse:
        return _layers_of_model(config)
    return _configured_layers(config)


def _layers_of_model(config: Any) -> dict[str, Any]:
    """What the layers of vLLM's model class say, in blocks that its attention backends and states can share."""
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    from llm_perf_opt.core.parallel_plan import ParallelPlan
    from llm_perf_opt.engines.vllm.inside.ranks import forget_groups
    from llm_perf_opt.engines.vllm.inside.targets import VllmModel
    from llm_perf_opt.weightless import Engine

    parallel = config.parallel_config
    ep = parallel.tensor_parallel_size if parallel.enable_expert_parallel else 1
    plan = ParallelPlan(tp=parallel.tensor_parallel_size, pp=parallel.pipeline_parallel_size, ep=ep, rank=0)
    model = VllmModel(config, plan)
    try:
        with model.world, Engine(device="cuda"):
            built = model.build()
        current_platform.update_block_size_for_backend(config)
        found: dict[str, Any] = get_kv_cache_spec(config)
    finally:
        forget_groups()
    del built  # layers register themselves in the configuration, and live until here
    config.compilation_config.static_forward_context.clear()
    return found


def _configured_layers(config: Any) -> dict[str, Any]:
    from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype

    model, parallel = config.model_config, config.parallel_config
    page = {
        "block_size": config.cache_config.block_size,
        "head_size": model.get_head_size(),
        "dtype": kv_cache_dtype_str_to_dtype(config.cache_config.cache_dtype, model),
        "num_kv_heads": 1 if model.use_mla else model.get_num_kv_heads(parallel),
    }
    if config.cache_config.cache_dtype.endswith("per_token_head"):
        from vllm.v1.kv_cache_interface import get_kv_quant_mode

        page["kv_quant_mode"] = get_kv_quant_mode(config.cache_config.cache_dtype)  # a scale for each token and head
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

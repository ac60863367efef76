"""Fit to serve: weights, cache and working memory of a serving engine, and the largest batch and context they leave."""

from llm_perf_opt.analyses.serving.engines import (
    DEFAULT_ENGINE,
    ENGINES,
    VLLM_0_11_0,
    VLLM_0_12,
    VLLM_0_19,
    BatchLimits,
    Engine,
    MemoryTerm,
    Sampler,
    default_limits,
    total_bytes,
    visible_bytes,
)
from llm_perf_opt.analyses.serving.fit import UTILISATION, ServingFit, ServingNeeds, fit_of, serving_fit, serving_needs
from llm_perf_opt.analyses.serving.fit_table import (
    serving_fit_table,
    serving_notes,
    serving_parts_table,
    traced_fit,
    with_serving_fit,
)
from llm_perf_opt.analyses.serving.held_memory import (
    CacheLayers,
    CachePerSequence,
    cache_per_sequence,
    engine_weights,
    trained_context,
)
from llm_perf_opt.analyses.serving.working_memory import (
    EncoderItem,
    ForwardWidths,
    WorkingMemory,
    forward_widths,
    working_memory,
)

__all__ = [
    "DEFAULT_ENGINE",
    "ENGINES",
    "UTILISATION",
    "VLLM_0_11_0",
    "VLLM_0_12",
    "VLLM_0_19",
    "BatchLimits",
    "CacheLayers",
    "CachePerSequence",
    "EncoderItem",
    "Engine",
    "ForwardWidths",
    "MemoryTerm",
    "Sampler",
    "ServingFit",
    "ServingNeeds",
    "WorkingMemory",
    "cache_per_sequence",
    "default_limits",
    "engine_weights",
    "fit_of",
    "forward_widths",
    "serving_fit",
    "serving_fit_table",
    "serving_needs",
    "serving_notes",
    "serving_parts_table",
    "total_bytes",
    "traced_fit",
    "trained_context",
    "visible_bytes",
    "with_serving_fit",
    "working_memory",
]

"""vLLM's engine core with an executor of ours: everything that decides is vLLM's own."""

from __future__ import annotations

from functools import partial
from typing import Any

import vllm.config.vllm
from vllm import __version__ as version
from vllm.engine.arg_utils import EngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.core import EngineCore

from llm_perf_opt.core.serving.engine_settings import EngineSettings
from llm_perf_opt.core.target import Json
from llm_perf_opt.engines.vllm.inside.executor import VirtualExecutor
from llm_perf_opt.engines.vllm.inside.image_budget import has_tokenizer, state_largest_image
from llm_perf_opt.engines.vllm.inside.stand_ins import stand_in

_UNUSED_CACHE_BYTES = 2**50  # with the number of blocks stated, the bytes do not matter


def build(settings: EngineSettings, *, largest_image: int = 0, has_gpu_runner: bool = True) -> Any:
    """An engine core as `vllm serve` would make it for these settings on that device.

    On a host with GPUs vLLM takes its second model runner where it can, which needs Triton and changes what pipelines
    do; `has_gpu_runner` is False to be alike to an engine on a processor.
    """
    vllm.config.vllm.HAS_TRITON = has_gpu_runner
    state_largest_image(None if has_tokenizer(settings.model) else largest_image)
    stand_in()  # vLLM imports GPU kernels to configure: with the model's class, and with every quantization method
    config = EngineArgs(**_arguments(settings)).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    cache_bytes = settings.cache_bytes if settings.cache_bytes is not None else _UNUSED_CACHE_BYTES
    core = EngineCore(config, partial(VirtualExecutor, cache_bytes=cache_bytes), log_stats=False)
    core.model_executor.scheduler = core.scheduler
    core.mm_receiver_cache = None  # it keeps pixels between processes; a replay sends none
    return core


def _arguments(settings: EngineSettings) -> dict[str, Any]:
    named = {
        "max_num_seqs": settings.max_sequences,
        "max_num_batched_tokens": settings.max_batched_tokens,
        "max_model_len": settings.max_model_tokens,
        "num_gpu_blocks_override": settings.cache_blocks,
    }
    return {
        "model": settings.model,
        "load_format": "dummy",
        "skip_tokenizer_init": not has_tokenizer(settings.model),
        "distributed_executor_backend": VirtualExecutor,
        "tensor_parallel_size": settings.plan.tp,
        "pipeline_parallel_size": settings.plan.pp,
        "enable_expert_parallel": settings.plan.ep > 1,
        "dtype": settings.dtype,
        "kv_cache_dtype": settings.cache_dtype,
        "trust_remote_code": settings.trust_remote_code,
        **{name: value for name, value in named.items() if value is not None},
        **settings.more,
    }


def decided(core: Any) -> dict[str, Json]:
    """What vLLM settled by itself: worth a line in every report."""
    config = core.vllm_config
    return {
        "version": version,
        "scheduler": type(core.scheduler).__name__,
        "max_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_sequences": config.scheduler_config.max_num_seqs,
        "max_model_tokens": config.model_config.max_model_len,
        "has_chunked_prefill": bool(config.scheduler_config.enable_chunked_prefill),
        "has_prefix_cache": bool(config.cache_config.enable_prefix_caching),
        "is_async": bool(config.scheduler_config.async_scheduling),
        "batches_in_flight": core.batch_queue_size,
        "cache_blocks": config.cache_config.num_gpu_blocks,
        "block_tokens": config.cache_config.block_size,
        "image_tokens_per_step": core.scheduler.max_num_encoder_input_tokens,
    }

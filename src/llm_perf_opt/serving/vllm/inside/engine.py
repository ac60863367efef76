"""vLLM's engine core with an executor of ours: everything that decides is vLLM's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import vllm.config.vllm
import vllm.v1.core.sched.scheduler as scheduler
from vllm import __version__ as version
from vllm.engine.arg_utils import EngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.v1.core.encoder_cache_manager import compute_mm_encoder_budget
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, DraftTokenIds, ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes

from llm_perf_opt.core.target import Json
from llm_perf_opt.serving.engine_process.clock import Clock, StepLog
from llm_perf_opt.serving.engine_settings import EngineSettings
from llm_perf_opt.serving.vllm.inside.batches import batch_of
from llm_perf_opt.serving.vllm.inside.host_memory import POLL_S, HostTransfers
from llm_perf_opt.serving.vllm.inside.launches import Due, Launches
from llm_perf_opt.serving.vllm.inside.sampling import Sampler
from llm_perf_opt.serving.vllm.inside.stand_ins import stand_in

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


class VirtualExecutor(Executor):
    """Answers the three questions that need a device: how large is the cache, how long is a step, what was sampled."""

    supports_pp = True

    def __init__(self, vllm_config: Any, *, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self.clock = Clock()
        self.scheduler: Any = None  # made after the executor
        super().__init__(vllm_config)

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """What executors of GPUs answer."""
        return True

    def _init_executor(self) -> None:
        self._answers: dict[str, Callable[[], Any]] = {
            "get_kv_cache_spec": lambda: cache_layers(self.vllm_config),
            "determine_available_memory": lambda: self._cache_bytes,
            "get_supported_kv_cache_layouts": _layouts,
            "get_supported_tasks": lambda: ("generate",),
            "compile_or_warm_up_model": lambda: CompilationTimes(0.0, 0.0),
        }

    def begin(
        self,
        launches: Launches,
        sampler: Sampler,
        *,
        keeps_batches: bool = False,
        host_tokens_per_s: float | None = None,
    ) -> None:
        """A new replay on devices that are idle, with an empty log, and a link to the memory of the host."""
        self._launches, self._sampler = launches, sampler
        self._transfers: HostTransfers | None = None
        if self.vllm_config.kv_transfer_config is not None:
            assert host_tokens_per_s is not None, "settings with host memory come with its link"
            block_tokens = self.vllm_config.cache_config.block_size
            self._transfers = HostTransfers(host_tokens_per_s, block_tokens, self.parallel_config.world_size)
        self.clock = launches.clock
        self._none = Due(self.clock, 0.0, None)
        self.log = StepLog(keeps_batches=keeps_batches)

    def collective_rpc(
        self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None, non_block: bool = False
    ) -> list[Any]:
        """What each worker would answer; None to whatever only a device could mind."""
        answer = self._answers.get(method, lambda: None)
        return [answer() for _ in range(self.parallel_config.world_size)]

    def execute_model(self, scheduled: Any, non_block: bool = False) -> Any:
        """Launch a step. As with the runner of GPUs, its tokens come from `sample_tokens`."""
        copied = None
        if (transfers := self._transfers) is not None:
            self.clock.wait_until(transfers.start(scheduled.kv_connector_metadata, self.clock.now))
            copied = transfers.ended(self.clock.now)
        if not scheduled.total_num_scheduled_tokens:
            nothing, at_s = EMPTY_MODEL_RUNNER_OUTPUT, self.clock.now
            if transfers is not None:
                nothing = ModelRunnerOutput(req_ids=[], req_id_to_index={}, kv_connector_output=copied)
                at_s += POLL_S if transfers.is_busy else 0.0
            due = Due(self.clock, at_s, nothing)
            return due if non_block else due.result()
        batch = batch_of(scheduled, self.scheduler.requests)
        ids = list(scheduled.num_scheduled_tokens)
        sampled = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: at for at, name in enumerate(ids)},
            sampled_token_ids=self._sampler.sampled(scheduled, self.scheduler.requests),
            kv_connector_output=copied,
        )
        self._due = self._launches.launch(self.log, batch, self.scheduler, sampled)
        return self._none if non_block else None

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """The tokens of the step that was launched last."""
        return self._due if non_block else self._due.result()

    def take_draft_token_ids(self) -> Any:
        """What the drafter proposes for the next step."""
        drafted = self._sampler.drafted()
        return None if drafted is None else DraftTokenIds(*drafted)

    def check_health(self) -> None:
        """Nothing can fail."""

    def shutdown(self) -> None:
        """Nothing is open."""


def _layouts() -> list[str]:
    from vllm.v1.kv_cache_layout import KVCacheLayout

    return [layout.name for layout in KVCacheLayout]


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
    from llm_perf_opt.serving.vllm.inside.ranks import forget_groups
    from llm_perf_opt.serving.vllm.inside.targets import VllmModel
    from llm_perf_opt.weightless import Engine

    parallel = config.parallel_config
    ep = parallel.tensor_parallel_size if parallel.enable_expert_parallel else 1
    plan = ParallelPlan(tp=parallel.tensor_parallel_size, pp=parallel.pipeline_parallel_size, ep=ep, rank=0)
    model = VllmModel(config, plan)
    try:
        with model.world, Engine(device="cuda"):
            built = model.build()
        current_platform.update_block_size_for_backend(config)
        layers: dict[str, Any] = get_kv_cache_spec(config)
    finally:
        forget_groups()
    del built  # layers register themselves in the configuration, and live until here
    config.compilation_config.static_forward_context.clear()
    return layers


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


# How many image tokens a step may encode, where the folder has no tokenizer and vLLM's own processor cannot say.
#
# vLLM asks the processor for the largest image that the model takes. The largest image of the requests stands in: it
# decides only where it is larger than the tokens of a step.

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
_OF_VLLM = scheduler.MultiModalBudget


def has_tokenizer(folder: str) -> bool:
    """Whether vLLM's processor of images can be made."""
    return any((Path(folder) / name).is_file() for name in _TOKENIZERS)


def state_largest_image(tokens: int | None) -> None:
    """For schedulers made from now on; None: as vLLM finds it."""
    scheduler.MultiModalBudget = _OF_VLLM if tokens is None else lambda config, _: _StatedBudget(config, tokens)


class _StatedBudget:
    """The part of vLLM's record that its scheduler reads, computed by vLLM's own rule."""

    def __init__(self, config: Any, largest: int) -> None:
        self.mm_max_toks_per_item = {"image": largest}
        self.encoder_compute_budget, self.encoder_cache_size = compute_mm_encoder_budget(
            config.scheduler_config, self.mm_max_toks_per_item
        )

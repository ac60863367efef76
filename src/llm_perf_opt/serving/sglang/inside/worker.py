"""What stands in for SGLang's model worker: a cache of no size in memory, and steps that end on a virtual clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.configs.model_config import AttentionArch, ModelConfig
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from llm_perf_opt.serving.engine_process.clock import Clock, EngineLoad, Stages, StepLog
from llm_perf_opt.serving.engine_process.step_time import Batch, NewInStep, StepTime
from llm_perf_opt.serving.engine_settings import EngineSettings

_CPU, _ONE_NUMBER = "cpu", {"head_num": 1, "head_dim": 1}
_MOST_SEQUENCES = (2048, 4096)  # SGLang's own bounds where nobody states how many may run


class IdleStream:
    """A stream of a device that is not there: nobody waits for it."""

    def wait_stream(self, other: object) -> None:
        """No wait."""

    def synchronize(self) -> None:
        """No wait."""

    def __enter__(self) -> IdleStream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class DueEvent:
    """What SGLang waits for before it reads a result: the end of the step that was launched last."""

    def __init__(self, clock: Clock, at_s: float) -> None:
        self._clock, self._at_s = clock, at_s

    def record(self, stream: object = None) -> None:
        """The copy of a result ends with its step."""

    def synchronize(self) -> None:
        """Wait for it, on the virtual clock."""
        self._clock.wait_until(self._at_s)


class VirtualWorker:
    """The worker as its scheduler sees it: the pools of the cache, the limits, and one answer per batch.

    Every attribute that the scheduler reads is here by name; one that a version adds is an error, not a default.
    """

    is_draft_worker = False
    weight_load_time = 0.0
    preloaded_weights_bytes = 0

    def __init__(self, server_args: Any, settings: EngineSettings) -> None:
        self.server_args = server_args
        self.graph_memory_usage: dict[str, float] = {}
        self.graph_time_usage: dict[str, float] = {}
        self.model_config = ModelConfig.from_server_args(server_args)
        ends = self.model_config.hf_eos_token_id or ()
        self.token = next(token for token in range(7, 7 + len(ends) + 1) if token not in ends)  # what steps sample
        self.is_hybrid_swa = bool(self.model_config.is_hybrid_swa)
        self.sliding_window_size = self.model_config.sliding_window_size if self.is_hybrid_swa else None
        self._page = server_args.page_size
        self.tokens, self.window_tokens = cache_tokens(self.model_config, settings, self._page)
        self.most_sequences = _most_sequences(settings.max_sequences, self.tokens, self.model_config.context_len)
        self.model_runner = self.last_shared_read_runner = self._runner()

    def _runner(self) -> Any:
        requests = ReqToTokenPool(
            size=self.most_sequences,
            max_context_len=self.model_config.context_len + 4,
            device=_CPU,
            enable_memory_saver=False,
        )
        cache = self._cache()
        return SimpleNamespace(
            memory_pool_config=SimpleNamespace(max_running_requests=self.most_sequences),
            req_to_token_pool=requests,
            token_to_kv_pool=cache,
            token_to_kv_pool_allocator=self._allocator(cache, requests),
            model_config=self.model_config,
            spec_algorithm=SpeculativeAlgorithm.from_string(None),
            device=_CPU,
            forward_stream=IdleStream(),
            prewarm_sampling=lambda: None,
            attn_backend=None,
            canary_manager=None,
            prefill_aware_swa=None,
            weight_load_mem_usage=0.0,
            mtp_draft_device_pools=(),
            mtp_draft_mamba_pools=(),
            ngram_embedding_manager=SimpleNamespace(prepare_for_forward=lambda batch, *_, **__: batch),
            prepare_for_kv_cache_release=None,
        )

    def _cache(self) -> Any:
        """One number for each token, where a device has keys and values of all layers."""
        if self.is_hybrid_swa:
            return SWAKVPool(
                size=self.tokens,
                size_swa=self.window_tokens,
                page_size=self._page,
                dtype=torch.float16,
                **_ONE_NUMBER,
                swa_attention_layer_ids=[1],
                full_attention_layer_ids=[0],
                device=_CPU,
                token_to_kv_pool_class=MHATokenToKVPool,
                enable_memory_saver=False,
            )
        return MHATokenToKVPool(
            self.tokens,
            page_size=self._page,
            dtype=torch.float16,
            **_ONE_NUMBER,
            layer_num=1,
            device=_CPU,
            enable_memory_saver=False,
        )

    def _allocator(self, cache: Any, requests: Any) -> Any:
        common = {"dtype": torch.float16, "device": _CPU, "kvcache": cache, "need_sort": False}
        if self.is_hybrid_swa:
            return SWATokenToKVPoolAllocator(
                self.tokens, self.window_tokens, page_size=self._page, req_to_token_pool=requests, **common
            )
        if self._page == 1:
            return TokenToKVPoolAllocator(self.tokens, **common)
        return PagedTokenToKVPoolAllocator(self.tokens, page_size=self._page, **common)

    def begin(self, scheduler: Any, step_time: StepTime, *, keeps_batches: bool = False) -> None:
        """A new replay on a device that is idle, with an empty log."""
        self._scheduler, self._step_time, self._stages = scheduler, step_time, Stages(1)
        self.clock, self.log = Clock(), StepLog(keeps_batches=keeps_batches)
        self._ends_s = 0.0

    def forward_batch_generation(self, batch: Any, **_: object) -> Any:
        """Launch a step. Without overlap the scheduler waits for its end, otherwise for an event."""
        step = batch_of(batch)
        seconds = self._step_time.seconds(step)
        self.clock.now += self._step_time.host_s
        start_s, self._ends_s = self._stages.launch(self.clock.now, seconds)
        self.log.add(start_s, self._ends_s, seconds, step, self._load())
        if not self._scheduler.enable_overlap:
            self.clock.wait_until(self._ends_s)
        sampled = torch.full((len(batch.reqs),), self.token, dtype=torch.int64)
        return GenerationBatchResult(next_token_ids=sampled, can_run_cuda_graph=False)

    def event(self) -> DueEvent:
        """The end of the step that was launched last."""
        return DueEvent(self.clock, self._ends_s)

    def _load(self) -> EngineLoad:
        scheduler = self._scheduler
        free = scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size()
        return EngineLoad(len(scheduler.running_batch.reqs), len(scheduler.waiting_queue), 1 - free / self.tokens)

    def get_memory_pool(self) -> tuple[Any, Any]:
        """The pools of requests and of tokens."""
        return self.model_runner.req_to_token_pool, self.model_runner.token_to_kv_pool_allocator

    def get_tokens_per_layer_info(self) -> tuple[int, int]:
        """How many tokens the layers keep that see everything, and those with a window."""
        return self.tokens, self.window_tokens

    def get_worker_info(self) -> tuple[Any, ...]:
        """Limits, in the order in which the scheduler takes them."""
        longest = min(self.model_config.context_len, self.tokens) - 1
        args, runner = self.server_args, self.model_runner
        return (
            self.tokens,
            args.max_prefill_tokens,
            self.most_sequences,
            args.max_queued_requests,
            longest,
            longest - 5,
            0,
            _CPU,
            runner.forward_stream,
            runner.req_to_token_pool.size,
            runner.req_to_token_pool.max_context_len,
            self.tokens,
        )

    def init_attention_backends(self) -> None:
        """Nothing is computed."""

    def init_cuda_graphs(self) -> None:
        """Nothing is captured."""

    def get_pad_input_ids_func(self) -> None:
        """Prompts have no images."""


def batch_of(batch: Any) -> Batch:
    """The parts of a step. A mixed one has sequences that decode behind its chunks, one token each."""
    count = len(batch.reqs)
    if batch.forward_mode.is_decode():
        return Batch(count, int(batch.seq_lens_cpu.sum()) - count, [], 0, 0, 0, ())
    decoding = len(batch.decoding_reqs or ()) if batch.forward_mode.is_mixed() else 0
    parts = list(zip(batch.extend_lens, batch.prefix_lens, strict=True))
    chunks, ones = parts[: count - decoding], parts[count - decoding :]
    new = [NewInStep(req.rid, before) for req, (_, before) in zip(batch.reqs, chunks, strict=False)]
    return Batch(decoding, sum(before for _, before in ones), chunks, 0, 0, sum(size for size, _ in chunks), new)


def cache_tokens(config: Any, settings: EngineSettings, page: int) -> tuple[int, int]:
    """Tokens in the cache of one rank: of layers that see everything, and of those with a window (0 without such).

    The second is `swa_full_tokens_ratio` of the first, as in SGLang's own sizing.
    """
    ratio = float(str(settings.more.get("swa_full_tokens_ratio", 0.8))) if config.is_hybrid_swa else 0.0
    if settings.cache_blocks is not None:
        tokens = settings.cache_blocks * page
    else:
        full, window = _bytes_per_token(config, settings)
        tokens = int((settings.cache_bytes or 0) / (full + ratio * window)) // page * page
    return tokens, int(tokens * ratio) // page * page


def _bytes_per_token(config: Any, settings: EngineSettings) -> tuple[float, float]:
    """Of one rank: in all layers that see everything, and in all with a window."""
    number = 1 if settings.cache_dtype.startswith("fp8") else config.dtype.itemsize
    if config.attention_arch == AttentionArch.MLA:
        return float((config.kv_lora_rank + config.qk_rope_head_dim) * number * config.num_hidden_layers), 0.0
    layer = config.get_num_kv_heads(settings.plan.tp) * (config.head_dim + config.v_head_dim) * number
    windows = len(config.swa_attention_layer_ids) if config.is_hybrid_swa else 0
    return float(layer * (config.num_hidden_layers - windows)), float(layer * windows)


def _most_sequences(stated: int | None, tokens: int, context: int) -> int:
    """As SGLang settles `max_running_requests`."""
    low, high = _MOST_SEQUENCES
    wanted = stated if stated is not None else max(low, min(high, int(tokens / context * 512)))
    return max(1, min(wanted, tokens // 2))

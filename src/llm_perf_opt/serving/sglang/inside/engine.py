"""SGLang's scheduler with a worker of ours: everything that decides is SGLang's own, its event loop too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers import scheduler as scheduling
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import PortArgs, ServerArgs
from sglang.version import __version__ as version

from llm_perf_opt.core.target import Json
from llm_perf_opt.serving.engine_settings import EngineSettings
from llm_perf_opt.serving.sglang.inside.worker import VirtualWorker

_LARGE_DEVICE_BYTES, _LARGEST_DEVICE_BYTES = 60 * 2**30, 160 * 2**30


def build(settings: EngineSettings, worker: type[VirtualWorker] = VirtualWorker) -> Any:
    """A scheduler as `sglang.launch_server` would make it for these settings on that device.

    It believes in a processor, where nothing is compiled; what would follow from the device is stated instead.
    """
    args = ServerArgs(**arguments(settings))
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))

    class _Scheduler(scheduling.Scheduler):
        def init_tp_model_worker(self) -> None:
            self.tp_worker = worker(self.server_args, settings)

    made = _Scheduler(args, PortArgs.init_new(args))
    made.device_module = SimpleNamespace(
        Event=made.tp_worker.event,
        Stream=torch.cpu.Stream,
        stream=torch.cpu.stream,
        StreamContext=torch.cpu.StreamContext,
    )
    return made


def arguments(settings: EngineSettings) -> dict[str, Any]:
    """The arguments of SGLang's server. One rank stands for all: they decide the same."""
    named = {
        "max_running_requests": settings.max_sequences,
        "context_length": settings.max_model_tokens,
    }
    return {
        "model_path": settings.model,
        "dtype": settings.dtype,
        "trust_remote_code": settings.trust_remote_code,
        "device": "cpu",
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "attention_backend": "triton",  # which no model refuses, and which never runs
        "sampling_backend": "pytorch",
        "disable_cuda_graph": True,
        "page_size": 1,
        "chunked_prefill_size": settings.max_batched_tokens or _chunk_tokens(settings.device.memory_bytes),
        # weights decide nothing here, and a processor has no kernels for most of their formats
        "json_model_override_args": '{"quantization_config": null}',
        **{name: value for name, value in named.items() if value is not None},
        **settings.more,
    }


def _chunk_tokens(memory_bytes: int) -> int:
    """SGLang's default for a device of this memory (arg_groups/memory_hook.py)."""
    if memory_bytes >= _LARGEST_DEVICE_BYTES:
        return 16384
    if memory_bytes >= _LARGE_DEVICE_BYTES:
        return 8192
    return 4096 if memory_bytes >= 20 * 2**30 else 2048


def decided(scheduler: Any) -> dict[str, Json]:
    """What SGLang settled by itself: worth a line in every report."""
    worker = scheduler.tp_worker
    return {
        "version": version,
        "scheduler": "Scheduler",
        "policy": str(scheduler.schedule_policy),
        "max_batched_tokens": scheduler.chunked_prefill_size,
        "max_sequences": scheduler.max_running_requests,
        "max_model_tokens": scheduler.model_config.context_len,
        "has_chunked_prefill": scheduler.chunked_prefill_size is not None,
        "has_prefix_cache": not scheduler.disable_radix_cache,
        "is_async": bool(scheduler.enable_overlap),
        "cache_blocks": worker.tokens // scheduler.page_size,
        "block_tokens": scheduler.page_size,
        "window_tokens": worker.window_tokens,
    }

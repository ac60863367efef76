"""The executor that vLLM's engine talks to: no device, but the time that one would take and tokens of its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.executor.abstract import Executor
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, DraftTokenIds, ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes

from llm_perf_opt.engines.vllm.inside.cache_layers import cache_layers
from llm_perf_opt.engines.vllm.inside.clock import Clock, Due
from llm_perf_opt.engines.vllm.inside.launches import Launches
from llm_perf_opt.engines.vllm.inside.sampling import Sampler
from llm_perf_opt.engines.vllm.inside.step_log import StepLog
from llm_perf_opt.engines.vllm.inside.step_time import batch_of


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
        """As executors of GPUs do."""
        return True

    def _init_executor(self) -> None:
        self._answers: dict[str, Callable[[], Any]] = {
            "get_kv_cache_spec": lambda: cache_layers(self.vllm_config),
            "determine_available_memory": lambda: self._cache_bytes,
            "get_supported_kv_cache_layouts": _layouts,
            "get_supported_tasks": lambda: ("generate",),
            "compile_or_warm_up_model": lambda: CompilationTimes(0.0, 0.0),
        }

    def begin(self, launches: Launches, sampler: Sampler, *, keeps_batches: bool = False) -> None:
        """A new replay on devices that are idle, with an empty log."""
        self._launches, self._sampler = launches, sampler
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
        if not scheduled.total_num_scheduled_tokens:
            return (
                Due(self.clock, self.clock.now, EMPTY_MODEL_RUNNER_OUTPUT) if non_block else EMPTY_MODEL_RUNNER_OUTPUT
            )
        batch = batch_of(scheduled, self.scheduler.requests)
        ids = list(scheduled.num_scheduled_tokens)
        sampled = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: at for at, name in enumerate(ids)},
            sampled_token_ids=self._sampler.sampled(scheduled, self.scheduler.requests),
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

"""Runs in vLLM's Python: its real engine for processors, small models with dummy weights, on a clock of measured steps.

The requests come by that clock, which goes on by the processor time of each step; so a replay with the same durations
must see the same arrivals. Nothing of vLLM's scheduling is replaced: only the time at which a result is there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from vllm import SamplingParams, __version__
from vllm.engine.arg_utils import EngineArgs
from vllm.renderers import renderer_from_config
from vllm.v1.engine.core import EngineCore
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from benchmarks.vllm_schedules.cases import CASES, FOLDER, STEP_S, Case
from benchmarks.vllm_schedules.recorded import RecordedSchedule, write
from llm_perf_opt.serving.engine_process.clock import Clock, Stages, StepLog
from llm_perf_opt.serving.requests import ImageSpan, Request, Traffic
from llm_perf_opt.serving.vllm.inside.batches import batch_of, load_of
from llm_perf_opt.serving.vllm.inside.front_end import RequestWriter
from llm_perf_opt.serving.vllm.inside.launches import Due
from llm_perf_opt.serving.vllm.inside.run import run
from llm_perf_opt.serving.vllm.inside.schedules import record

_FIRST_OF_PREFIX = 1500  # inside the vocabulary of the small models


class _OnClock:
    """What both executors share: a clock, a log, and the durations that a replay will be given."""

    parallel_config: Any

    def begin(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.clock, self.stages, self.log = Clock(), Stages(self.parallel_config.pipeline_parallel_size), StepLog()
        self.durations: list[float] = []
        self.tokens: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def launched(self, scheduled: Any, seconds: float) -> float:
        """A step that takes so long in each stage: when it ends."""
        start_s, end_s = self.stages.launch(self.clock.now, seconds)
        self.log.add(start_s, end_s, seconds, batch_of(scheduled, self.scheduler.requests), load_of(self.scheduler))
        self.durations.append(seconds)
        return end_s


class MeasuredExecutor(_OnClock, UniProcExecutor):
    """In this process. A result is there when the clock has gone on by the processor time that it took."""

    def execute_model(self, scheduled: Any, non_block: bool = False) -> Any:
        began = time.thread_time()
        output = super().execute_model(scheduled, non_block=True).result()
        self._open = scheduled, time.thread_time() - began
        at_s = self.clock.now if output is not None else 0.0  # what has no tokens has no sampling either
        return Due(self.clock, at_s, output) if non_block else output

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        scheduled, before_s = self._open
        began = time.thread_time()
        output = super().sample_tokens(grammar_output, non_block=True).result()
        end_s = self.launched(scheduled, round(before_s + time.thread_time() - began, 6))
        sampled = [output.sampled_token_ids[output.req_id_to_index[name]] for name in scheduled.num_scheduled_tokens]
        self.tokens.append((tuple(map(len, sampled)), ()))
        due = Due(self.clock, end_s, output)
        return due if non_block else due.result()

    def take_draft_token_ids(self) -> Any:
        drafted = super().take_draft_token_ids()
        counts = dict(zip(drafted.req_ids, map(len, drafted.draft_token_ids), strict=True)) if drafted else {}
        scheduled, _ = self._open
        self.tokens[-1] = self.tokens[-1][0], tuple(counts.get(name, 0) for name in scheduled.num_scheduled_tokens)
        return drafted


class _Arriving(Due):
    """A result of another process: waited for in earnest, and there at a time of the clock."""

    def result(self, timeout: float | None = None) -> Any:
        self._value = self._value.result()
        return super().result()


class PipelineExecutor(_OnClock, MultiprocExecutor):
    """A process for each stage. Steps overlap, so their durations are given, not measured: some longer than others."""

    def begin(self, scheduler: Any) -> None:
        super().begin(scheduler)
        self.collective_rpc(_make_room)

    def execute_model(self, scheduled: Any, non_block: bool = False) -> Any:
        self._open = scheduled
        return super().execute_model(scheduled, non_block=non_block)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        assert non_block, "several batches are in flight"
        end_s = self.launched(self._open, round(STEP_S * (1 + len(self.durations) % 7 / 10), 6))
        return _Arriving(self.clock, end_s, super().sample_tokens(grammar_output, non_block=True))


def _make_room(worker: Any) -> None:
    """Run by each stage: a place for what the stage before sends, which a warm-up would make where there is one."""
    runner = worker.model_runner
    runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
        batch_size=runner.max_num_tokens, dtype=runner.dtype, device=runner.device
    )


def build(case: Case) -> Any:
    settings = case.settings()
    executor = PipelineExecutor if settings.plan.pp > 1 else MeasuredExecutor
    config = EngineArgs(
        model=str(FOLDER / settings.model),
        load_format="dummy",
        skip_tokenizer_init=not case.has_images,
        dtype=settings.dtype,
        pipeline_parallel_size=settings.plan.pp,
        distributed_executor_backend=executor,
        num_gpu_blocks_override=settings.cache_blocks,
        max_num_seqs=settings.max_sequences,
        max_num_batched_tokens=settings.max_batched_tokens,
        max_model_len=settings.max_model_tokens,
        **{**settings.more, "async_scheduling": False},
    ).create_engine_config()
    # the platform of processors switches it off as not worth it there; its runner can do it all the same
    config.scheduler_config.async_scheduling = case.is_async
    core = EngineCore(config, executor, log_stats=False)
    core.model_executor.begin(core.scheduler)
    return core


def record_case(name: str) -> Path:
    """Run a case and keep it."""
    case = CASES[name]
    core = build(case)
    executor = core.model_executor
    traffic, make_request = case.traffic(), RequestWriter(_FIRST_OF_PREFIX).engine_request
    if case.has_images:
        encode_nothing(executor.driver_worker.worker.model_runner.model)
        traffic, make_request = with_images(core.vllm_config, traffic)
    steps = record(core.scheduler)
    (answered,) = run([core], traffic, make_request)
    recorded = RecordedSchedule(
        case=name,
        version=__version__,
        settings=case.settings(),
        traffic=traffic,
        step_seconds=tuple(executor.durations),
        tokens=tuple(executor.tokens) if core.use_spec_decode else (),
        steps=steps,
        answered=answered,
    )
    core.shutdown()
    return write(recorded)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or CASES:
        began = time.perf_counter()
        written = record_case(chosen)
        print(f"{chosen}: {written}, {time.perf_counter() - began:.0f} s", flush=True)


SIZES = ((500, 400), (1240, 1754), (1000, 700), (640, 1500))
_GLOBAL_TOKENS = 273
_CROP_SIDE = 10


def encode_nothing(model: Any) -> None:
    """The encoder takes half a minute for an image here, and its values decide nothing: zeros of the right number."""

    def zeros(image: Any) -> list[torch.Tensor]:
        return [torch.zeros(_tokens(*crop), 128, dtype=torch.bfloat16) for crop in image.images_spatial_crop.tolist()]

    model._process_image_input = zeros


def _tokens(across: int, down: int) -> int:
    crops = (across * _CROP_SIDE + 1) * (down * _CROP_SIDE) if across * down > 1 else 0
    return _GLOBAL_TOKENS + crops


def with_images(config: Any, traffic: Traffic) -> tuple[Traffic, Callable[[Request, float], Any]]:
    """The same arrivals and answers with an image in front; every third image is one that came before."""
    processor = InputProcessor(config, renderer_from_config(config))
    made = {request.id: _made(processor, request, number) for number, request in enumerate(traffic.requests)}
    shown = tuple(_described(request, made) for request in traffic.requests)

    def make_request(request: Request, arrival_s: float) -> Any:
        engine_request = made[request.id]
        engine_request.arrival_time = arrival_s
        return engine_request

    return Traffic(requests=shown, concurrency=traffic.concurrency, origin=traffic.origin), make_request


def _made(processor: Any, request: Request, number: int) -> Any:
    image = number - 3 if number % 3 == 2 and number >= 3 else number
    picture = Image.new("RGB", SIZES[image % len(SIZES)], (image % 256, image // 256, 30))
    made = processor.process_inputs(
        request.id,
        {"prompt": f"<image>\n{number} {'x' * (request.prompt_tokens % 40)}", "multi_modal_data": {"image": picture}},
        SamplingParams(max_tokens=request.output_tokens, ignore_eos=True, temperature=0.0, detokenize=False),
        supported_tasks=("generate",),
    )
    made.request_id = request.id
    return made


def _described(request: Request, made: dict[str, Any]) -> Request:
    """What a replay is told: the image, and how far the prompt is that of another request with the same image."""
    engine_request = made[request.id]
    (image,) = engine_request.mm_features
    span = ImageSpan(offset=image.mm_position.offset, tokens=image.mm_position.length, name=image.identifier)
    others = [other for other in made.values() if other.mm_features[0].identifier == span.name]
    shared = min(
        next(
            (
                at
                for at, (left, right) in enumerate(
                    zip(engine_request.prompt_token_ids, other.prompt_token_ids, strict=False)
                )
                if left != right
            ),
            len(engine_request.prompt_token_ids),
        )
        for other in others
    )
    return Request(
        id=request.id,
        arrival_s=request.arrival_s,
        prompt_tokens=len(engine_request.prompt_token_ids),
        output_tokens=request.output_tokens,
        prefix=span.name if len(others) > 1 else None,
        prefix_tokens=shared if len(others) > 1 else 0,
        images=(span,),
    )

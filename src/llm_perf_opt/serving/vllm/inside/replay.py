"""Replays: an engine for the settings of a job, made or kept from before, and its requests through it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.serving.engine_process.clock import no_collector
from llm_perf_opt.serving.engine_process.jobs import ReplayJob, read_message
from llm_perf_opt.serving.engine_process.step_time import StepTime, step_time_of
from llm_perf_opt.serving.requests import Replayed, Traffic
from llm_perf_opt.serving.vllm.inside import platform
from llm_perf_opt.serving.vllm.inside.launches import OwnLaunches, Rounds
from llm_perf_opt.serving.vllm.inside.sampling import JumpingSampler, JumpingTime, Sampler, can_jump, chosen_sampler

Report = Callable[[str], None]
_KEPT_ENGINES = 4
_engines: dict[bytes, list[Any]] = {}  # by their settings, the one used last at the end


def answer(job_file: Path, report: Report) -> Replayed:
    """What becomes of the requests of a job in one engine."""
    (replayed,) = answers(job_file, report)
    return replayed


def answers(job_file: Path, report: Report) -> list[Replayed]:
    """What becomes of the requests of a job, replica by replica."""
    job = read_message(job_file, ReplayJob)
    platform.believe_in(job.settings.device)
    cores = _engines_for(job, report)
    _require_room(cores[0], job.traffic)
    return replay(cores, job)


def _engines_for(job: ReplayJob, report: Report) -> list[Any]:
    """One engine for each replica; they stay open for the next job."""
    import msgspec

    largest_image = max((image.tokens for request in job.traffic.requests for image in request.images), default=0)
    key = msgspec.msgpack.encode((job.settings, largest_image))
    cores = _engines.pop(key, [])
    while len(_engines) >= _KEPT_ENGINES:
        _engines.pop(next(iter(_engines)))
    while len(cores) < job.replicas:
        report(f"Building vLLM's engine for {job.settings.ranks} x {job.settings.device.name} ...")
        from llm_perf_opt.serving.vllm.inside.engine import build  # imports vllm, once the platform is there

        cores.append(build(job.settings, largest_image=largest_image))
    _engines[key] = cores
    return cores[: job.replicas]


def _require_room(core: Any, traffic: Traffic) -> None:
    """The front end of vLLM refuses what the core would never schedule."""
    most = core.vllm_config.model_config.max_model_len
    if not core.scheduler.max_num_encoder_input_tokens and any(request.images for request in traffic.requests):
        raise UsageError(
            "The requests have images, and this model takes none.",
            why=f"to vLLM {core.vllm_config.model_config.architecture} is a model of text",
            fix="count the tokens of images as tokens of the prompt, or name a model that takes images",
        )
    for request in traffic.requests:
        if request.prompt_tokens >= most or request.prompt_tokens < 1 or request.output_tokens < 1:
            raise UsageError(
                f"The engine does not take request {request.id!r}: {request.prompt_tokens:,} tokens in, "
                f"{request.output_tokens:,} out.",
                why=f"a prompt has at least 1 and less than {most:,} tokens here, and an answer at least 1",
                fix="raise the longest sequence of the engine, or leave the request out",
            )


def replay(cores: Sequence[Any], job: ReplayJob, sampler: Sampler | None = None) -> list[Replayed]:
    """The requests of a job through engines that are idle."""
    from llm_perf_opt.serving.vllm.inside.engine import decided
    from llm_perf_opt.serving.vllm.inside.front_end import FrontEnd, RequestWriter
    from llm_perf_opt.serving.vllm.inside.run import run

    rounds = _rounds(job)
    for core in cores:
        core.reset_prefix_cache(reset_connector=True)
        core.reset_encoder_cache()
        launches = rounds or OwnLaunches(_step_time(job), job.settings.plan.pp)
        core.model_executor.begin(
            launches,
            sampler or _sampler(core, job),
            keeps_batches=job.keeps_batches,
            host_tokens_per_s=job.host_tokens_per_s,
        )
    route = FrontEnd(cores).route if len(cores) > 1 else None
    began = time.thread_time()
    with no_collector():
        answered = run(cores, job.traffic, RequestWriter().engine_request, route, rounds)
    cpu_s = (time.thread_time() - began) / len(cores)
    return [
        Replayed(
            requests=requests,
            steps=core.model_executor.log.steps,
            seconds=core.model_executor.clock.now,
            busy_s=core.model_executor.log.busy_s,
            engine=decided(core),
            cpu_s=cpu_s,
            batches=core.model_executor.log.batches,
        )
        for core, requests in zip(cores, answered, strict=True)
    ]


def _rounds(job: ReplayJob) -> Rounds | None:
    """What replicas have in common that share experts."""
    if not job.shares_experts:
        return None
    if job.table is None or job.table.groups != job.replicas or job.has_jumps or job.settings.plan.pp > 1:
        raise UsageError(
            f"These {job.replicas} replicas cannot share experts.",
            why="that needs a table for as many groups of ranks, one stage, and every step for itself",
            fix="make the table for that plan, and leave jumps and stages out",
        )
    return Rounds(job.table, job.slower)


def _step_time(job: ReplayJob) -> StepTime:
    return JumpingTime(job.table, job.slower) if job.has_jumps and job.table is not None else step_time_of(job)


def _sampler(core: Any, job: ReplayJob) -> Sampler:
    speculation = core.model_executor.speculative_config
    if not job.has_jumps:
        return chosen_sampler(speculation, job.acceptance)
    if speculation is None or job.table is None or not can_jump(job.traffic):
        raise UsageError(
            "This replay cannot jump over steps.",
            why="that needs a table, a number of requests in flight from the start, and an engine that speculates",
            fix="leave the jumps out",
        )
    return JumpingSampler(core.scheduler, speculation.num_speculative_tokens)

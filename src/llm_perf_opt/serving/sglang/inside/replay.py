"""Replays: a scheduler for the settings of a job, made once, and its requests through it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.reading import MODEL_FILE, read_foreign_json
from llm_perf_opt.serving.engine_process.clock import no_collector
from llm_perf_opt.serving.engine_process.jobs import ReplayJob, read_message
from llm_perf_opt.serving.engine_process.prompts import PromptWriter
from llm_perf_opt.serving.engine_process.step_time import step_time_of
from llm_perf_opt.serving.requests import Replayed

Report = Callable[[str], None]
_STATES = frozenset({"mamba_d_state", "ssm_state_size", "state_size", "linear_attn_config"})  # keys of recurrent layers
_made: list[Any] = []


def answer(job_file: Path, report: Report) -> Replayed:
    """What becomes of the requests of a job in one engine."""
    job = read_message(job_file, ReplayJob)
    require_replayable(job)
    if not _made:
        report(f"Building SGLang's scheduler for {job.settings.ranks} x {job.settings.device.name} ...")
        from llm_perf_opt.serving.sglang.inside.engine import build  # imports sglang

        _made.append(build(job.settings))
    return replay(_made[0], job)


def answers(job_file: Path, report: Report) -> list[Replayed]:
    """The same for one replica: SGLang's own router is another program, and requests are dealt before they come."""
    return [answer(job_file, report)]


def require_replayable(job: ReplayJob) -> None:
    """Refuse what this replay does not do, with the reason."""
    plan, pools = job.settings.plan, _further_pools(Path(job.settings.model) / "config.json")
    for is_asked, what, why in (
        (plan.pp > 1, "pipelines", "each stage has a scheduler of its own there"),
        (plan.attention_dp > 1, "groups with attention of their own", "their schedulers agree on every step"),
        (job.settings.cache_dtype not in ("auto", "fp8", "bfloat16"), "this type of cache", "its own are others"),
        (job.host_tokens_per_s is not None, "host memory for the cache", "threads of its own copy it"),
        (job.replicas > 1, "several replicas in one job", "its router is another program"),
        (bool(pools), f"a cache with {pools}", "their pool shares the memory with keys and values, and is not sized"),
        (job.has_jumps or job.acceptance is not None, "speculation", "its draft workers run models"),
        (any(request.images for request in job.traffic.requests), "images", "its processors need pixels"),
    ):
        if is_asked:
            raise UsageError(
                f"SGLang's replay does not do {what}.", why=why, fix="leave that out, or replay with --engine vllm"
            )


def _further_pools(file: Path) -> str:
    """What a model of this configuration keeps besides keys and values; nothing for most."""
    config = read_foreign_json(file, MODEL_FILE) if file.is_file() else {}
    text = config.get("text_config", config)
    if "index_topk" in text:
        return "keys of a sparse indexer"
    is_recurrent = "linear_attention" in text.get("layer_types", ()) or not _STATES.isdisjoint(text)
    return "recurrent states" if is_recurrent else ""


def replay(scheduler: Any, job: ReplayJob) -> Replayed:
    """The requests of a job through a scheduler that is idle."""
    from llm_perf_opt.serving.sglang.inside.engine import decided
    from llm_perf_opt.serving.sglang.inside.run import run

    _require_room(scheduler, job)
    worker = scheduler.tp_worker
    scheduler.flush_cache()
    worker.begin(scheduler, step_time_of(job), keeps_batches=job.keeps_batches)
    began = time.thread_time()
    with no_collector():
        requests = run(scheduler, job.traffic, PromptWriter(worker.token))
    return Replayed(
        requests=requests,
        steps=worker.log.steps,
        seconds=worker.clock.now,
        busy_s=worker.log.busy_s,
        engine=decided(scheduler),
        cpu_s=time.thread_time() - began,
        batches=worker.log.batches,
    )


def _require_room(scheduler: Any, job: ReplayJob) -> None:
    """SGLang would cut an answer short, or refuse the request."""
    for request in job.traffic.requests:
        if (
            not 1 <= request.prompt_tokens < scheduler.max_req_input_len
            or request.output_tokens < 1
            or request.prompt_tokens + request.output_tokens >= scheduler.max_req_len
        ):
            raise UsageError(
                f"The engine does not take request {request.id!r}: {request.prompt_tokens:,} tokens in, "
                f"{request.output_tokens:,} out.",
                why=f"a request has at least one token in and one out, and less than {scheduler.max_req_len:,} here",
                fix="raise the longest sequence or the cache of the engine, or leave the request out",
            )

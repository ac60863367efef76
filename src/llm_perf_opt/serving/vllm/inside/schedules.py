"""What vLLM's scheduler decides in each step, as lines that two engines can be compared by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llm_perf_opt.serving.engine_process.jobs import Scheduled, ScheduleJob, read_message
from llm_perf_opt.serving.vllm.inside import platform

_DIGITS = 12


def answer(job_file: Path, report: Callable[[str], None]) -> Scheduled:
    """The requests of a job through a new engine, and every decision of its scheduler."""
    job = read_message(job_file, ScheduleJob)
    platform.believe_in(job.replay.settings.device)
    from llm_perf_opt.serving.vllm.inside.engine import build
    from llm_perf_opt.serving.vllm.inside.replay import replay
    from llm_perf_opt.serving.vllm.inside.sampling import RecordedTokens

    core = build(job.replay.settings, has_gpu_runner=job.has_gpu_runner)
    steps = record(core.scheduler)
    (replayed,) = replay([core], job.replay, RecordedTokens(job.tokens) if job.tokens else None)
    return Scheduled(steps=steps, replayed=replayed)


def record(scheduler: Any) -> list[str]:
    """A list that gets a line whenever this scheduler decides."""
    lines: list[str] = []
    schedule = scheduler.schedule

    def recorded(*args: Any, **kwargs: Any) -> Any:
        scheduled = schedule(*args, **kwargs)
        lines.append(line(scheduled))
        return scheduled

    scheduler.schedule = recorded
    return lines


def line(scheduled: Any) -> str:
    """Sequences, tokens, finished, preempted; and the digest of names in order, tokens, computed tokens and blocks."""
    cached = scheduled.scheduled_cached_reqs
    preempted = sorted(scheduled.preempted_req_ids or ())
    decided = [
        list(scheduled.num_scheduled_tokens.items()),
        [(new.req_id, new.num_computed_tokens, new.block_ids) for new in scheduled.scheduled_new_reqs],
        list(
            zip(cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, cached.num_output_tokens, strict=True)
        ),
        sorted(cached.resumed_req_ids),
        sorted(scheduled.finished_req_ids),
        preempted,
        {name: len(drafts) for name, drafts in scheduled.scheduled_spec_decode_tokens.items()},
        scheduled.scheduled_encoder_inputs,
        sorted(scheduled.free_encoder_mm_hashes),
    ]
    digest = hashlib.sha256(json.dumps(decided).encode()).hexdigest()[:_DIGITS]
    counts = (
        len(scheduled.num_scheduled_tokens),
        scheduled.total_num_scheduled_tokens,
        len(scheduled.finished_req_ids),
        len(preempted),
    )
    return " ".join([*map(str, counts), digest])

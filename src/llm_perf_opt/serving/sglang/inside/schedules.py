"""What SGLang's scheduler decides in each step, as lines that two runs can be compared by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llm_perf_opt.serving.engine_process.jobs import Scheduled, ScheduleJob, read_message
from llm_perf_opt.serving.sglang.inside.replay import replay, require_replayable

_DIGITS = 12


def answer(job_file: Path, report: Callable[[str], None]) -> Scheduled:
    """The requests of a job through a new scheduler, and every decision of it."""
    job = read_message(job_file, ScheduleJob)
    require_replayable(job.replay)
    from llm_perf_opt.serving.sglang.inside.engine import build

    scheduler = build(job.replay.settings)
    steps = record(scheduler)
    return Scheduled(replayed=replay(scheduler, job.replay), steps=steps)


def record(scheduler: Any) -> list[str]:
    """A list that gets a line whenever this scheduler launches a step."""
    lines: list[str] = []
    run_batch = scheduler.run_batch

    def recorded(batch: Any) -> Any:
        lines.append(line(scheduler, batch))
        return run_batch(batch)

    scheduler.run_batch = recorded
    return lines


def line(scheduler: Any, batch: Any) -> str:
    """Sequences, tokens, running, waiting; and the digest of kind, names in order, lengths, cached tokens and slots."""
    is_decode = batch.forward_mode.is_decode()
    new = [1] * len(batch.reqs) if is_decode else list(batch.extend_lens)
    decided = [
        batch.forward_mode.name,
        [(req.rid, len(req.output_ids), req.retraction_count) for req in batch.reqs],
        new,
        None if is_decode else list(batch.prefix_lens),
        batch.seq_lens_cpu.tolist(),
        batch.out_cache_loc.tolist(),
        [req.rid for req in scheduler.running_batch.reqs],
        [req.rid for req in scheduler.waiting_queue],
    ]
    digest = hashlib.sha256(json.dumps(decided).encode()).hexdigest()[:_DIGITS]
    counts = len(batch.reqs), sum(new), len(scheduler.running_batch.reqs), len(scheduler.waiting_queue)
    return " ".join([*map(str, counts), digest])

"""Records of SGLang through SGLang's own scheduler, next to the same records through vLLM's.

The sample is drawn by its seed from all aggregated records of SGLang with one scheduler, at most 64 in flight, clean
of drafts and repetitions. Step tables, loads and caches are those of the other replays of the field; every step is
replayed by itself. Limits of a step and the prefix cache are SGLang's own, and nothing is fitted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.records import CONFIGS, MeasuredRun
from benchmarks.serving_replay.field_records import (
    BLOCK,
    ROUNDS,
    Schedules,
    Served,
    cache_blocks,
    clients_of,
    field_table,
    load_of,
    mean_over_rounds,
    settings_of,
    times_of,
)
from benchmarks.serving_times.estimates import aggregated_runs, deployed_blocks, engine_plan
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.serving.engine_process.environment import SGLANG
from llm_perf_opt.serving.engine_process.jobs import ReplayJob
from llm_perf_opt.serving.engine_process.process import ReplayProcess
from llm_perf_opt.serving.engine_settings import EngineSettings, SeenDevice
from llm_perf_opt.serving.requests import Traffic
from llm_perf_opt.timing.step.engine_time import EngineTimer

SEED, SAMPLE, MOST_IN_FLIGHT = 20, 24, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One record: measured times, and those through each of two schedulers; seconds."""

    name: str
    measured: tuple[float, float]  # TPOT, TTFT
    sglang: tuple[float, float]
    vllm: tuple[float, float]


def sample() -> list[MeasuredRun]:
    runs = [
        run
        for run in aggregated_runs()
        if run.engine == "sglang"
        and engine_plan(run).attention_dp == 1
        and (run.in_flight or 1) <= MOST_IN_FLIGHT
        and not (run.drafts or run.is_repeat or run.is_whole_system)
        and run.tpot_s
        and run.ttft_s
    ]
    return random.Random(SEED).sample(sorted(runs, key=lambda run: run.name), SAMPLE)


def sglang_settings(run: MeasuredRun, traffic: Traffic) -> EngineSettings:
    """Its own defaults for that device; the scheduler minds nothing of the model but the size of its cache."""
    wanted = sum(sorted(r.prompt_tokens + r.output_tokens for r in traffic.requests)[-clients_of(run) :])
    room = cache_blocks(deployed_blocks(run), run.device, engine_plan(run)) * BLOCK
    return EngineSettings(
        model=str(CONFIGS / "llama-3.1-8b"),
        device=SeenDevice.of(find_device(run.device)),
        dtype="bfloat16",
        cache_blocks=min(room, 4 * wanted),
        max_model_tokens=65536,
    )


def judged(runs: Sequence[MeasuredRun], schedules: Schedules) -> Iterator[Judged]:
    timers: dict[tuple[str, str], EngineTimer] = {}
    for run in runs:
        traffic, table = load_of(run), field_table(run, timers)
        job = ReplayJob(settings=sglang_settings(run, traffic), traffic=traffic, table=table)
        with ReplayProcess(engine=SGLANG) as process:
            done = process.replay(job).requests
        own = Served(
            arrival=done.arrival_s,
            scheduled=done.scheduled_s,
            first=done.first_token_s,
            last=done.last_token_s,
            outputs=done.output_tokens,
        )
        others = times_of(schedules.of(settings_of(run, traffic), traffic, table), table)
        yield Judged(
            name=run.name,
            measured=(run.tpot_s or 0.0, run.ttft_s or 0.0),
            sglang=(mean_over_rounds(run, own.tpot), mean_over_rounds(run, own.ttft)),
            vllm=(mean_over_rounds(run, others.tpot), mean_over_rounds(run, others.ttft)),
        )


def medians(rows: Sequence[Judged]) -> dict[str, Any]:
    """Median errors: of each scheduler, TPOT and TTFT; and how many are below 10 % and 30 %."""
    found: dict[str, Any] = {"records": len(rows), "rounds": ROUNDS}
    for name in ("sglang", "vllm"):
        errors = [[getattr(row, name)[at] / row.measured[at] - 1 for row in rows] for at in (0, 1)]
        for what, some in zip(("tpot", "ttft"), errors, strict=True):
            found[f"{name}_{what}"] = round(median(map(abs, some)), 4)
            found[f"{name}_{what}_signed"] = round(median(some), 4)
    return found

"""Real runs of vLLM on real GPUs, request by request: what was recorded, and a replay of the same arrivals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.bounds.traced_models import CONFIGS
from benchmarks.serving_replay.cache_room import cache_blocks
from benchmarks.serving_times.deployed import traced_blocks
from llm_perf_opt.analyses.serving.engine_time import EngineTimer
from llm_perf_opt.analyses.serving.step_tables import step_table
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.serving.engine_settings import EngineSettings, SeenDevice
from llm_perf_opt.core.serving.requests import Replayed, Request, Traffic
from llm_perf_opt.core.serving.step_table import StepTable
from llm_perf_opt.engines.vllm.jobs import ReplayJob

FILES = Path(__file__).parents[2] / "tests" / "facts" / "serving" / "replay"
_RUNS = {  # file -> model of the configurations, device, plan
    "rtx4090-llama31-8b": ("llama-3.1-8b", "rtx-4090", ParallelPlan()),
    "rtxpro6000-llama31-8b": ("llama-3.1-8b", "rtx-pro-6000-bw-server", ParallelPlan()),
    "rtxpro6000-qwen3-32b-tp2": ("qwen3-32b", "rtx-pro-6000-bw-server", ParallelPlan(tp=2)),
    "rtxpro6000-qwen3-30b-a3b-dp2-ep": (
        "qwen3-30b-a3b",
        "rtx-pro-6000-bw-server",
        ParallelPlan(attention_dp=2, ep=2),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Times of requests, in order of arrival; seconds."""

    arrival: Sequence[float]
    scheduled: Sequence[float]
    first: Sequence[float]
    last: Sequence[float]
    outputs: Sequence[int]

    @property
    def ttft(self) -> list[float]:
        return [first - came for first, came in zip(self.first, self.arrival, strict=True)]

    @property
    def queued(self) -> list[float]:
        return [begun - came for begun, came in zip(self.scheduled, self.arrival, strict=True)]

    @property
    def e2e(self) -> list[float]:
        return [last - came for last, came in zip(self.last, self.arrival, strict=True)]

    @property
    def tpot(self) -> list[float]:
        return [
            (last - first) / (tokens - 1)
            for last, first, tokens in zip(self.last, self.first, self.outputs, strict=True)
            if tokens > 1
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """One file: what was deployed, the requests, and what became of them."""

    name: str
    model: str
    device: str
    plan: ParallelPlan
    settings: EngineSettings
    traffic: Traffic
    served: Served
    series: Sequence[Sequence[float]]  # second, prompt tokens/s, generated tokens/s, running, waiting, cache percent


def recorded_runs() -> list[RecordedRun]:
    """All four, the one that was recorded with its cache blocks first."""
    return [_read(name) for name in _RUNS]


def _read(name: str) -> RecordedRun:
    model, device, plan = _RUNS[name]
    document = json.loads((FILES / f"{name}.json").read_text(encoding="utf-8"))
    rows = document["requests"]
    told = document["engine_kwargs"]
    return RecordedRun(
        name=name,
        model=model,
        device=device,
        plan=plan,
        settings=EngineSettings(
            model=str(CONFIGS / model),
            device=SeenDevice.of(find_device(device)),
            plan=plan,
            dtype="bfloat16",
            cache_blocks=_blocks(document, model, device, plan),
            max_sequences=told["max_num_seqs"],
            max_batched_tokens=told["max_num_batched_tokens"],
            max_model_tokens=told["max_model_len"] or 16384,
        ),
        traffic=Traffic(
            requests=tuple(
                Request(id=str(at), arrival_s=row[2], prompt_tokens=row[0], output_tokens=row[1])
                for at, row in enumerate(rows)
            ),
            origin=document["source"],
        ),
        served=Served(
            arrival=[row[2] for row in rows],
            scheduled=[row[4] for row in rows],
            first=[row[5] for row in rows],
            last=[row[6] for row in rows],
            outputs=[row[1] for row in rows],
        ),
        series=document["timeseries"],
    )


def _blocks(document: Mapping[str, Any], model: str, device: str, plan: ParallelPlan) -> int:
    """Of one engine, as recorded; where the record does not say, what the weights leave of the memory."""
    told = document["kv_cache"]
    if told is not None:
        return int(told["num_gpu_blocks"])
    return cache_blocks(traced_blocks(model), device, plan) // plan.attention_dp


def table_of(run: RecordedRun) -> StepTable:
    """The step times of the run's device, by measured kernels."""
    return step_table(traced_blocks(run.model), EngineTimer.of(run.device, "vllm"), run.plan)


def job_of(run: RecordedRun, table: StepTable) -> ReplayJob:
    """The run's requests; an engine for each group of ranks that has attention of its own, in step with the others."""
    groups = run.plan.attention_dp
    return ReplayJob(
        settings=run.settings, traffic=run.traffic, table=table, replicas=groups, shares_experts=groups > 1
    )


def served(engines: Sequence[Replayed]) -> Served:
    """A replay in the same form; the requests are named by their place in the record."""
    rows = sorted(
        (int(name), *times)
        for one in engines
        for name, *times in zip(
            one.requests.ids,
            one.requests.arrival_s,
            one.requests.scheduled_s,
            one.requests.first_token_s,
            one.requests.last_token_s,
            one.requests.output_tokens,
            strict=True,
        )
    )
    _, arrival, scheduled, first, last, outputs = zip(*rows, strict=True)
    return Served(arrival=arrival, scheduled=scheduled, first=first, last=last, outputs=outputs)


def errors(measured: Served, replayed: Served) -> dict[str, float]:
    """Replayed over measured, less one."""
    return {
        "E2E, mean": fmean(replayed.e2e) / fmean(measured.e2e) - 1,
        "TPOT, mean": fmean(replayed.tpot) / fmean(measured.tpot) - 1,
        "TPOT, median": median(replayed.tpot) / median(measured.tpot) - 1,
        "TTFT, median": median(replayed.ttft) / median(measured.ttft) - 1,
        "TTFT, mean": fmean(replayed.ttft) / fmean(measured.ttft) - 1,
        "queued, mean": fmean(replayed.queued) / max(1e-9, fmean(measured.queued)) - 1,
    }

"""Real runs of vLLM on real GPUs, request by request: what was recorded, and a replay of the same arrivals."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.pages import facts
from benchmarks.records import CONFIGS, SERVING, read_nim, records_of
from benchmarks.serving_replay.field_records import ROUNDS, Served, cache_blocks, load_of, replay_once
from benchmarks.serving_times.estimates import traced_blocks
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.workload import read_page_size
from llm_perf_opt.serving.capacity.outcome import outcome
from llm_perf_opt.serving.capacity.steady_state import mean_request
from llm_perf_opt.serving.engine_process.jobs import ReplayJob
from llm_perf_opt.serving.engine_process.process import ReplayProcess
from llm_perf_opt.serving.engine_settings import EngineSettings, SeenDevice
from llm_perf_opt.serving.read_traffic import as_traffic, read_traffic
from llm_perf_opt.serving.requests import Replayed, Request, Traffic
from llm_perf_opt.serving.served_model import ServedModel, engine_folder
from llm_perf_opt.timing.step.engine_time import EngineTimer
from llm_perf_opt.timing.step.step_table import StepTable
from llm_perf_opt.timing.step.step_tables import step_table
from llm_perf_opt.tracing.origin import find_origin

FILES = SERVING / "replay"
_RUNS = {  # file -> model of the configurations, device, plan
    "rtx4090-llama31-8b": ("llama-3.1-8b", "rtx-4090", ParallelPlan()),
    "rtxpro6000-llama31-8b": ("llama-3.1-8b", "rtx-pro-6000-bw-server", ParallelPlan()),
    "rtxpro6000-qwen3-32b-tp2": ("qwen3-32b", "rtx-pro-6000-bw-server", ParallelPlan(tp=2)),
    "rtxpro6000-qwen3-30b-a3b-dp2-ep": ("qwen3-30b-a3b", "rtx-pro-6000-bw-server", ParallelPlan(attention_dp=2, ep=2)),
}


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
        for engine in engines
        for name, *times in zip(
            engine.requests.ids,
            engine.requests.arrival_s,
            engine.requests.scheduled_s,
            engine.requests.first_token_s,
            engine.requests.last_token_s,
            engine.requests.output_tokens,
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


NIM_FILE = SERVING / "nim.json"
JUMP = 3.0  # TTFT against that at the concurrency before: from here on requests wait for room


def knee_rows(process: ReplayProcess) -> Iterator[dict[str, Any]]:
    """As the record has them."""
    for record, run in zip(records_of(NIM_FILE), read_nim(NIM_FILE), strict=True):
        done = replay_once(process, run, load_of(run))
        requests = done.requests
        later = range(len(requests.ids) // ROUNDS, 2 * len(requests.ids) // ROUNDS)
        yield {
            "in_flight": run.in_flight or 1,
            "measured_ttft_s": run.ttft_s or math.nan,
            "ttft_s": fmean(requests.first_token_s[at] - requests.arrival_s[at] for at in later),
            "measured_itl_s": run.tpot_s or math.nan,
            "tpot_s": fmean(
                (requests.last_token_s[at] - requests.first_token_s[at]) / (requests.output_tokens[at] - 1)
                for at in later
            ),
            "measured_tokens_per_s": record["output_tokens_per_s"],
            "tokens_per_s": sum(requests.output_tokens) / done.seconds,
            "running": max(done.steps.running),  # at most, in the replay
        }


def knee(in_flight: Sequence[int], ttft_s: Sequence[float]) -> int | None:
    """The concurrency at which the first token takes its largest jump; None: there is none."""
    jumps = [(now / before, number) for number, now, before in zip(in_flight[1:], ttft_s[1:], ttft_s, strict=False)]
    largest, number = max(jumps)
    return number if largest > JUMP else None


MODEL, DEVICE, OUTPUT_TOKENS, PAGE_ROUNDS = "deepseek-ocr", "rtx-pro-6000-bw-server", 622, 6
PUBLISHED_DEVICE, PUBLISHED_PAGES_PER_DAY = "a100-sxm-40g", 200_000
PUBLISHED_TOKENS_PER_S = 2500  # of the same release, on the same GPU: this many tokens for each page
PUBLISHED_PAGE = "1190x1684"  # A4 at 144 dots per inch, as the release renders documents


def page_rows() -> Iterator[dict[str, Any]]:
    """Eight measured points, and the published pages of a day."""
    records = [record for record in facts("serving/ocr.json")["records"] if "pages_per_s" in record]
    sizes = tuple(read_page_size(name) for name in dict.fromkeys(record["image"] for record in records))
    origin = find_origin(MODEL, torch_device="cuda")
    with engine_folder(origin, MODEL) as folder, ReplayProcess() as process:
        served = ServedModel(origin, sizes)
        for record in records:
            load = f"{record['concurrency']} at once pages={record['image']} output={OUTPUT_TOKENS}"
            yield _page_row(
                process,
                folder,
                served,
                DEVICE,
                load,
                record["concurrency"],
                record["pages_per_s"],
                record["tpot_ms"] / 1e3,
            )
        published = ServedModel(origin, (read_page_size(PUBLISHED_PAGE),))
        per_s = PUBLISHED_PAGES_PER_DAY / 86400
        output = round(PUBLISHED_TOKENS_PER_S / per_s)
        load = f"100 at once pages={PUBLISHED_PAGE} output={output}"
        yield _page_row(process, folder, published, PUBLISHED_DEVICE, load, 100, per_s, None)


def _page_row(
    process: ReplayProcess,
    folder: Path,
    served: ServedModel,
    device: str,
    load: str,
    at_once: int,
    measured: float,
    tpot_s: float | None,
) -> dict[str, Any]:
    declared = read_traffic(f"{load} requests={PAGE_ROUNDS * at_once}")
    traffic = as_traffic(declared, served.page_tokens)
    replica = served.replica(find_device(device), ParallelPlan(), mean_request(traffic), None)
    assert replica is not None
    done = process.replay(
        ReplayJob(settings=served.settings(folder, find_device(device), replica), traffic=traffic, table=replica.table)
    )
    outcome_of_page = outcome([done], pages=len(traffic.requests), is_closed=True)
    pages_per_s = outcome_of_page.requests_per_s
    return {
        "what": f"{device}: {load}",
        "measured_pages_per_s": measured,
        "pages_per_s": pages_per_s,
        "low": pages_per_s / replica.table.high,
        "high": pages_per_s / replica.table.low,
        "measured_tpot_s": tpot_s,
        "tpot_s": outcome_of_page.tpot.at(0.5),
    }

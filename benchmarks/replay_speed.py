"""How fast is a replay, next to the engine's own scheduler loop with a worker that does nothing?

python benchmarks/replay_speed.py FOLDER [--engine sglang] [--requests 10000] [--rate 12] [--alone]

FOLDER has the configuration of Llama-3.1-70B; 8 H100, TP8. Both loops get the same requests in one process; the second
has no clock, no table and no log: requests come after this many steps, and every step is answered at once. With --alone
only the replay runs, for its time and memory at many requests.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.engine_process.environment import ENGINES, find
from llm_perf_opt.serving.engine_process.jobs import ReplayJob
from llm_perf_opt.serving.engine_process.process import environment_variables
from llm_perf_opt.serving.engine_settings import EngineSettings, SeenDevice
from llm_perf_opt.serving.requests import Request, Traffic
from llm_perf_opt.timing.step.step_table import Curve, StepTable, Surface

H100 = SeenDevice(name="NVIDIA H100 80GB HBM3", memory_bytes=85_520_809_984, capability=(9, 0), compute_units=132)
TABLE = StepTable(  # about a 70B model on 8 H100; 16 points on each axis, as a table of measured kernels has
    tokens=Curve(
        at=tuple(2.0**at for at in range(14)),
        seconds=tuple(max(9e-3, 2**at * 2 * 8.8e9 / 0.7 / 989e12 + 3e-3) for at in range(14)),
    ),
    head=Curve(at=(1, 1024), seconds=(1e-4, 4e-4)),
    decoding=Surface(
        across=tuple(2.0**at for at in range(11)),
        along=tuple(2.0**at for at in range(4, 15)),
        seconds=tuple(tuple(2e-4 + 2**row * 2**at * 40960 / 2.6e12 for at in range(4, 15)) for row in range(11)),
    ),
    prompts=Surface(
        across=tuple(2.0**at for at in range(4, 15)),
        along=tuple(2.0**at for at in range(4, 15)),
        seconds=tuple(tuple(1e-4 + 2**row * 2**at * 320e3 / 4e14 for at in range(4, 15)) for row in range(4, 15)),
    ),
    host_s=5e-4,
)


def traffic(requests: int, rate: float) -> Traffic:
    chance, arrival_s, made = random.Random(1), 0.0, []
    for number in range(requests):
        arrival_s += chance.expovariate(rate)
        prompt = min(8000, max(4, int(chance.lognormvariate(6.0, 1.1))))
        output = min(2000, max(1, int(chance.lognormvariate(5.0, 0.9))))
        made.append(Request(id=f"r{number}", arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output))
    return Traffic(requests=tuple(made))


def measure_sglang(job: ReplayJob, *, is_alone: bool) -> None:
    from llm_perf_opt.serving.sglang.inside.engine import build
    from llm_perf_opt.serving.sglang.inside.replay import replay

    scheduler = build(job.settings)
    replay(scheduler, replace(job, traffic=replace(job.traffic, requests=job.traffic.requests[:200])))
    replayed = replay(scheduler, job)
    _say(job, replayed)
    if is_alone:
        return
    bare_s = bare_sglang_loop(scheduler, job.traffic, replayed)
    ours_s = min(replayed.cpu_s, replay(scheduler, job).cpu_s)
    print(f"SGLang's loop with an idle worker: {bare_s:.1f} s; the replay: {ours_s:.1f} s, {ours_s / bare_s:.2f} times")


def bare_sglang_loop(scheduler: Any, traffic: Traffic, replayed: Any) -> float:
    """The same requests, each before the step at which it came in the replay; nothing is logged or timed."""
    import gc
    from bisect import bisect_left
    from types import SimpleNamespace

    import torch
    from sglang.srt.managers.utils import GenerationBatchResult

    from llm_perf_opt.serving.engine_process.prompts import PromptWriter
    from llm_perf_opt.serving.sglang.inside.run import engine_request

    before = [bisect_left(replayed.steps.start_s, request.arrival_s) for request in traffic.requests]
    writer, worker, state = PromptWriter(), scheduler.tp_worker, SimpleNamespace(at=0, step=0)

    def forward(batch: Any, **_: Any) -> Any:
        state.step += 1
        return GenerationBatchResult(
            next_token_ids=torch.full((len(batch.reqs),), worker.token), can_run_cuda_graph=False
        )

    def receive(local_reqs: Any = None) -> list[Any]:
        is_idle = scheduler.last_batch is None and scheduler.is_fully_idle()
        came = []
        while state.at < len(before) and (before[state.at] <= state.step or (is_idle and not came)):
            came.append(engine_request(traffic.requests[state.at], writer))
            state.at += 1
        scheduler.gracefully_exit = is_idle and not came and state.at == len(before)
        return came

    scheduler.flush_cache()
    scheduler.output_streamer.send_to_detokenizer = SimpleNamespace(send_output=lambda *_: None)
    event, scheduler.device_module.Event = (
        scheduler.device_module.Event,
        lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None),
    )
    worker.forward_batch_generation, scheduler.request_receiver = forward, SimpleNamespace(recv_requests=receive)
    scheduler.process_batch_result = type(scheduler).process_batch_result.__get__(scheduler)
    gc.collect()
    gc.disable()
    began = time.thread_time()
    scheduler.gracefully_exit = False
    scheduler.run_event_loop()
    spent = time.thread_time() - began
    gc.enable()
    del worker.forward_batch_generation
    scheduler.device_module.Event = event
    return spent


def _say(job: ReplayJob, replayed: Any) -> None:
    tokens = sum(replayed.requests.output_tokens)
    memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(
        f"{len(job.traffic.requests):,} requests, {len(replayed.steps.start_s):,} steps, {tokens:,} tokens out: "
        f"{replayed.seconds:,.0f} s of serving in {replayed.cpu_s:.1f} s of processor time, peak {memory_gb:.2f} GB",
        flush=True,
    )


def measure_vllm(job: ReplayJob, *, is_alone: bool) -> None:
    from llm_perf_opt.serving.vllm.inside import platform

    platform.believe_in(job.settings.device)
    from llm_perf_opt.serving.vllm.inside.engine import build
    from llm_perf_opt.serving.vllm.inside.replay import replay

    core = build(job.settings)
    warm = replace(job, traffic=replace(job.traffic, requests=job.traffic.requests[:200]))
    replay([core], warm)
    (replayed,) = replay([core], job)
    _say(job, replayed)
    if is_alone:
        return
    bare_s = bare_loop(core, job.traffic, replayed)
    (again,) = replay([core], job)
    ours_s = min(replayed.cpu_s, again.cpu_s)
    print(f"vLLM's loop with an idle executor: {bare_s:.1f} s; the replay: {ours_s:.1f} s, {ours_s / bare_s:.2f} times")


def bare_loop(core: Any, traffic: Traffic, replayed: Any) -> float:
    """The same requests, each before the step at which it came in the replay; nothing is logged or timed."""
    import gc
    from bisect import bisect_left

    from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

    from llm_perf_opt.serving.engine_process.clock import Clock
    from llm_perf_opt.serving.vllm.inside.front_end import RequestWriter
    from llm_perf_opt.serving.vllm.inside.launches import Due

    clock = Clock()
    none = Due(clock, 0.0, None)

    class Idle:
        def execute_model(self, scheduled: Any, non_block: bool = False) -> Any:
            if not scheduled.total_num_scheduled_tokens:
                return Due(clock, 0.0, EMPTY_MODEL_RUNNER_OUTPUT)
            ids, known = list(scheduled.num_scheduled_tokens), core.scheduler.requests
            tokens = [[] if known[name].is_prefill_chunk else [7] for name in ids]
            index = {name: at for at, name in enumerate(ids)}
            self.due = Due(clock, 0.0, ModelRunnerOutput(req_ids=ids, req_id_to_index=index, sampled_token_ids=tokens))
            return none

        def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
            return self.due

    core.reset_prefix_cache()
    executor, core.model_executor = core.model_executor, Idle()
    writer = RequestWriter()
    before = [bisect_left(replayed.steps.start_s, request.arrival_s) for request in traffic.requests]
    gc.collect()
    gc.disable()
    began, at, step = time.thread_time(), 0, 0
    while at < len(before) or core.scheduler.has_requests() or core.batch_queue:
        while at < len(before) and before[at] <= step:
            core.add_request(*core.preprocess_add_request(writer.engine_request(traffic.requests[at], 0.0)))
            at += 1
        if core.scheduler.has_requests() or core.batch_queue:
            _, has_run = core.step_fn()
            core.post_step(has_run)
        step += 1
    spent = time.thread_time() - began
    gc.enable()
    core.model_executor = executor
    return spent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="vllm")
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--rate", type=float, default=12.0)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--inside", action="store_true", help="in the engine's Python already")
    options = parser.parse_args()
    if not options.inside:
        engine = ENGINES[options.engine]
        command = [str(find(engine).python), str(Path(__file__)), *sys.argv[1:], "--inside"]
        sys.exit(subprocess.run(command, env=environment_variables(engine)).returncode)
    settings = EngineSettings(
        model=options.folder, device=H100, plan=ParallelPlan(tp=8), cache_bytes=58_000_000_000, max_model_tokens=16384
    )
    job = ReplayJob(settings=settings, traffic=traffic(options.requests, options.rate), table=TABLE)
    measures = {"vllm": measure_vllm, "sglang": measure_sglang}
    measures[options.engine](job, is_alone=options.alone)


if __name__ == "__main__":
    main()

"""vLLM's own model class at full size without weights: one rank of a plan, traced phase by phase."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_perf_opt.core.callgraph import CallGraph, write_callgraph
from llm_perf_opt.core.parallel_plan import HEADER_KEY
from llm_perf_opt.core.target import Json
from llm_perf_opt.serving.engine_process.jobs import TraceAnswer, TraceJob, read_message
from llm_perf_opt.serving.vllm.inside.stand_ins import CUSTOM_OPS, stand_in

SUFFIX = ".callgraph.json"


def answer(file: Path, report: Callable[[str], None]) -> TraceAnswer:
    """What the process of vLLM does with a job of this kind."""
    job = read_message(file, TraceJob)
    from llm_perf_opt.serving.vllm.inside.platform import believe_in

    believe_in(job.device)
    return trace_model(job, report)


def trace_model(job: TraceJob, report: Callable[[str], None]) -> TraceAnswer:
    """Build the model, run its phases, and write one call graph for each."""
    stand_in()
    from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
    from llm_perf_opt.serving.vllm.inside.ranks import forget_groups
    from llm_perf_opt.serving.vllm.inside.targets import VllmModel, cache_facts, targets

    started = time.process_time()
    config = configure(job)
    configured = time.process_time()
    report(f"{config.model_config.architecture}: configured in {configured - started:.1f} s")
    model = VllmModel(config, job.plan)
    tracer = WeightlessTracer(routing=job.routing, device="cuda")
    graphs: list[CallGraph] = []
    try:
        for target in targets(model, job):
            report(f"Tracing {target.model}, {target.phase} ...")
            graphs.append(tracer.trace(target))
        facts = {"kv_cache": cache_facts(model)}
    finally:
        forget_groups()
    header = {**_engine_header(), HEADER_KEY: job.plan.header()} if job.plan.is_spread else _engine_header()
    files = []
    for graph in graphs:
        runtime = {**graph.runtime, **facts, "vllm_estimate": estimated(config, graph)}
        file = Path(job.out) / f"{graph.phase}{SUFFIX}"
        write_callgraph(
            replace(graph, deployment={**graph.deployment, **header}, runtime=runtime), file, overwrite=False
        )
        files.append(str(file))
    return TraceAnswer(files=files, configure_s=configured - started, run_s=time.process_time() - configured)


def configure(job: TraceJob) -> Any:
    """VLLM's configuration of the engine, as its server would make it for these devices."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=job.model,
        skip_tokenizer_init=True,
        load_format="dummy",
        trust_remote_code=job.trust_remote_code,
        dtype=job.dtype,
        kv_cache_dtype=job.cache_dtype,
        tensor_parallel_size=job.plan.tp,
        pipeline_parallel_size=job.plan.pp,
        enable_expert_parallel=job.plan.ep > 1,
        distributed_executor_backend="mp",
        enforce_eager=True,
        compilation_config={"custom_ops": list(CUSTOM_OPS), "mode": 0},
    ).create_engine_config()


def _engine_header() -> dict[str, str]:
    import vllm

    return {"code": "vllm", "engine": f"vllm {vllm.__version__}"}


def estimated(config: Any, graph: CallGraph) -> dict[str, Json]:
    """FLOPs, bytes read and bytes written by component for the steps of a phase; or why there are none."""
    from vllm.v1.metrics.perf import ExecutionContext, ModelMetrics

    metrics = ModelMetrics(config)
    if not metrics.is_enabled():
        return {"reason": "vLLM knows no component of this model"}
    workload = graph.workload
    prompt, new, batch = (int(workload[name]) for name in ("prompt_tokens", "new_tokens", "batch"))
    steps = int(workload["decode_steps"])
    is_prefill = graph.phase == "prefill"
    contexts = [(prompt, prompt)] if is_prefill else [(new, prompt + new * (step + 1)) for step in range(max(1, steps))]
    estimate: dict[str, dict[str, int]] = {"flops": {}, "bytes_read": {}, "bytes_written": {}}
    for tokens, context in contexts:
        step = ExecutionContext()
        for _ in range(batch):
            step.add(tokens, context, is_prefill=tokens > 1)
        for name, by_part in (
            ("flops", metrics.get_num_flops_breakdown(step, True)),
            ("bytes_read", metrics.get_read_bytes_breakdown(step, True)),
            ("bytes_written", metrics.get_write_bytes_breakdown(step, True)),
        ):
            for part, count in by_part.items():
                estimate[name][part] = estimate[name].get(part, 0) + int(count)
    return dict(estimate)

"""A trace of the code that an engine runs for a model, in place of the model's own: vLLM's model classes.

They run in the Python that has vLLM. What comes back are call graphs as from any trace; the model itself stays there,
so that questions which run it again (a sweep, other sources) are asked of further traces.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_perf_opt.core.callgraph import CallGraph, read_callgraph
from llm_perf_opt.core.callgraph.queries import events_of
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.links import Hardware, device_of, find_hardware, hardware_id
from llm_perf_opt.core.output_files import scratch_folder
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.tensor_formats import cache_dtype
from llm_perf_opt.core.work_limits import refuse_workload
from llm_perf_opt.core.workload import Deployment, ModelCode, Workload
from llm_perf_opt.models.huggingface.names import NamedModel, find_model
from llm_perf_opt.serving.engine_process.environment import find
from llm_perf_opt.serving.engine_process.jobs import TraceAnswer, TraceJob
from llm_perf_opt.serving.engine_process.process import EngineProcess
from llm_perf_opt.serving.engine_settings import CACHE_ARGUMENTS, SeenDevice
from llm_perf_opt.tracing.deployed_traces import redeployed
from llm_perf_opt.tracing.origin import find_origin, taken_plan
from llm_perf_opt.tracing.trace_files import rank_folder
from llm_perf_opt.tracing.traced_phases import reserve_folder, write_graphs
from llm_perf_opt.tracing.traced_run import TracedRun, trace_origin, trace_ranks

log = logging.getLogger(__name__)

DEFAULT_DEVICE = "h100-sxm"  # for which vLLM chooses its kernels where no device is named
DEFAULT_PROMPT_TOKENS = 128
_UNTRACED_CACHES = frozenset({"int8"})  # which vLLM serves; the tracer does not run its kernels


def trace_named(
    source: str,
    *,
    weights: str | None = None,
    cache: str | None = None,
    routing: str | None = None,
    trust_remote_code: bool = False,
    code: str = ModelCode().code,
    **workload: Any,
) -> TracedRun:
    """A model by its name or folder, without weights: its own code, or with `code` the code of an engine."""
    named, plan = find_model(source, trust_remote_code), taken_plan(workload)
    if ModelCode.make(code=code) != ModelCode():
        workload.pop("copies_key_heads", None)  # its own code does
        return trace_engine_code(
            named, None, plan, workload, weights=weights, cache=cache, routing=routing, trusts=trust_remote_code
        )
    origin = find_origin(
        named, weights=weights, cache=cache, routing=routing, trust_remote_code=trust_remote_code, **workload
    )
    return trace_ranks(origin, plan) if plan.is_spread else trace_origin(origin)


def trace_engine_code(
    model: object,
    hardware: Hardware | None,
    plan: ParallelPlan,
    workload: Mapping[str, Any],
    *,
    weights: str | None,
    cache: str | None,
    routing: str | None,
    trusts: bool,
    out: Path | None = None,
    force: bool = False,
    events: bool = False,
) -> TracedRun:
    """One rank of each kind of the plan as vLLM runs it; the first with the others."""
    wanted = Workload.make(**workload)
    ranks = plan.kinds_of_rank()
    seen = device_of(find_hardware(DEFAULT_DEVICE) if hardware is None else hardware)
    job = _job(model, wanted, plan, SeenDevice.of(seen), routing=routing, cache=cache, trusts=trusts)
    deployment = Deployment.make(device=hardware_id(hardware), weights=weights)
    phases = [*(["prefill"] if job.prompt_tokens else []), *(["decode", "chunk"] if job.decode_steps else [])]
    folders = [rank_folder(out, rank, ranks) for rank in ranks]
    for place in filter(None, folders):
        reserve_folder(place, phases, force=force)
    traces = []
    with EngineProcess(find()) as process, scratch_folder() as scratch:
        for rank, folder in zip(ranks, folders, strict=True):
            graphs = _traced(process, replace(job, plan=plan.of_rank(rank), out=str(scratch / str(rank))))
            written = redeployed(_with_events(graphs) if events else graphs, deployment)
            written = _as_named(model, written)
            files = () if folder is None else write_graphs(written, folder, force=force)
            traces.append(TracedRun(name=str(model), graphs=written, files=files))
    return replace(traces[0], others=tuple(traces[1:]))


def _job(
    model: object,
    workload: Workload,
    plan: ParallelPlan,
    device: SeenDevice,
    *,
    routing: str | None,
    cache: str | None,
    trusts: bool,
) -> TraceJob:
    _refuse_what_vllm_lacks(workload, plan)
    folder = _folder_of(model)
    prompt = DEFAULT_PROMPT_TOKENS if workload.prompt_tokens is None else workload.prompt_tokens
    refuse_workload(
        batch=workload.batch, tokens=prompt, decode_steps=workload.decode_steps, new_tokens=workload.new_tokens
    )
    return TraceJob(
        model=str(folder),
        out="",
        device=device,
        plan=plan,
        batch=workload.batch,
        prompt_tokens=prompt,
        new_tokens=workload.new_tokens,
        decode_steps=workload.decode_steps,
        dtype=workload.dtype,
        cache_dtype=_cache(cache),
        routing="uniform" if routing is None else routing,
        trust_remote_code=trusts,
    )


def _traced(process: EngineProcess, job: TraceJob) -> tuple[CallGraph, ...]:
    Path(job.out).mkdir()
    answer = process.ask("trace", job, TraceAnswer)
    log.info("  configured in %.1f s, built and ran in %.1f s", answer.configure_s, answer.run_s)
    return tuple(read_callgraph(Path(file)) for file in answer.files)


def _with_events(graphs: Sequence[CallGraph]) -> tuple[CallGraph, ...]:
    return tuple(replace(graph, events=events_of(graph)) for graph in graphs)


def _as_named(model: object, graphs: tuple[CallGraph, ...]) -> tuple[CallGraph, ...]:
    """The graphs with the name by which the model was found, and a note on where its folder came from."""
    if not isinstance(model, NamedModel) or not model.source:
        return graphs
    origin_note = f"Configuration of {model.name}: {model.source}."
    return tuple(replace(graph, model=model.name, notes=(origin_note, *graph.notes)) for graph in graphs)


def _folder_of(model: object) -> Path:
    folder = model.folder if isinstance(model, NamedModel) else None
    if folder is None or not (folder / "config.json").is_file():
        raise UsageError(
            f"vLLM's code runs a folder with a config.json, not {str(model)[:80]!r}.",
            why="it finds the class of a model by the architecture that the configuration names",
            fix="name the folder of the model; its code and configuration are enough, without weights",
        )
    return folder.resolve()


def _cache(name: str | None) -> str:
    if name is None:
        return "auto"
    dtype = cache_dtype(name)
    if dtype not in CACHE_ARGUMENTS or dtype in _UNTRACED_CACHES:
        raise UsageError(
            f"vLLM's code is not traced with a cache of {name}.",
            why="it keeps keys and values in the type of the model or in fp8",
            fix="choose --cache fp8, or leave it out",
        )
    return CACHE_ARGUMENTS[dtype]


def _refuse_what_vllm_lacks(workload: Workload, plan: ParallelPlan) -> None:
    if plan.fsdp > 1 or plan.plan is not None:
        raise UsageError(
            "vLLM's code runs neither fully sharded nor by a file of rules.",
            why="its layers decide how they are sharded",
            fix="leave --fsdp and --plan out; --tp, --ep and --pp say how many ranks there are",
        )
    if plan.ep not in (1, plan.tp):
        raise UsageError(
            f"vLLM does not divide the experts among {plan.ep} of {plan.tp} ranks.",
            why="with expert parallelism each rank of a stage holds whole experts",
            fix=f"give --ep {plan.tp}, or leave it out",
        )
    if workload.attention is not None:
        raise UsageError(
            "vLLM chooses its attention itself.", why="--attention names code of the model", fix="leave --attention out"
        )

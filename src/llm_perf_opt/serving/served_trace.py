"""A trace that exists, as the model of a server: what its workload asks of one, and what need not run again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.memory.kv_cache import DECODE
from llm_perf_opt.tracing.origin import Origin, on_rank
from llm_perf_opt.tracing.traced_phases import WEIGHTLESS
from llm_perf_opt.tracing.traced_run import TracedRun, media_tokens


class ServeKeywords(TypedDict, total=False):
    """Keywords of `serve` that follow from a trace."""

    users: int
    page: str | None
    input: int | None
    tp: int
    ep: int
    pp: int


def request_of(run: TracedRun) -> ServeKeywords:
    """What `serve` is asked for the workload and the plan of a trace: its prompt, its page, and a user per sequence."""
    origin, ran = _origin(run), run.graphs[0].workload
    page, plan = _page(run), origin.plan
    prompt = ran.get("prompt_tokens") if page is None else origin.workload.prompt_tokens
    request = ServeKeywords(users=origin.workload.batch, page=page, input=prompt)
    if plan.tp > 1:
        request["tp"] = plan.tp
    if plan.ep > 1:
        request["ep"] = plan.ep
    if plan.pp > 1:
        request["pp"] = plan.pp
    return request


def served_origin(run: TracedRun, changed: Collection[str] = ()) -> tuple[Origin, dict[Workload, TracedRun]]:
    """The model of a trace with the workload of one request on one device, and the trace itself where it is of that.

    A trace was made with one workload and its formats: `changed` names what cannot be another one.
    """
    for name in changed:
        raise UsageError(
            f"{name} is as the trace has it.",
            why="a trace was made with one workload and its formats",
            fix="trace the model with it, or name the model",
        )
    origin, alone = _origin(run), Workload()
    names = ("prompt_tokens", "decode_steps", "new_tokens", "batch")
    page = _page(run)
    traced_workload = origin.workload if page is None else replace(origin.workload, image=page)  # type: ignore[call-arg]
    workload = replace(traced_workload, **{name: getattr(alone, name) for name in names})
    is_same = workload == traced_workload and not origin.plan.is_spread and origin.torch_device in (None, "cuda")
    made = {workload: run} if is_same and run.graphs[0].tracer == WEIGHTLESS else {}
    if origin.plan.is_spread:
        origin = on_rank(origin, ParallelPlan())
    return replace(origin, workload=workload, torch_device="cuda"), made


def _origin(run: TracedRun) -> Origin:
    """What the trace was made from; a trace that no server can be found for is refused."""
    if run.origin is None:
        raise UsageError(
            "A saved trace holds no model to serve.",
            why="the figures of a server come from further traces of the model",
            fix="name the model in place of its trace",
        )
    stopped = [*run.failures, *(graph.phase for graph in run.graphs if graph.stopped_in is not None)]
    if stopped:
        raise PerfOptError(
            f"The {stopped[0]} of {run.origin.model} stopped half-way.",
            why="what follows is missing, so every time would be too small",
            fix="trace it to its end",
        )
    if DECODE not in run.phases:
        raise PerfOptError(
            f"{run.origin.model} generates nothing.",
            why="its trace has no decode step, and a server of requests makes one after another",
            fix="choose a model that generates",
        )
    if run.graphs[0].deployment.get("code") is not None or run.origin.plan.fsdp > 1:
        raise PerfOptError(
            "Servers are found for the model's own code, without --fsdp.",
            why="an engine shares no stored weights, and its kernels are found from the reference code",
            fix="leave --code and --fsdp out",
        )
    return run.origin


def _page(run: TracedRun) -> str | None:
    """The size of the image in the prompt, as `WIDTHxHEIGHT`; None: a prompt of text alone."""
    ran = run.graphs[0].workload
    page = ran.get("image")
    if page is None and media_tokens(run.graphs[0]) > 0:
        raise PerfOptError(
            f"How long images or sound take in {run.graphs[0].model} is not known to a server.",
            why="its workload names no size of a page",
            fix="choose a model with --image",
        )
    if page is not None and Path(page).is_file():
        raise UsageError(
            f"{page} is a file.", why="a server is found for pages of a size", fix="write --image WIDTHxHEIGHT"
        )
    return page

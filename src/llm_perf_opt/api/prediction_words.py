"""The first lines of a prediction: what was asked, does it fit, how fast, what limits, what next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import found_once
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.parallel_plan import plan_in
from llm_perf_opt.core.units import format_bytes, format_count
from llm_perf_opt.core.workload import Deployment
from llm_perf_opt.costs.memory.need import RunMemory, Shortage, fit_text, run_memory, shortage_of, shortage_text
from llm_perf_opt.timing.datasheet_rates import SOURCE, Execution
from llm_perf_opt.timing.lower_bound import BoundBy
from llm_perf_opt.timing.predict import StageTime
from llm_perf_opt.timing.speed import Speed, bottleneck_text, bottlenecks, pages_text, speed_text
from llm_perf_opt.tracing.deployed_traces import redeployed

_NARROWER = ("fp8", "int4-g128")  # formats of weights to try, the widest first


def execution_text(execution: str, engine: str | None = None) -> str:
    """Whose kernels run: the code as written, an engine that fuses, or a named engine."""
    if execution == Execution.EAGER:
        return "eager as written"
    return "fused as engines do" if engine is None else f"fused as {engine} does"


def run_text(graphs: Sequence[CallGraph], speed: Speed, machine: str, how: str) -> str:
    """`llama31-8b on l4, eager as written, 1 x 128 tokens, bfloat16`: model, deployment, execution and workload."""
    first, plan = graphs[0], plan_in(graphs[0].deployment)
    words = [machine, *([] if plan is None else [plan.describe()]), how]
    tokens = f" x {format_count(speed.context)} tokens" if speed.context else ""
    words.append(f"{format_count(speed.sequences)}{tokens}" if tokens else f"batch {format_count(speed.sequences)}")
    if plan is not None and (shared := plan.dp * plan.fsdp) > 1:
        words[-1] += f" in all ({format_count(speed.sequences // shared)} per rank)"
    words.append(str(first.deployment.get("weights") or first.workload.get("dtype") or "dtype not stated"))
    return f"{first.model} on {', '.join(words)}"


@found_once
def _needs_if_narrower(graphs: tuple[CallGraph, ...]) -> tuple[tuple[str, int], ...]:
    """Weight format -> what the run then needs."""
    found = ((name, run_memory(redeployed(graphs, Deployment.make(weights=name)))) for name in _NARROWER)
    return tuple((name, memory.total_bytes) for name, memory in found if memory.total_bytes is not None)


def shortage_on(kinds: Sequence[tuple[CallGraph, ...]], device: Device) -> Shortage | None:
    """What is short and what helps; None where every rank fits, or nobody knows."""
    short = shortage_of(kinds, device)
    if short is None:
        return None
    needs = [dict(_needs_if_narrower(graphs)) for graphs in kinds]
    largest = {name: max(one[name] for one in needs) for name in _NARROWER if all(name in one for one in needs)}
    return replace(short, formats=tuple((name, size) for name, size in largest.items() if size <= device.memory_bytes))


def prediction_lines(
    graphs: Sequence[CallGraph],
    times: Sequence[Sequence[StageTime]],
    speed: Speed,
    memory: RunMemory | None,
    device: Device | None,
    *,
    machine: str,
    how: str,
    shortage: Shortage | None = None,
    rates: str = "",
) -> tuple[str, ...]:
    """Three lines. Where the run does not fit, the first says so, how many devices hold it, and in which format."""
    asked = run_text(graphs, speed, machine, how)
    fast = ", ".join(part for part in (speed_text(speed), pages_text(speed)) if part)
    fast = f"by the data sheet, {fast}" if rates == SOURCE else fast
    if shortage is not None and device is not None:
        short = f"{asked}: {format_bytes(shortage.short_bytes)} short."
        return shortage_text(shortage, device), short, f"If it fitted: {fast}."
    fit = "" if memory is None or device is None else f": {fit_text(memory, device)}"
    limits = bottleneck_text(graphs, times)
    last = f"Bottleneck: {limits}. " if limits else ""
    return f"{asked}{fit}.", f"{fast[:1].upper()}{fast[1:]}.", f"{last}Next: {next_text(graphs, times, speed, how)}."


def next_text(graphs: Sequence[CallGraph], times: Sequence[Sequence[StageTime]], speed: Speed, how: str) -> str:
    """The option that changes most, by what limits."""
    limits = bottlenecks(graphs, times)
    limit = limits.get("decode") or next(iter(limits.values()), None)
    if limit is BoundBy.LAUNCHES and how == execution_text(Execution.EAGER):
        return "--execution fused"
    if limit is BoundBy.COMMUNICATION:
        return "a smaller --tp, or faster links"
    if limit is BoundBy.BANDWIDTH and speed.step is not None:
        return f"a larger --batch{', or --weights fp8' if graphs[0].deployment.get('weights') is None else ''}"
    if speed.pages and speed.output_tokens is None:
        return "--decode-steps N for whole pages"
    return "--device all for other devices"

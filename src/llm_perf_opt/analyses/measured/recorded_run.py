"""A GPU recording that was joined with a trace, as a measurement: kernel time by stage and by kind of kernel."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from llm_perf_opt.analyses.join.attribution import JoinedRecording, JoinedWork
from llm_perf_opt.analyses.measured.measurement import MeasuredRun, Measurement, Quantity, run_of
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of, stage_names, stage_of_calls
from llm_perf_opt.ops.op import KernelKind
from llm_perf_opt.ops.table import kernels_of

_NS = 1e-9
_ORDER = (KernelKind.MATMUL, KernelKind.ATTENTION, KernelKind.COMMUNICATION, KernelKind.VECTOR)


def recorded_run(
    joined: JoinedRecording, graph: CallGraph, *, file: str, source: str, device: str | None
) -> MeasuredRun:
    """Seconds of one forward: of the attributed kernels of each stage, and of each kind of kernel in it."""
    spent: dict[str, Counter[str]] = defaultdict(Counter)
    for stage, family, duration_ns in _attributed(joined, graph):
        spent[stage][family] += duration_ns
    forwards = max(1, joined.forwards)
    times = [
        Measurement(
            quantity=Quantity.STAGE,
            stage=stage,
            samples_s=(found.total() * _NS / forwards,),
            statistic=f"kernels, mean of {forwards:,} forwards" if forwards > 1 else "kernels of one forward",
            is_device_time=True,
            by_family={family: spent_ns * _NS / forwards for family, spent_ns in found.items() if spent_ns},
        )
        for stage, found in spent.items()
        if found.total()
    ]
    return run_of(times, source=source, file=file, model=None, device=device, phase=graph.phase)


def _attributed(joined: JoinedRecording, graph: CallGraph) -> Iterator[tuple[str, str, int]]:
    """Stage, kind of kernel and nanoseconds of all work that belongs to an op or to a module."""
    names, stages, ops = stage_names(graph), stage_of_calls(graph), ops_of(graph)
    for work in joined.work:
        if work.evidence is None:
            continue
        call = ops.call[work.ops[0]] if work.ops else work.call
        yield names[stages[call]] if call >= 0 else graph.phase, _family(work, graph), work.duration_ns


def _family(work: JoinedWork, graph: CallGraph) -> str:
    """Of several ops in one kernel the heaviest kind; a kernel without an op is a small one between two ops."""
    kinds = {kernel.kind for row in work.ops for kernel in kernels_of(graph.op_kinds[ops_of(graph).kind[row]])}
    return str(next((kind for kind in _ORDER if kind in kinds), KernelKind.VECTOR))

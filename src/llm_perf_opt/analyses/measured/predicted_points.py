"""What a prediction says of the work that was measured: the same stages, added up as the measured time does."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.analyses.join.attribution import JoinedRecording, JoinedWork
from llm_perf_opt.analyses.measured.correction import centre, families
from llm_perf_opt.analyses.measured.measurement import MeasuredRun, Measurement, Quantity, run_of
from llm_perf_opt.analyses.time.predict import StageTime
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of, stage_names, stage_of_calls
from llm_perf_opt.core.measurement import DECODE
from llm_perf_opt.ops.op import KernelKind
from llm_perf_opt.ops.table import kernels_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPoint:
    """The stages of every phase at one workload, before any correction."""

    times: Mapping[str, Sequence[StageTime]]  # phase -> its stages
    steps: int  # decode steps in the times of `decode`
    batch: int | None
    context: int | None
    is_same_point: bool  # the workload of the prediction that is corrected

    def stages(self, quantity: Quantity, stage: str | None, phase: str | None) -> list[tuple[str, StageTime]]:
        """Phase and stage of everything that a measured time covers."""
        return [
            (name, covered)
            for name, all_stages in self.times.items()
            for covered in all_stages
            if is_covered(quantity, stage, name, covered.name) and phase in (None, name)
        ]

    def seconds(self, time: Measurement, phase: str | None) -> float:
        """What was predicted for the measured time; 0 where no stage is covered."""
        return sum(
            centre(found.device_time if time.is_device_time else found.wall) / self._steps(name)
            for name, found in self.stages(time.quantity, time.stage, phase)
        )

    def family_seconds(self, time: Measurement, phase: str | None) -> dict[str, float]:
        """The same by kind of kernel."""
        found: dict[str, float] = {}
        for name, stage in self.stages(time.quantity, time.stage, phase):
            for family, spent in families(stage).items():
                found[family] = found.get(family, 0.0) + spent / self._steps(name)
        return found

    def bound_s(self, time: Measurement, phase: str | None) -> float | None:
        """What no run is faster than, whichever experts its routers choose; None: not known of every stage."""
        total = 0.0
        for name, stage in self.stages(time.quantity, time.stage, phase):
            bound = stage.fewest_experts_bound or stage.lower_bound
            if bound is None:
                return None
            total += bound.seconds / self._steps(name)
        return total

    def _steps(self, phase: str) -> int:
        return self.steps if phase == DECODE else 1


def is_covered(quantity: Quantity, stage: str | None, phase: str, name: str) -> bool:
    """Whether a measured time includes a stage: the first token all phases before decode, a later one a decode step."""
    if quantity is Quantity.STAGE:
        return name == stage
    return (phase == DECODE) == (quantity is Quantity.TPOT)


def steps_of(graph: CallGraph) -> int:
    """How many decode steps a graph holds; 1 for other phases."""
    found = graph.runtime.get("decode_steps", 1) if graph.phase == DECODE else 1
    return found if isinstance(found, int) and found > 0 else 1


def batch_of(graph: CallGraph) -> int | None:
    """The sequences that a graph was traced with; None: its header does not say."""
    found = graph.workload.get("batch")
    return found if isinstance(found, int) else None


def context_of(graph: CallGraph) -> int | None:
    """Tokens of one sequence after the prefill, those of media included; None: the header does not say."""
    found = graph.workload.get("context_tokens", graph.workload.get("prompt_tokens"))
    return found if isinstance(found, int) else None


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

"""The figures that a budget may limit: costs of a stage, memory, the cache, and times on a device. None is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from llm_perf_opt.analyses.compare.explain import Comparison
from llm_perf_opt.analyses.compare.side import knows_cost
from llm_perf_opt.analyses.compare.stage_pairs import TOTAL, StagePair, stages_by_name
from llm_perf_opt.analyses.cost.stage_costs import StageCost
from llm_perf_opt.analyses.memory.need import PhaseMemory, RunMemory, run_memory
from llm_perf_opt.analyses.time.predict import StageTime, predict
from llm_perf_opt.analyses.time.rates import RateSource
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.report import Kind

COSTS: MappingProxyType[str, Callable[[StageCost], int | None]] = MappingProxyType(
    {
        "flops": lambda cost: cost.flops,
        "macs": lambda cost: cost.macs,
        "bytes": lambda cost: cost.bytes_moved,
        "parameters": lambda cost: cost.parameters,
        "activation_bytes": lambda cost: cost.activation_bytes,
        "calls": lambda cost: cost.calls,
        "ops": lambda cost: cost.ops,
        "collectives": lambda cost: cost.collectives,
        "collective_bytes": lambda cost: cost.collective_bytes,
    }
)
PRICED = ("flops", "macs", "bytes")  # sums over the ops that have a price
TIMES: MappingProxyType[str, Callable[[StageTime], float | None]] = MappingProxyType(
    {
        "bound": lambda time: time.lower_bound_s,
        "low": lambda time: time.wall.low,
        "high": lambda time: time.wall.high,
        "time": lambda time: time.wall.expected,
    }
)
PEAK_MEMORY, CACHE = "peak_memory", "cache"
KINDS: MappingProxyType[str, Kind] = MappingProxyType(  # of every metric
    {
        **dict.fromkeys(COSTS, Kind.COUNT),
        "flops": Kind.FLOPS,
        "macs": Kind.MACS,
        **dict.fromkeys(("bytes", "activation_bytes", "collective_bytes", PEAK_MEMORY, CACHE), Kind.BYTES),
        **dict.fromkeys(TIMES, Kind.SECONDS),
    }
)
METRICS = tuple(KINDS)


@dataclass(frozen=True, slots=True)
class SideFigure:
    """What one side has; None is unknown, and `why` says for what reason."""

    value: int | float | None
    why: str = ""


def _unknown(why: str) -> SideFigure:
    return SideFigure(None, why)


class SideFigures:
    """One side: the phases that are compared by the names of their pairs, and the rates that time them.

    `run` is every phase of the run, of which a decode step shows what the cache is.
    """

    def __init__(self, phases: Mapping[str, CallGraph], run: Sequence[CallGraph], rates: RateSource | None) -> None:
        self._phases, self._run, self._rates = phases, run, rates
        self._times: dict[str, tuple[StageTime, ...]] = {}

    def find(self, metric: str, pair: StagePair, cost: StageCost | None) -> SideFigure:
        """The figure of a stage, of a phase, or of all phases that are compared."""
        names = [pair.phase] if pair.phase else list(self._phases)
        for graph in (self._phases[name] for name in names):
            if graph.stopped_in is not None:
                return _unknown(f"the {graph.phase} stopped in {graph.stopped_in or '(root)'}, and the rest is missing")
        if metric in COSTS:
            return _cost(metric, pair, cost)
        if metric == CACHE:
            return self._cache()
        if metric == PEAK_MEMORY:
            return _largest([self._peak_memory(name, pair.stage) for name in names])
        return _sum([self._seconds(metric, name, pair.stage) for name in names])

    @cached_property
    def _memory(self) -> RunMemory:
        return run_memory(self._run)

    def _cache(self) -> SideFigure:
        cache = self._memory.cache
        return _unknown("no decode step shows what the cache is") if cache is None else SideFigure(cache.bytes)

    def _peak_memory(self, name: str, stage: str) -> SideFigure:
        """Memory is held by a whole phase: the stage that bears its name stands for all of it."""
        graph = self._phases[name]
        memory = next(one for graph_, one in zip(self._run, self._memory.phases, strict=True) if graph_ is graph)
        if memory.total_bytes is None:
            return _unknown(f"the trace of the {graph.phase} follows no memory")
        if stage in (TOTAL, graph.phase):
            return SideFigure(memory.total_bytes)
        return _stage_memory(memory, stage)

    def _seconds(self, metric: str, name: str, stage: str) -> SideFigure:
        graph = self._phases[name]
        if self._rates is None:
            return _unknown("no device was named")
        if not knows_cost(graph):
            return _unknown(f"the trace of the {graph.phase} holds no ops that could be timed")
        if name not in self._times:
            self._times[name] = predict(graph, self._rates)
        wanted = [time for time in self._times[name] if stage in (TOTAL, time.name)]
        if not wanted:
            return _unknown(f"nothing that takes time runs in {stage} of the {graph.phase}")
        return _sum([_stage_seconds(metric, time, self._rates) for time in wanted])


def _cost(metric: str, pair: StagePair, cost: StageCost | None) -> SideFigure:
    if cost is None:
        return _unknown(f"the trace has no stage {pair.stage}")
    if metric in PRICED and cost.unpriced:
        return _unknown(f"{cost.unpriced_ops:,} ops have no price, such as {cost.unpriced[0].name}")
    value = COSTS[metric](cost)
    return _unknown("the trace holds no ops that could be counted") if value is None else SideFigure(value)


def _stage_memory(memory: PhaseMemory, stage: str) -> SideFigure:
    """All that is held whatever runs, and what is alive at the peak of the stage."""
    found = next((one for one in memory.stages if one.stage == stage), None)
    if found is None or memory.total_bytes is None or memory.peak is None:
        return _unknown(f"nothing that takes memory runs in {stage} of the {memory.phase}")
    return SideFigure(memory.total_bytes - memory.peak.bytes + found.peak.bytes)


def _stage_seconds(metric: str, time: StageTime, rates: RateSource) -> SideFigure:
    value = TIMES[metric](time)
    if metric == "bound":
        return _unknown(f"what is necessary in {time.name} is not known") if value is None else SideFigure(value)
    if time.untimed:
        count, first = sum(time.untimed.values()), next(iter(time.untimed))
        return _unknown(f"{count:,} ops of {time.name} have no time, such as {first}")
    if value is None:
        return _unknown(f"the {rates.name} gives a band and no expected time; `high` is its upper edge")
    return SideFigure(value)


def _sum(figures: Sequence[SideFigure]) -> SideFigure:
    return next(_unknowns(figures), None) or SideFigure(sum(one.value for one in figures if one.value is not None))


def _largest(figures: Sequence[SideFigure]) -> SideFigure:
    return next(_unknowns(figures), None) or SideFigure(max(one.value for one in figures if one.value is not None))


def _unknowns(figures: Sequence[SideFigure]) -> Iterator[SideFigure]:
    return (figure for figure in figures if figure.value is None)


class BudgetFigures:
    """Both sides of a comparison: the stages by the names that a budget may use, and their figures.

    `runs` are all phases of the two runs, by default those that are compared; `rates` time both.
    """

    def __init__(
        self,
        comparisons: Sequence[Comparison],
        *,
        runs: tuple[Sequence[CallGraph], Sequence[CallGraph]] | None = None,
        rates: RateSource | None = None,
    ) -> None:
        self.stages = stages_by_name(comparisons)
        sides = [{one.phase: one.pair.sides[place].graph for one in comparisons} for place in (0, 1)]
        whole = runs or tuple(list(side.values()) for side in sides)
        self._sides = [SideFigures(side, run, rates) for side, run in zip(sides, whole, strict=True)]

    def both(self, metric: str, stage: str) -> tuple[SideFigure, SideFigure]:
        """The figure of the left and of the right side."""
        pair = self.stages[stage]
        left, right = self._sides
        return left.find(metric, pair, pair.left), right.find(metric, pair, pair.right)

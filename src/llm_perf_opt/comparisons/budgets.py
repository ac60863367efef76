"""Budgets on a comparison, such as `prefill.flops<=+1%`, `decode.time<=12ms` and `cache<=+2GiB`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from operator import eq, ge, gt, le, lt
from types import MappingProxyType

from llm_perf_opt.comparisons.causes import Comparison
from llm_perf_opt.comparisons.side import knows_cost
from llm_perf_opt.comparisons.stage_pairs import TOTAL, StagePair, stages_by_name
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Table
from llm_perf_opt.costs.memory.need import PhaseMemory, RunMemory, run_memory
from llm_perf_opt.costs.stage_costs import StageCost
from llm_perf_opt.timing.predict import StageTime, predict
from llm_perf_opt.timing.rates import RateSource

Relation = Callable[[Fraction, Fraction], bool]

RELATIONS: MappingProxyType[str, Relation] = MappingProxyType({"<=": le, ">=": ge, "==": eq, "<": lt, ">": gt})
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
UNITS: Mapping[Kind, Mapping[str, Fraction]] = MappingProxyType(  # as reports print them; no unit is the first of each
    {
        Kind.COUNT: {},
        Kind.FLOPS: {f"{prefix}FLOP": Fraction(size) for prefix, size in _DECIMAL.items()},
        Kind.MACS: {f"{prefix}MAC": Fraction(size) for prefix, size in _DECIMAL.items()},
        Kind.BYTES: {f"{prefix}B": Fraction(size) for prefix, size in (_DECIMAL | _BINARY).items()},
        Kind.SECONDS: {
            unit: Fraction(1, size) for unit, size in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9))
        },
    }
)
_GRAMMAR = re.compile(
    r"\s*(?:(?P<stage>[^<>=]+)\.)?(?P<metric>\w+)\s*(?P<relation><=|>=|==|<|>)"
    r"\s*(?P<sign>[+-]?)(?P<amount>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)?\s*(?P<unit>%|[A-Za-z]*)\s*"
)
_MOST_EXPONENT = 40  # beyond every figure there is; a larger one would only take time
_EXAMPLES = '"prefill.flops<=+1%", "total.bytes<=50GB", "decode.time<=+3%", "peak_memory<=20GiB", "sam.ops=="'


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A limit on one figure of the right side: an amount, or what the left side has plus an amount or a share of it."""

    text: str
    stage: str
    metric: str
    relation: str
    amount: Fraction  # in FLOPs, bytes, seconds or a count
    share: Fraction  # of what the left side has

    @property
    def kind(self) -> Kind:
        """What the figure is, hence its unit."""
        return KINDS[self.metric]

    @property
    def is_time(self) -> bool:
        """Whether a device must be known."""
        return self.metric in TIMES

    def limit(self, left: int | float | None) -> Fraction | None:
        """The most or least that the right side may have; None where it depends on a left side that is not known."""
        if not self.share:
            return self.amount
        return None if left is None else self.share * Fraction(left) + self.amount


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCheck:
    """A budget and the figures it was checked on. What is not known cannot be shown to hold, so it does not.

    `why` says what is not known, and on which side; empty: everything that the budget needs is.
    """

    budget: Budget
    left: int | float | None
    right: int | float | None
    limit: Fraction | None
    why: str = ""

    @property
    def holds(self) -> bool:
        """Whether the right side keeps to the budget."""
        if self.right is None or self.limit is None:
            return False
        return RELATIONS[self.budget.relation](Fraction(self.right), self.limit)


def parse_budget(text: str) -> Budget:
    """Read a budget; its stage is looked up later, when the traces are known."""
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise _refusal(text, "a budget is STAGE.METRIC or METRIC, a relation and an amount")
    metric, stage = match["metric"], match["stage"] or TOTAL
    _require_known("metric", metric, METRICS)
    if metric == CACHE and stage != TOTAL:
        raise _refusal(text, "the cache belongs to the run and not to a stage: write cache alone")
    value, share = _amount(text, match)
    return Budget(text=text.strip(), stage=stage, metric=metric, relation=match["relation"], amount=value, share=share)


def _amount(text: str, match: re.Match[str]) -> tuple[Fraction, Fraction]:
    """What is allowed on top of a share of the left side, and that share."""
    sign, amount, unit = match["sign"], match["amount"], match["unit"]
    if amount is None:
        if match["relation"] != "==" or sign or unit:
            raise _refusal(text, "only == works without an amount: it means the same as the left side")
        return Fraction(0), Fraction(1)
    if abs(int(re.split("[eE]", f"{amount}e0")[1])) > _MOST_EXPONENT:
        raise _refusal(text, f"the exponent of {amount} is too large")
    if unit == "%":
        if not sign:
            raise _refusal(text, f"{amount}% could mean a share or a change; write +{amount}% for a change")
        return Fraction(0), 1 + Fraction(sign + amount) / 100
    return Fraction(sign + amount) * _size_of(text, unit, match["metric"]), Fraction(1 if sign else 0)


def _size_of(text: str, unit: str, metric: str) -> Fraction:
    """How many FLOPs, bytes or seconds one of a unit is; a bare number is in these already."""
    known = UNITS[KINDS[metric]]
    if not unit:
        return Fraction(1)
    if unit not in known:
        named = f"units of {metric} are {', '.join(known)}" if known else f"{metric} has no unit"
        raise _refusal(text, f"{unit} is not a unit of {metric}: {named}")
    return known[unit]


def _refusal(text: str, why: str) -> UsageError:
    return UsageError(f"{text!r} is not a budget.", why=why, fix=f"write it like one of {_EXAMPLES}")


def check_budget(budget: Budget, figures: BudgetFigures) -> BudgetCheck:
    """Check a budget on the figures of both sides."""
    _require_known("stage", budget.stage, figures.stages)
    left, right = figures.both(budget.metric, budget.stage)
    return BudgetCheck(
        budget=budget,
        left=left.value,
        right=right.value,
        limit=budget.limit(left.value),
        why="; ".join(_holes(budget, left, right)),
    )


def _holes(budget: Budget, left: SideFigure, right: SideFigure) -> Iterator[str]:
    """What is not known of those figures that the budget needs."""
    if right.value is None:
        yield f"B is not known: {right.why}"
    if left.value is None and budget.share:
        yield f"A is not known: {left.why}"


def _require_known(kind: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        raise UsageError(
            f"There is no {kind} {name!r} for a budget.",
            why=f"known {kind}s: {', '.join(known)}",
            fix=f"did you mean {close[0]!r}?" if close else "pick one of the known names",
        )


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
        return _unknown("there is no decode step to read the cache from") if cache is None else SideFigure(cache.bytes)

    def _peak_memory(self, name: str, stage: str) -> SideFigure:
        """Memory is held by a whole phase: the stage that bears its name stands for all of it."""
        graph = self._phases[name]
        memory = next(phase for graph_, phase in zip(self._run, self._memory.phases, strict=True) if graph_ is graph)
        if memory.total_bytes is None:
            return _unknown(f"the trace of the {graph.phase} does not record memory")
        if stage in (TOTAL, graph.phase):
            return SideFigure(memory.total_bytes)
        return _stage_memory(memory, stage)

    def _seconds(self, metric: str, name: str, stage: str) -> SideFigure:
        graph = self._phases[name]
        if self._rates is None:
            return _unknown("no device was named")
        if not knows_cost(graph):
            return _unknown(f"the trace of the {graph.phase} has no ops to time")
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
    return _unknown("the trace has no ops to count") if value is None else SideFigure(value)


def _stage_memory(memory: PhaseMemory, stage: str) -> SideFigure:
    """All that is held whatever runs, and what is alive at the peak of the stage."""
    stage_memory = next((candidate for candidate in memory.stages if candidate.stage == stage), None)
    if stage_memory is None or memory.total_bytes is None or memory.peak is None:
        return _unknown(f"nothing that takes memory runs in {stage} of the {memory.phase}")
    return SideFigure(memory.total_bytes - memory.peak.bytes + stage_memory.peak.bytes)


def _stage_seconds(metric: str, time: StageTime, rates: RateSource) -> SideFigure:
    value = TIMES[metric](time)
    if metric == "bound":
        return _unknown(f"the necessary work of {time.name} is not known") if value is None else SideFigure(value)
    if time.untimed:
        count, first = sum(time.untimed.values()), next(iter(time.untimed))
        return _unknown(f"{count:,} ops of {time.name} have no time, such as {first}")
    if value is None:
        return _unknown(f"the {rates.name} gives low and high estimates, but no expected time; use `high`")
    return SideFigure(value)


def _sum(figures: Sequence[SideFigure]) -> SideFigure:
    return next(_unknowns(figures), None) or SideFigure(
        sum(figure.value for figure in figures if figure.value is not None)
    )


def _largest(figures: Sequence[SideFigure]) -> SideFigure:
    return next(_unknowns(figures), None) or SideFigure(
        max(figure.value for figure in figures if figure.value is not None)
    )


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
        sides = [
            {comparison.phase: comparison.pair.sides[place].graph for comparison in comparisons} for place in (0, 1)
        ]
        run_graphs = runs or tuple(list(side.values()) for side in sides)
        self._sides = [SideFigures(side, run, rates) for side, run in zip(sides, run_graphs, strict=True)]

    def both(self, metric: str, stage: str) -> tuple[SideFigure, SideFigure]:
        """The figure of the left and of the right side."""
        pair = self.stages[stage]
        left, right = self._sides
        return left.find(metric, pair, pair.left), right.find(metric, pair, pair.right)


_HELD = (PEAK_MEMORY, CACHE)


def change_text(left: float | None, right: float | None) -> str:
    """By how many per cent the right side is above the left."""
    if left is None or right is None:
        return "?"
    if left == right:
        return "="
    return f"{100 * (right - left) / left:+.2f} %" if left else "new"


def budget_tables(verdicts: Sequence[BudgetCheck]) -> Iterator[Table]:
    """Costs as exact counts, memory in bytes, times in seconds."""
    costs = [verdict for verdict in verdicts if not verdict.budget.is_time and verdict.budget.metric not in _HELD]
    memory_verdicts = [verdict for verdict in verdicts if verdict.budget.metric in _HELD]
    times = [verdict for verdict in verdicts if verdict.budget.is_time]
    titles = (
        ("Budgets", costs, Kind.COUNT),
        ("Budgets on memory", memory_verdicts, Kind.BYTES),
        ("Budgets on time", times, Kind.SECONDS),
    )
    return (_budget_table(title, of_kind, kind) for title, of_kind, kind in titles if of_kind)


def _budget_table(title: str, verdicts: Sequence[BudgetCheck], kind: Kind) -> Table:
    columns = (
        Column("budget"),
        Column("A", kind),
        Column("B", kind),
        Column("change"),
        Column("limit for B", kind),
        Column("verdict"),
    )
    rows = [
        (
            verdict.budget.text,
            verdict.left,
            verdict.right,
            change_text(verdict.left, verdict.right),
            _limit(verdict.limit, kind),
            "holds" if verdict.holds else "violated" if not verdict.why else "not known",
        )
        for verdict in verdicts
    ]
    return Table(title=title, columns=columns, rows=tuple(rows))


def _limit(limit: Fraction | None, kind: Kind) -> Cell:
    if limit is None:
        return None
    return float(limit) if kind is Kind.SECONDS else round(limit)


def budget_notes(verdicts: Sequence[BudgetCheck]) -> Iterator[Note]:
    """One warning for each budget that does not hold."""
    for verdict in verdicts:
        if verdict.why:
            yield Note(f"Budget not checked: {verdict.budget.text}: {verdict.why}.", Level.WARNING)
        elif not verdict.holds:
            yield Note(f"Budget violated: {verdict.budget.text}.", Level.WARNING)


def time_table(figures: BudgetFigures, machine: str) -> Table:
    """The lower bound of each stage, and its expected time; where no stage has one, its high estimate."""
    named = sorted(figures.stages.items(), key=lambda item: not item[1].phase)  # all phases together come last
    full_names = [(pair.phase or "all", pair.stage, name) for name, pair in named if _is_full_name(name, pair.phase)]
    bounds, expected, high = (
        {name: tuple(figure.value for figure in figures.both(metric, name)) for *_, name in full_names}
        for metric in ("bound", "time", "high")
    )
    is_expected = any(value is not None for pair in expected.values() for value in pair)
    shown, word = (expected, "expected") if is_expected else (high, "high")
    columns = (
        Column("phase"),
        Column("stage"),
        Column("lower bound A", Kind.SECONDS),
        Column("lower bound B", Kind.SECONDS),
        Column("bound change"),
        Column(f"{word} A", Kind.SECONDS),
        Column(f"{word} B", Kind.SECONDS),
        Column(f"{word} change"),
    )
    rows = [
        (phase, stage, *bounds[name], change_text(*bounds[name]), *shown[name], change_text(*shown[name]))
        for phase, stage, name in full_names
    ]
    return Table(title=f"Times on {machine}", columns=columns, rows=tuple(rows[:-1]), footer=rows[-1])


def _is_full_name(name: str, phase: str) -> bool:
    return not phase or name.startswith(f"{phase}.")

"""What one rank of each kind holds, runs and communicates in every phase, and how equal the kinds are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds
from llm_perf_opt.core.collectives import CollectiveKind, collective_kind, collective_of
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.parallel_plan import ParallelPlan, plan_in
from llm_perf_opt.core.report import Column, Kind, Note, Table, table_of
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.costs.memory.need import (
    PhaseMemory,
    ReplicatedWeights,
    replicated_notes,
    replicated_table,
    replicated_weights,
    run_memory,
)
from llm_perf_opt.serving.fit import ServingFit, traced_fit
from llm_perf_opt.timing.collective_time import sent_bytes
from llm_perf_opt.timing.lower_bound import bytes_from_memory
from llm_perf_opt.timing.predict import StageTime, predict, total_wall
from llm_perf_opt.timing.rates import Band, RateSource, total
from llm_perf_opt.timing.stage_work import work_of

RANKS_TABLE = "Ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSum:
    """All collectives of one kind in a phase. None: the trace does not say between which ranks they run."""

    kind: CollectiveKind
    count: int
    payload_bytes: int | None
    sent_bytes: int | None  # by this rank, over a ring or to each peer


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTime:
    """A phase on the devices of a plan: all its stages, one after the other. None is unknown.

    `communication` is the time on the links if nothing else runs, `exposed` what of it nothing hides, with full overlap
    and with none. `weights_s` is the least time to read the weights that any token needs, each once.
    """

    lower_bound_s: float | None
    low_s: float
    high_s: float
    expected_s: float | None = None  # None: the source gives low and high alone
    communication: Band | None
    exposed: Band | None
    weights_s: float | None

    @property
    def exposed_share(self) -> float | None:
        """Communication that nothing hides, over the high estimate of the phase."""
        return None if self.exposed is None or not self.high_s else self.exposed.high / self.high_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPhase:
    """One phase of one rank. `needed_bytes` is all that must be in its memory at once; None is unknown."""

    phase: str
    weight_bytes: int
    cache_bytes: int | None
    needed_bytes: int | None
    flops: int
    bytes_moved: int
    launches: int
    collectives: tuple[CollectiveSum, ...]
    time: RankTime | None = None  # None: no device was named

    @property
    def sent_bytes(self) -> int | None:
        """Bytes that this rank sends in all collectives; None while one of them is unknown."""
        known = [collective.sent_bytes for collective in self.collectives if collective.sent_bytes is not None]
        return sum(known) if len(known) == len(self.collectives) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFigures:
    """One kind of rank: `rank` stands for `ranks` of them, all replicas counted.

    `replicated` are the replicated weights; None: the trace does not say. `serving` is whether the device
    serves the traced batch; None: no device, or no decode step.
    """

    rank: int
    ranks: int
    stage: int  # of the pipeline
    phases: tuple[RankPhase, ...]
    replicated: tuple[ReplicatedWeights, ...] | None
    serving: ServingFit | None

    @property
    def weight_bytes(self) -> int:
        """Weights of the phase with the most; with one model for all phases these are all weights."""
        return max((phase.weight_bytes for phase in self.phases), default=0)

    @property
    def replicated_bytes(self) -> int | None:
        """Weights that are replicated on every rank."""
        return None if self.replicated is None else sum(weight.bytes for weight in self.replicated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """One figure over all ranks; `imbalance` is the largest over the mean, 1 where all are equal."""

    figure: str
    phase: str
    least: int
    mean: float
    most: int

    @property
    def imbalance(self) -> float | None:
        """The largest over the mean; None where no rank has any of it."""
        return self.most / self.mean if self.mean else None


Times = Mapping[str, Sequence[StageTime]]  # phase -> its stages


def rank_figures(graphs: Sequence[CallGraph], device: Device | None = None, times: Times | None = None) -> RankFigures:
    """The figures of one rank from its phases; with a device whether it holds them, with times how long they take."""
    plan, memory = plan_in(graphs[0].deployment) or ParallelPlan(), run_memory(graphs)
    fit = None if device is None else traced_fit(graphs, device)
    cache_bytes = None if memory.cache is None else memory.cache.bytes
    rank = plan.rank or 0
    return RankFigures(
        rank=rank,
        ranks=plan.ranks_like(rank),
        stage=plan.stage_of(rank),
        phases=tuple(
            _phase(
                graph,
                needed,
                cache_bytes,
                None if times is None or device is None else rank_time(times[graph.phase], device),
            )
            for graph, needed in zip(graphs, memory.phases, strict=True)
        ),
        replicated=replicated_weights(graphs[0]),
        serving=None if fit is None else fit[1],
    )


def _phase(graph: CallGraph, memory: PhaseMemory, cache_bytes: int | None, time: RankTime | None) -> RankPhase:
    work = work_of(graph.phase, count_kinds(graph))
    return RankPhase(
        phase=graph.phase,
        weight_bytes=memory.weight_bytes,
        cache_bytes=cache_bytes,
        needed_bytes=memory.total_bytes,
        flops=work.flops,
        bytes_moved=work.bytes_moved,
        launches=work.launches,
        collectives=collective_sums(graph),
        time=time,
    )


def collective_sums(graph: CallGraph) -> tuple[CollectiveSum, ...]:
    """The collectives of a phase by kind, in the order in which the kinds are declared."""
    counts: Counter[CollectiveKind] = Counter()
    payload: Counter[CollectiveKind] = Counter()
    sent: dict[CollectiveKind, float] = {}
    unknown: set[CollectiveKind] = set()
    for op, count in count_kinds(graph).items():
        kind = collective_kind(op.name)
        if kind is None:
            continue
        counts[kind] += count
        collective = collective_of(op)
        if collective is None:
            unknown.add(kind)
            continue
        payload[kind] += collective.payload_bytes * count
        sent[kind] = sent.get(kind, 0.0) + sent_bytes(collective) * count
    return tuple(
        CollectiveSum(
            kind=kind,
            count=counts[kind],
            payload_bytes=None if kind in unknown else payload[kind],
            sent_bytes=None if kind in unknown else round(sent[kind]),
        )
        for kind in CollectiveKind
        if counts[kind]
    )


def rank_time(stages: Sequence[StageTime], device: Device) -> RankTime:
    """The stages of a phase, one after the other."""
    wall, bounds = total_wall(stages), [stage.lower_bound_s for stage in stages]
    communicating = [stage for stage in stages if stage.communication is not None]
    return RankTime(
        lower_bound_s=None if None in bounds else sum(bound or 0.0 for bound in bounds),
        low_s=wall.low,
        high_s=wall.high,
        expected_s=wall.expected,
        communication=_all(
            None if stage.communication is None else stage.communication.band for stage in communicating
        ),
        exposed=_all(stage.exposed for stage in communicating),
        weights_s=_weights_s(stages, device),
    )


def _weights_s(stages: Sequence[StageTime], device: Device) -> float | None:
    """The time to read the weights at full bandwidth, with the fewest experts that any routing touches."""
    seconds = 0.0
    for stage in stages:
        needs = stage.work.necessary
        if needs is None or needs.weight_bytes is None:
            return None
        least = needs.weight_bytes - (needs.expert_bytes or 0) + (needs.fewest_expert_bytes or 0)
        seconds += bytes_from_memory(least, device, forwards=needs.forwards) / device.bandwidth_bytes_per_s
    return seconds


def _all(bands: Iterable[Band | None]) -> Band | None:
    every_band = list(bands)
    known = [band for band in every_band if band is not None]
    return total(known) if len(known) == len(every_band) else None


_BALANCED: Mapping[str, Callable[[RankPhase], int | None]] = {
    "weight bytes": lambda phase: phase.weight_bytes,
    "FLOPs": lambda phase: phase.flops,
    "bytes moved": lambda phase: phase.bytes_moved,
    "memory bytes": lambda phase: phase.needed_bytes,
}


def balances(kinds: Sequence[RankFigures]) -> tuple[Balance, ...]:
    """How equal the kinds of rank are, figure by figure; nothing where there is but one kind."""
    if len(kinds) < 2:
        return ()
    spreads = []
    for place, phase in enumerate(kinds[0].phases):
        for name, figure in _BALANCED.items():
            values = [(kind.ranks, figure(kind.phases[place])) for kind in kinds]
            known = [(ranks, value) for ranks, value in values if value is not None]
            if len(known) == len(values):
                amounts = [value for _, value in known]
                mean = sum(ranks * value for ranks, value in known) / sum(ranks for ranks, _ in known)
                spreads.append(
                    Balance(figure=name, phase=phase.phase, least=min(amounts), mean=mean, most=max(amounts))
                )
    return tuple(spreads)


Phases = Sequence[CallGraph]
PhaseTimes = Sequence[Sequence[StageTime]]


def rank_kinds(
    kinds: Sequence[Phases], rates: RateSource | None, plan: ParallelPlan, known_times: Sequence[PhaseTimes] = ()
) -> tuple[RankFigures, ...]:
    """The figures of each kind of rank, with as many ranks as it stands for."""
    known = (*known_times, *(None for _ in kinds[len(known_times) :]))
    figures = tuple(_figures(graphs, rates, times) for graphs, times in zip(kinds, known, strict=True))
    counts = plan.ranks_of_kinds([kind.rank for kind in figures])
    return tuple(replace(kind, ranks=count) for kind, count in zip(figures, counts, strict=True))


def _figures(graphs: Phases, rates: RateSource | None, known: PhaseTimes | None) -> RankFigures:
    if rates is None or rates.device is None:
        return rank_figures(graphs)
    times = [predict(graph, rates) for graph in graphs] if known is None else known
    by_phase = {graph.phase: phase_times for graph, phase_times in zip(graphs, times, strict=True)}
    return rank_figures(graphs, rates.device, by_phase)


def rank_tables(plan: ParallelPlan, kinds: Sequence[RankFigures], *, with_times: bool) -> tuple[Table, ...]:
    """Ranks by kind and phase, the balance between kinds, and what is replicated on every rank."""
    tables = [ranks_table(kinds)]
    if with_times and any(phase.time is not None for kind in kinds for phase in kind.phases):
        tables.append(communication_table(kinds))
    if compared := balances(kinds):
        tables.append(_balance_table(compared))
    first = kinds[0]
    if first.replicated and plan.replica_ranks > 1:
        tables.append(replicated_table(first.replicated, first.weight_bytes))
    return tuple(tables)


def ranks_table(kinds: Sequence[RankFigures]) -> Table:
    """One row per kind of rank and phase."""
    has_fit = any(kind.serving is not None for kind in kinds)
    fit = {
        Column("serves"): lambda row: _yes_no(row[0]),
        Column("room left", Kind.BYTES): lambda row: room_left(row[0]),
    }
    return table_of(
        RANKS_TABLE,
        [(kind, phase) for kind in kinds for phase in kind.phases],
        {
            Column("rank", Kind.COUNT): lambda row: row[0].rank,
            Column("ranks alike", Kind.COUNT): lambda row: row[0].ranks,
            Column("phase"): lambda row: row[1].phase,
            **(fit if has_fit else {}),
            Column("weights", Kind.BYTES): lambda row: row[1].weight_bytes,
            Column("KV cache", Kind.BYTES): lambda row: row[1].cache_bytes,
            Column("needed in all", Kind.BYTES): lambda row: row[1].needed_bytes,
            Column("FLOPs", Kind.FLOPS): lambda row: row[1].flops,
            Column("bytes moved", Kind.BYTES): lambda row: row[1].bytes_moved,
            Column("kernel launches", Kind.COUNT): lambda row: row[1].launches,
            Column("collectives"): lambda row: describe_collectives(row[1]),
            Column("bytes sent", Kind.BYTES): lambda row: row[1].sent_bytes,
        },
    )


def communication_table(kinds: Sequence[RankFigures]) -> Table:
    """Bound and band of each phase of each kind of rank, and its communication."""
    rows: list[tuple[RankFigures, RankPhase]] = [
        (kind, phase) for kind in kinds for phase in kind.phases if phase.time is not None
    ]
    is_expected = any(phase.time is not None and phase.time.expected_s is not None for _, phase in rows)
    return Table(
        title="Time of each kind of rank",
        columns=(
            Column("rank", Kind.COUNT),
            Column("phase"),
            Column("lower bound", Kind.SECONDS),
            Column("low", Kind.SECONDS),
            *((Column("expected", Kind.SECONDS),) if is_expected else ()),
            Column("high", Kind.SECONDS),
            Column("communication low", Kind.SECONDS),
            Column("communication high", Kind.SECONDS),
            Column("exposed low", Kind.SECONDS),
            Column("exposed high", Kind.SECONDS),
            Column("exposed share", Kind.RATIO),
        ),
        rows=tuple(
            (
                kind.rank,
                phase.phase,
                time.lower_bound_s,
                time.low_s,
                *((time.expected_s,) if is_expected else ()),
                time.high_s,
                None if time.communication is None else time.communication.low,
                None if time.communication is None else time.communication.high,
                None if time.exposed is None else time.exposed.low,
                None if time.exposed is None else time.exposed.high,
                time.exposed_share,
            )
            for kind, phase in rows
            if (time := phase.time) is not None
        ),
    )


def _balance_table(compared: Sequence[Balance]) -> Table:
    """Figures of different units in one table, so each is named with its unit in words."""
    columns = (
        Column("phase"),
        Column("figure"),
        Column("least", Kind.COUNT),
        Column("mean", Kind.COUNT),
        Column("most", Kind.COUNT),
        Column("most over mean", Kind.RATIO),
    )
    rows = tuple(
        (balance.phase, balance.figure, balance.least, round(balance.mean), balance.most, balance.imbalance)
        for balance in compared
    )
    return Table(title="Balance between ranks", columns=columns, rows=rows)


def describe_collectives(phase: RankPhase) -> str:
    """As text: `160 all-reduce of 2.5 GiB, 1 all-gather of 250 KiB`."""
    collectives = [
        f"{collective.count:,} {collective.kind}"
        + ("" if collective.payload_bytes is None else f" of {format_bytes(collective.payload_bytes)}")
        for collective in phase.collectives
    ]
    return ", ".join(collectives) or "none"


def room_left(kind: RankFigures) -> int | None:
    """What is free once weights, working memory and the cache of the batch are there; below zero: too much."""
    fit = kind.serving
    return (
        None if fit is None or fit.room_bytes is None or fit.cache_bytes is None else fit.room_bytes - fit.cache_bytes
    )


def _yes_no(kind: RankFigures) -> str | None:
    fits = None if kind.serving is None else kind.serving.fits
    return None if fits is None else "yes" if fits else "no"


def rank_notes(
    plan: ParallelPlan, graph: CallGraph, kinds: Sequence[RankFigures], *, with_times: bool
) -> Iterator[Note]:
    """What a row stands for."""
    yield Note(
        f"Plan {plan.describe()}: {plan.ranks:,} ranks. A row of the table stands for as many ranks as it says. "
        "The bytes of collectives are their payloads; bytes sent count a ring, or every peer."
    )
    if with_times and any(phase.time is not None for kind in kinds for phase in kind.phases):
        yield Note(
            "Communication may overlap with other work: the lower bound is the largest of compute, memory and "
            "communication. The band runs from full overlap to none. Exposed is what nothing hides, at both ends."
        )
    if kinds[0].replicated:
        yield from replicated_notes(graph, kinds[0].replicated, kinds[0].weight_bytes)

"""How many GPUs: every plan of every GPU by its steady state, as many replicas as the demand needs, the best first."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from llm_perf_opt.core.hardware.links import Cluster, load_links, parse_cluster
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.capacity.fleets import Deadline
from llm_perf_opt.serving.capacity.outcome import Slo
from llm_perf_opt.serving.capacity.search import PlanCandidate, SearchSpace, candidates
from llm_perf_opt.serving.capacity.steady_state import MeanRequest, SteadyState
from llm_perf_opt.serving.served_model import ServedModel
from llm_perf_opt.timing.rates import Band
from llm_perf_opt.timing.step.request_time import banded, first_token_shares, request_fit
from llm_perf_opt.timing.step.step_table import UntimedKernels

log = logging.getLogger(__name__)

MOST_GPUS = 512
NO_LIMIT = "none yet"  # the demand leaves room for half as many sequences more
_LARGEST_REPLICA = 64  # GPUs that are tried for one replica; larger fleets are more of them
_STAGES = (2, 4, 8)  # of a pipeline, tried where nothing fits without one
HIGH_LOAD = 0.7  # beyond, replays differ by more than 8 % now and then: docs/evidence/steady-states.md
_HOUR_S, _MILLION = 3600.0, 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a fleet has to serve: users at once, a request rate, or pages by a deadline. None of them: one replica."""

    mean: MeanRequest
    users: int | None = None
    requests_per_s: float | None = None
    deadline: Deadline | None = None
    slo: Slo | None = None
    has_drawn_lengths: bool = False
    is_engine_only: bool = False
    max_gpus: int = MOST_GPUS

    @property
    def is_closed(self) -> bool:
        """Whether requests wait for others to end; else they come at random."""
        return self.requests_per_s is None

    @property
    def share(self) -> float:
        """The share of the requests for which a limit holds."""
        return 0.99 if self.slo is None else self.slo.share


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuChoice:
    """A GPU to choose from; `count` is the number of GPUs where it is fixed."""

    cluster: Cluster
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSide:
    """The workers of a fleet that only read prompts: their plan, how busy they are, and how a cache leaves them."""

    plan: ParallelPlan
    workers: int
    load: float
    transfer_s: float

    @property
    def gpus(self) -> int:
        """The GPUs of all of them."""
        return self.workers * self.plan.replica_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedFleet:
    """Replicas of one plan and their steady state. `broken` names a limit that no number of them meets, or is None.

    With a `prefill` side the replicas only decode.
    """

    candidate: PlanCandidate
    demand: Demand
    replicas: int
    state: SteadyState
    broken: str | None
    limit: str  # the bottleneck: what the next requests would meet first
    price_per_hour: float | None = None  # of one GPU
    prefill: PrefillSide | None = None

    @property
    def gpus(self) -> int:
        """The GPUs of all replicas and of the workers that only read prompts."""
        own = self.replicas * self.candidate.replica.considered.plan.replica_ranks
        return own if self.prefill is None else own + self.prefill.gpus

    @property
    def device(self) -> str:
        """The id of the GPU."""
        return self.candidate.cluster.device.id

    @property
    def engine(self) -> str:
        """The engine that supplies the kernels."""
        return self.candidate.served.engine

    @property
    def load(self) -> float | None:
        """Throughput over the highest throughput of the replicas; None where users wait for their answers."""
        if self.demand.requests_per_s is None or self.prefill is not None:
            return None if self.prefill is None else self.prefill.load
        most = max(state.requests_per_s for state in self.candidate.replica.considered.states)
        return self.state.requests_per_s / most

    @property
    def is_measured(self) -> bool:
        """Whether its times come from measured kernels; else from the data sheet."""
        return self.candidate.served.is_measured(self.candidate.cluster)

    @property
    def plan(self) -> str:
        """The plan of one replica, or the workers of both kinds."""
        plan = self.candidate.replica.considered.plan.describe()
        if self.prefill is None:
            return plan
        return f"prefill {self.prefill.workers} x {self.prefill.plan.describe()}, decode {self.replicas} x {plan}"

    @property
    def prompt_share(self) -> float:
        """The share of the cost that is for prompts: of the time, or of the GPUs where prompts have their own."""
        return self.state.prompt_share if self.prefill is None else self.prefill.gpus / self.gpus

    @property
    def requests_per_s(self) -> float:
        """Throughput of the fleet. Users ask again after each answer, so Little's law gives it from their number."""
        users = self.demand.users
        if users is None:
            return self.replicas * self.state.requests_per_s
        return users / (self.state.latency_s + self.state.away_s)

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens of the fleet."""
        return self.requests_per_s * self.demand.mean.output_tokens

    @property
    def users(self) -> float:
        """Requests in the system at once, by Little's law."""
        return self.requests_per_s * self.state.latency_s

    @property
    def tpot(self) -> ServedTime:
        """Time per output token."""
        table = self.candidate.replica.table
        expected = self.state.token_s
        low, high = table.low, table.high
        if (speculation := self.candidate.replica.steady.speculation) is not None:
            fewest, most = speculation.kept_ends
            low, high = (end * speculation.tokens_per_step / kept for end, kept in ((low, most), (high, fewest)))
        return ServedTime(
            expected_s=expected,
            at_share_s=self.state.per_token_at(self.demand.share),
            band=Band(expected * low, expected * high, expected),
        )

    @property
    def ttft(self) -> ServedTime:
        """Time to first token."""
        expected = self.state.first_token_s
        return ServedTime(
            expected_s=expected,
            at_share_s=self.state.first_token_at(self.demand.share),
            band=banded(expected, request_fit().ttft),
        )

    @property
    def cost_per_hour(self) -> float | None:
        """The cost of the fleet; None without a price."""
        return None if self.price_per_hour is None else self.price_per_hour * self.gpus

    @property
    def cost_per_million_output(self) -> float | None:
        """The cost of the time that steps spend on decoding, over the output tokens."""
        return self._per_million(1 - self.prompt_share, self.output_tokens_per_s)

    @property
    def cost_per_million_input(self) -> float | None:
        """The cost of the time that steps spend on prompts, over the input tokens."""
        return self._per_million(self.prompt_share, self.requests_per_s * self.demand.mean.prompt_tokens)

    @property
    def cost_per_million_requests(self) -> float | None:
        """The cost of a million requests; each is one page where pages are read."""
        return self._per_million(1.0, self.requests_per_s)

    @property
    def hours(self) -> float | None:
        """Until the last page of a deadline is read; None: there is none."""
        deadline = self.demand.deadline
        return None if deadline is None else deadline.pages / self.requests_per_s / _HOUR_S

    @property
    def job_cost(self) -> float | None:
        """The cost of all pages of a deadline."""
        return None if self.hours is None or self.cost_per_hour is None else self.hours * self.cost_per_hour

    def _per_million(self, share: float, per_s: float) -> float | None:
        if self.cost_per_hour is None or self.broken is not None or not per_s:
            return None
        return self.cost_per_hour / _HOUR_S * share / per_s * _MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTime:
    """The median with the band that held eight of ten measured servers, and the time at the SLO's percentile."""

    expected_s: float
    at_share_s: float
    band: Band


def search_cluster(name: str, max_gpus: int, devices_file: Path | None = None) -> Cluster:
    """As many GPUs of a kind as one replica may take: part of a node, or whole nodes."""
    node = load_links(devices_file).nodes.get(name)
    most = min(max_gpus, _LARGEST_REPLICA)
    if node is not None and most > node.gpus:
        most -= most % node.gpus
    return parse_cluster(f"{most}x {name}", devices_file)


def sized_fleets(
    served: Sequence[ServedModel], choices: Sequence[GpuChoice], demand: Demand, space: SearchSpace, refused: list[str]
) -> Iterator[SizedFleet]:
    """Every plan that fits, sized for the demand; the names of plans that do not fit are added to `refused`.

    A GPU without times is left out with a warning; it is an error where it is the only one.
    """
    for model in served:
        for choice in choices:
            try:
                yield from _on_any_stages(model, choice, demand, space, refused)
            except UntimedKernels as error:
                if len(choices) == 1:
                    raise
                log.warning("%s is left out. %s", choice.cluster.device.id, error.what)


def _on_any_stages(
    served: ServedModel, choice: GpuChoice, demand: Demand, space: SearchSpace, refused: list[str]
) -> list[SizedFleet]:
    """The plans without a pipeline; where none fits, the plans with the fewest stages that fit."""
    fleets = list(_on(served, choice, demand, space, refused))
    if not fleets and space.pp == 1:
        for stages in _STAGES:
            if stages <= choice.cluster.count:
                fleets = fleets or list(_on(served, choice, demand, replace(space, pp=stages), refused))
    return fleets


def _on(
    served: ServedModel, choice: GpuChoice, demand: Demand, space: SearchSpace, refused: list[str]
) -> Iterator[SizedFleet]:
    client = (
        None if demand.is_engine_only else first_token_shares(served.engine, has_drawn_lengths=demand.has_drawn_lengths)
    )
    fewest = [demand.max_gpus]

    def is_worth(plan: ParallelPlan) -> bool:
        """A replica with more GPUs than a whole fleet that meets the demand cannot be cheaper."""
        return choice.count is not None or demand.deadline is not None or plan.replica_ranks <= fewest[0]

    for candidate in candidates(
        served,
        [choice.cluster],
        demand.mean,
        space,
        refused,
        is_closed=demand.is_closed,
        client=client,
        is_worth=is_worth,
    ):
        fleet = sized(candidate, choice, demand)
        if fleet.broken is None:
            fewest[0] = min(fewest[0], fleet.gpus)
        yield fleet


def sized(candidate: PlanCandidate, choice: GpuChoice, demand: Demand) -> SizedFleet:
    """As many replicas as the demand needs, or as many as were given."""
    replica = candidate.replica
    ranks, steady, best = replica.considered.plan.replica_ranks, replica.steady, replica.considered.best
    given = candidate.replicas if choice.count is not None else None
    if best is None:  # not even one request at a time
        alone = steady.at(1)
        broken = alone.broken(demand.slo) if demand.slo is not None else None
        return SizedFleet(
            candidate=candidate, demand=demand, replicas=given or 1, state=alone, broken=broken or "queue", limit="time"
        )
    most = _most_users(candidate, demand) if demand.users is not None else best.sequences
    replicas = given or _replicas(demand, best, most)
    if given is None and (demand.requests_per_s is not None or (demand.users is not None and best.away_s)):
        replicas = _enough(candidate, demand, replicas, best)
    state = _working(candidate, demand, replicas, best)
    broken = None
    if state is None:
        state, broken = best, "queue"
    elif demand.users is not None and demand.users / replicas > steady.at(steady.most).users:
        broken = "cache"
    elif not state.keeps(demand.slo):
        broken = (demand.slo and state.broken(demand.slo)) or "queue"
    if given is None and replicas * ranks > demand.max_gpus:
        broken = broken or f"{demand.max_gpus} GPUs"
    return SizedFleet(
        candidate=candidate,
        demand=demand,
        replicas=replicas,
        state=state,
        broken=broken,
        limit=_limit(candidate, demand, state),
    )


def _most_users(candidate: PlanCandidate, demand: Demand) -> int:
    """The most users of one replica that together stay within the limits."""
    steady = candidate.replica.steady
    low, high = 1, min(steady.most, demand.users or 1) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if steady.at(middle).keeps(demand.slo) else (low, middle)
    return max(low, int(steady.at(low).users))


def _replicas(demand: Demand, best: SteadyState, most_users: int) -> int:
    if demand.users is not None:
        return ceil(demand.users / most_users)
    per_s = demand.requests_per_s
    if demand.deadline is not None:
        per_s = demand.deadline.pages / demand.deadline.seconds
    return 1 if per_s is None else max(1, ceil(per_s / best.requests_per_s - 1e-9))


def _enough(candidate: PlanCandidate, demand: Demand, fewest: int, best: SteadyState) -> int:
    """The smallest number of replicas, from `fewest` on, that meets the limits with random arrivals too.

    Random arrivals make longer steps than a constant number of decoding sequences, and users who think come at random.
    `fewest` also where none does.
    """
    most = max(fewest, demand.max_gpus // candidate.replica.considered.plan.replica_ranks)

    def keeps(count: int) -> bool:
        state = _working(candidate, demand, count, best)
        return state is not None and state.keeps(demand.slo)

    low, high = fewest - 1, fewest
    while not keeps(high):
        if high == most:
            return fewest
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


def _working(candidate: PlanCandidate, demand: Demand, replicas: int, best: SteadyState) -> SteadyState | None:
    """The steady state of one replica; None: more requests arrive than it can answer."""
    steady = candidate.replica.steady
    if demand.users is not None:
        return steady.at_users(demand.users / replicas)
    if demand.requests_per_s is not None:
        return steady.at_rate(demand.requests_per_s / replicas)
    return best


def _limit(candidate: PlanCandidate, demand: Demand, state: SteadyState) -> str:
    """What breaks first with half as many sequences more: a limit of the SLO, the cache, the scheduler, or nothing."""
    steady = candidate.replica.steady
    more = ceil(state.sequences * 1.5)
    limits, mean = steady.limits, steady.mean
    if demand.slo is not None and (broken := steady.at(min(more, steady.most)).broken(demand.slo)) is not None:
        return broken
    if more <= steady.most:
        return "steps" if demand.users is None and demand.requests_per_s is None else NO_LIMIT
    if (limits.cache_tokens - mean.shared_tokens) / (
        mean.prompt_tokens + mean.output_tokens - mean.shared_tokens
    ) < more:
        return "cache"
    return "max_num_seqs" if limits.sequences < more else "max_num_batched_tokens"


def ranked(fleets: Iterable[SizedFleet]) -> list[SizedFleet]:
    """Fleets that meet the demand come first, the cheapest first; a fleet without a price comes after priced fleets.

    Times of a data sheet are what no engine was measured to reach (MLPerf's AMD rows ran 1.7 to 2.3 times slower), so
    a fleet timed by one comes after fleets timed by measured kernels. Where prefill workers were asked for, fleets with
    them come before the others, which stay to compare.
    """
    return sorted(fleets, key=_rank)


def _rank(fleet: SizedFleet) -> tuple[bool, bool, bool, bool, float, int, float]:
    cost = fleet.job_cost if fleet.demand.deadline is not None else fleet.cost_per_hour
    order = fleet.broken is not None, fleet.prefill is None, not fleet.is_measured, cost is None
    return *order, cost or 0.0, fleet.gpus, fleet.tpot.at_share_s


def best_of_each(fleets: Sequence[SizedFleet]) -> list[SizedFleet]:
    """The first fleet of each GPU and engine, with and without prefill workers."""
    first_of: dict[tuple[str, str, bool], SizedFleet] = {}
    for fleet in fleets:
        first_of.setdefault((str(fleet.candidate.cluster), fleet.engine, fleet.prefill is None), fleet)
    return list(first_of.values())

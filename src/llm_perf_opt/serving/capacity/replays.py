"""Replays of candidates at the expected, low and high step times, and the fewest replicas that meet the SLO."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from itertools import cycle
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Self

from llm_perf_opt.serving.capacity.fleets import Fleet
from llm_perf_opt.serving.capacity.outcome import ReplayOutcome, Slo, outcome, slower
from llm_perf_opt.serving.capacity.replay_report import Banded
from llm_perf_opt.serving.capacity.search import PlanCandidate
from llm_perf_opt.serving.engine_process.environment import VLLM, EngineRecipe, find
from llm_perf_opt.serving.engine_process.jobs import ReplayJob
from llm_perf_opt.serving.engine_process.process import ReplayProcess
from llm_perf_opt.serving.requests import Replayed, Traffic

log = logging.getLogger(__name__)
MOST_ROUTED = 4  # replicas behind vLLM's own routing; of more, requests are dealt in turn
_MOST_TRIES = 10  # numbers of replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedFleet:
    """A fleet and the replays it rests on, one for each engine."""

    candidate: PlanCandidate
    fleet: Fleet
    replayed: tuple[Replayed, ...]


class Replays:
    """An engine's process that stays open from one replay to the next. Without the engine it is refused at once."""

    def __init__(self, folder: Path, engine: EngineRecipe = VLLM) -> None:
        self._folder, self._engine, self._process = folder, engine, ReplayProcess(find(engine), engine)

    def __enter__(self) -> Self:
        self._process.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.__exit__(kind, error, trace)

    def outcome(self, candidate: PlanCandidate, traffic: Traffic) -> ReplayOutcome:
        """All replicas at the expected step times, and nothing else."""
        pages = sum(len(request.images) for request in traffic.requests)
        return outcome(self.replayed(candidate, traffic), pages=pages, is_closed=traffic.concurrency is not None)

    def fleet(self, candidate: PlanCandidate, traffic: Traffic, slo: Slo | None, price: float | None) -> ReplayedFleet:
        """All replicas at expected, low and high step times; then fewer or more replicas for the SLO."""
        considered = candidate.replica.considered
        log.info("Replay: %d x %s, %d requests", candidate.replicas, considered.name, len(traffic.requests))
        table = candidate.replica.table
        expected = self.replayed(candidate, traffic)
        edges = []
        for factor in (table.low, table.high):
            if traffic.concurrency is not None and not table.host_s:
                edges.append(tuple(slower(replayed, factor) for replayed in expected))
            else:
                edges.append(self.replayed(candidate, traffic, factor))
        pages = sum(len(request.images) for request in traffic.requests)
        is_closed = traffic.concurrency is not None
        middle, low, high = (outcome(edge, pages=pages, is_closed=is_closed) for edge in (expected, *edges))
        fleet = Fleet(
            considered=considered,
            replicas=candidate.replicas,
            banded=Banded(expected=middle, low=low, high=high),
            fewest=self._fewest(candidate, traffic, slo),
            price_per_hour=price,
        )
        return ReplayedFleet(candidate=candidate, fleet=fleet, replayed=expected)

    def replayed(self, candidate: PlanCandidate, traffic: Traffic, factor: float = 1.0) -> tuple[Replayed, ...]:
        """Every engine: a few replicas behind vLLM's own routing, many one after another, each takes seconds."""
        groups = candidate.replica.considered.plan.attention_dp
        has_sessions = any(request.after is not None for request in traffic.requests)
        if self._engine is VLLM and groups == 1 and 1 < candidate.replicas <= MOST_ROUTED and not has_sessions:
            job = self._job(candidate, traffic, factor)
            return tuple(self._process.replay_replicas(replace(job, replicas=candidate.replicas)))
        shares = dealt(traffic, candidate.replicas)
        return tuple(engine for share in shares for engine in self._replay(candidate, share, factor))

    def _replay(self, candidate: PlanCandidate, traffic: Traffic, factor: float = 1.0) -> list[Replayed]:
        """One replica: an engine, or one for each group of ranks that shares its experts with the others."""
        groups = candidate.replica.considered.plan.attention_dp
        job = replace(self._job(candidate, traffic, factor), replicas=groups, shares_experts=groups > 1)
        return self._process.replay_replicas(job)

    def _job(self, candidate: PlanCandidate, traffic: Traffic, factor: float) -> ReplayJob:
        replica = candidate.replica
        device = candidate.cluster.device
        settings = candidate.served.settings(self._folder, device, replica, candidate.seen)
        host = replica.steady.host
        speed = None if host is None else host.tokens_per_s
        return ReplayJob(
            settings=settings, traffic=traffic, table=replica.table, slower=factor, host_tokens_per_s=speed
        )

    def _fewest(self, candidate: PlanCandidate, traffic: Traffic, slo: Slo | None) -> int | None:
        """The smallest number of replicas that meets the SLO, found on the share of one of them.

        None: there is no SLO, clients wait for answers, or none of the numbers that were tried meets it.
        """
        best = candidate.replica.considered.best
        if slo is None or traffic.concurrency is not None or best is None:
            return None
        last = traffic.requests[-1].arrival_s or 1.0
        count = max(1, ceil(len(traffic.requests) / last / best.requests_per_s))
        tried: dict[int, bool] = {}
        while count not in tried and len(tried) < _MOST_TRIES and count <= len(traffic.requests):
            log.info("Replay: the share of one in %d replicas", count)
            tried[count] = outcome(self._replay(candidate, dealt(traffic, count)[0])).keeps(slo)
            count = max(1, count - 1) if tried[count] else count + 1
        return min((number for number, keeps in tried.items() if keeps), default=None)


def dealt(traffic: Traffic, replicas: int) -> list[Traffic]:
    """The requests of each replica, dealt in turn; all turns of a session go to the replica that has its cache.

    Clients are shared out as evenly as they go.
    """
    clients, places, replica_of = traffic.concurrency, cycle(range(replicas)), dict[str, int]()
    for request in traffic.requests:
        replica_of[request.id] = next(places) if request.after is None else replica_of[request.after]
    shares = []
    for number in sorted(set(replica_of.values())):
        own = None if clients is None else max(1, clients // replicas + (number < clients % replicas))
        requests = tuple(request for request in traffic.requests if replica_of[request.id] == number)
        shares.append(replace(traffic, requests=requests, concurrency=own))
    return shares

"""How many prefill workers and how many decode workers, and with which plans: the cheapest that does what is asked.

Each side keeps the plans with the most requests/s per GPU at its own limit of the SLO, and the one that is fastest for
a single request. For every pair of them workers are added to the side that breaks a limit, until none is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from llm_perf_opt.serving.capacity.disaggregated import WorkerPair, link_between, transfer_seconds
from llm_perf_opt.serving.capacity.search import PlanCandidate
from llm_perf_opt.serving.capacity.sizing import NO_LIMIT, Demand, GpuChoice, PrefillSide, SizedFleet
from llm_perf_opt.serving.capacity.steady_state import SteadyReplica, SteadyState, most_requests
from llm_perf_opt.timing.step.request_time import relayed_token_shares

_MOST_PLANS = 2  # of each side by throughput, next to the fastest
_MOST_DECODES = 4  # where nothing says how many requests come
_CROWDS = tuple(2.0 ** (power / 2) for power in range(27))  # requests at once that are tried for one decode worker
_MORE = 1.5  # of the demand, to find what breaks first
_IDLE = 0.3  # load of prefill workers below which more of them shorten no queue


def paired_fleets(fleets: Sequence[SizedFleet], choice: GpuChoice, demand: Demand) -> Iterator[SizedFleet]:
    """The best counts of workers for every pair of plans; `fleets` read and decode on the same GPUs."""
    plans = [fleet.candidate for fleet in fleets if fleet.candidate.replica.considered.plan.pp == 1]
    slo = None if demand.slo is None else replace(demand.slo, ttft_s=None, e2e_s=None)

    def decodes_per_s(plan: PlanCandidate) -> float:
        state = most_requests(tuple(decoding(plan).states()), slo)
        return 0.0 if state is None else state.requests_per_s

    readers = _best_plans(plans, _prompts_per_s, lambda plan: plan.replica.steady.at(1).alone_s)
    for decode in _best_plans(plans, decodes_per_s, lambda plan: decoding(plan).at(1).step_s):
        for prefill in readers:
            if (fleet := _Pairing(prefill=prefill, decode=decode, choice=choice, demand=demand).best()) is not None:
                yield fleet


def decoding(plan: PlanCandidate) -> SteadyReplica:
    """The replica of a plan where other GPUs read the prompts."""
    return replace(plan.replica.steady, reads_prompts=False, client=None)


def _prompts_per_s(plan: PlanCandidate) -> float:
    return WorkerPair(prefill=plan.replica.steady, decode=decoding(plan), transfer_s=0.0).prompts_per_s


def _best_plans(
    plans: Sequence[PlanCandidate],
    per_s: Callable[[PlanCandidate], float],
    alone_s: Callable[[PlanCandidate], float],
) -> list[PlanCandidate]:
    by_rate = sorted(plans, key=lambda plan: -per_s(plan) / _ranks(plan))
    fastest = sorted(plans, key=alone_s)
    return list({id(plan): plan for plan in (*by_rate[:_MOST_PLANS], *fastest[:1])}.values())


def _ranks(plan: PlanCandidate) -> int:
    return plan.replica.considered.plan.replica_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairing:
    """One plan that reads, one that decodes, and the demand on them."""

    prefill: PlanCandidate
    decode: PlanCandidate
    choice: GpuChoice
    demand: Demand

    def best(self) -> SizedFleet | None:
        """The fewest GPUs that keep every limit; of a fixed number the most requests/s. None: too few for both."""
        most = self.choice.count or self.demand.max_gpus
        if _ranks(self.prefill) + _ranks(self.decode) > most:
            return None
        if self.choice.count is not None or (self.demand.users is None and self.demand.requests_per_s is None):
            fleets = [self._fleet(*counts) for counts in self._counts(most)]
            return max(
                fleets, key=lambda fleet: (fleet.broken is None, fleet.requests_per_s / fleet.gpus), default=None
            )
        return self._grown(most)

    def _counts(self, most: int) -> Iterator[tuple[int, int]]:
        """All ways to divide a fixed number of GPUs; else the ratios at which both sides are about as busy."""
        readers, makers = _ranks(self.prefill), _ranks(self.decode)
        if self.choice.count is not None:
            for prefills in range(1, (most - makers) // readers + 1):
                yield prefills, (most - prefills * readers) // makers
            return
        slo = None if self.demand.slo is None else replace(self.demand.slo, ttft_s=None, e2e_s=None)
        state = most_requests(tuple(decoding(self.decode).states()), slo)
        each = 1.0 if state is None else state.requests_per_s / _prompts_per_s(self.prefill)
        for decodes in range(1, _MOST_DECODES + 1):
            for prefills in dict.fromkeys((max(1, int(each * decodes)), ceil(each * decodes))):
                if prefills * readers + decodes * makers <= most:
                    yield prefills, decodes

    def _grown(self, most: int) -> SizedFleet:
        """Workers are added where a limit breaks, a tenth at a time, and taken away again as far as they can be."""
        prefills = decodes = 1
        while True:
            fleet = self._fleet(prefills, decodes)
            if fleet.broken is None or fleet.gpus >= most:
                break
            if self._is_decode(fleet):
                decodes += max(1, decodes // 10)
            else:
                prefills += max(1, prefills // 10)
        if fleet.broken is None:
            return fleet
        return replace(fleet, broken=f"{most} GPUs" if fleet.broken == "queue" else fleet.broken)

    def _is_decode(self, fleet: SizedFleet) -> bool:
        """Whether it is the decode side that has too few workers."""
        assert fleet.prefill is not None
        if fleet.broken in ("TPOT", "cache", "decode"):
            return True
        return fleet.broken != "queue" and fleet.prefill.load < _IDLE

    def _fleet(self, prefills: int, decodes: int) -> SizedFleet:
        pair = self._pair(prefills, decodes)
        state, broken = self._state(pair, prefills, decodes, 1.0), None
        if state is None:
            state, broken = pair.at_users(decodes * pair.decode.most, prefills, decodes), "decode"
        else:
            broken = self._broken(pair, state, decodes)
        limit = NO_LIMIT if broken is None else broken
        if broken is None:
            more = self._state(pair, prefills, decodes, _MORE)
            limit = ("decode" if more is None else self._broken(pair, more, decodes)) or NO_LIMIT
            limit = "prefill" if limit == "queue" else limit
        reading = pair.reading_s(prefills, decodes)
        load = decodes * state.requests_per_s / prefills * reading[-1] / (len(reading) - 1)
        return SizedFleet(
            candidate=self.decode,
            demand=self.demand,
            replicas=decodes,
            state=state,
            broken=broken,
            limit=limit,
            prefill=PrefillSide(
                plan=self.prefill.replica.considered.plan, workers=prefills, load=load, transfer_s=pair.transfer_s
            ),
        )

    def _pair(self, prefills: int, decodes: int) -> WorkerPair:
        cluster = self.decode.cluster
        link = link_between(cluster, prefills * _ranks(self.prefill) + decodes * _ranks(self.decode))
        plans = (self.prefill.replica.considered.plan, self.decode.replica.considered.plan)
        tokens = round(self.demand.mean.prompt_tokens)
        sent = self.decode.served.cache_bytes(cluster.device, plans[1], tokens)
        client = None if self.demand.is_engine_only else relayed_token_shares(self.decode.served.engine)
        return WorkerPair(
            prefill=self.prefill.replica.steady,
            decode=decoding(self.decode),
            transfer_s=transfer_seconds(sent, *plans, link),
            client=client,
        )

    def _state(self, pair: WorkerPair, prefills: int, decodes: int, more: float) -> SteadyState | None:
        demand = self.demand
        if demand.users is not None:
            return pair.at_users(ceil(more * demand.users), prefills, decodes)
        if demand.requests_per_s is not None:
            return pair.at_rate(more * demand.requests_per_s, prefills, decodes)
        users = [max(1, round(decodes * crowd)) for crowd in _CROWDS if crowd <= 2 * pair.decode.most]
        states = [pair.at_users(count, prefills, decodes) for count in users]
        kept = [state for state in states if state.keeps(demand.slo)]
        return max(kept, key=lambda state: state.requests_per_s) if kept else states[0]

    def _broken(self, pair: WorkerPair, state: SteadyState, decodes: int) -> str | None:
        """The first limit that is not kept: of the SLO, a queue that grows, or a cache too small for all users."""
        demand = self.demand
        if state.queue.is_full:
            return "queue"
        if demand.users is not None and state.sequences >= pair.decode.most < demand.users / decodes:
            return "cache"
        return None if demand.slo is None else state.broken(demand.slo)

"""How many GPUs for this traffic: plans chosen by their step tables, replayed through vLLM's own scheduler."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.hardware.prices import hourly_price, price_notes
from llm_perf_opt.core.output_files import free_file, write_result
from llm_perf_opt.core.report import Level, Note, Report
from llm_perf_opt.core.target import Json
from llm_perf_opt.costs.run_description import deployment_notes
from llm_perf_opt.serving.capacity.fleets import (
    Considered,
    Deadline,
    Fleet,
    considered_table,
    deadline_answer,
    fleet_charts,
    fleets_table,
    glance_table,
    read_deadline,
)
from llm_perf_opt.serving.capacity.measured_server import MeasuredServer, measured_table, read_server
from llm_perf_opt.serving.capacity.outcome import Slo, read_slo
from llm_perf_opt.serving.capacity.replay_report import (
    chrome_trace,
    engine_table,
    rates_table,
    replay_charts,
    shares_table,
    times_table,
)
from llm_perf_opt.serving.capacity.replays import MOST_ROUTED, ReplayedFleet, Replays
from llm_perf_opt.serving.capacity.search import (
    PlanCandidate,
    SearchSpace,
    candidates,
    read_clusters,
    taken_plan,
    worth_replaying,
)
from llm_perf_opt.serving.capacity.steady_state import mean_request
from llm_perf_opt.serving.read_traffic import as_traffic, read_traffic
from llm_perf_opt.serving.requests import Replayed, Traffic
from llm_perf_opt.serving.served_model import ServedModel, engine_folder
from llm_perf_opt.serving.traffic_text import DeclaredTraffic
from llm_perf_opt.tracing.origin import find_origin

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CapacityAnswer(Answer):
    """Fleets that were replayed, the best first, and every plan that was considered for them."""

    model: str
    traffic: str
    requests: int
    slo: Slo | None
    deadline: Deadline | None
    fleets: tuple[Fleet, ...]
    considered: tuple[Considered, ...]
    refused: tuple[str, ...]  # plans that leave no room for a request
    engine: Mapping[str, Json]  # what the engine decided by itself, for the best fleet
    step_seconds: Mapping[str, float]  # of the best plan: what its mean step is spent on
    step_origin: str
    _server: MeasuredServer
    _replayed: tuple[Replayed, ...]  # of the best fleet, one for each engine
    _graphs: tuple[CallGraph, ...]

    @property
    def best(self) -> Fleet:
        """The first of the fleets."""
        return self.fleets[0]

    @property
    def keeps_limits(self) -> bool:
        """Whether the best fleet, or more replicas of it, keep the limits; true without any."""
        best = self.best
        return self.slo is None or best.fewest is not None or best.outcome.keeps(self.slo)

    def report(self) -> Report:
        """The answer, fleets side by side, the best fleet in detail, and every plan that was considered."""
        best, several = self.best, len(self.fleets) > 1
        has_fleets = several or self.slo is not None or self.deadline is not None or best.price_per_hour is not None
        glance = glance_table(best, self.slo, self._first_answer())
        return Report(
            title=f"{self.model}: how many GPUs for this traffic",
            answer=tuple(f"{question} {answer}." for question, answer in glance.rows),
            tables=(
                glance,
                *((fleets_table(self.fleets, self.slo, self.deadline),) if has_fleets else ()),
                *((measured_table(self._server.runs, best.banded),) if self._server.runs else ()),
                times_table(best.banded),
                rates_table(best.banded, best.gpus),
                engine_table(best.outcome),
                *((shares_table(self.step_seconds, best.considered.name),) if self.step_seconds else ()),
                considered_table(self.considered),
            ),
            notes=tuple(self._notes()),
            charts=(
                *fleet_charts(self.fleets, self.considered, self.slo),
                *replay_charts(self._replayed[0], best.banded, self.slo),
            ),
        )

    def _first_answer(self) -> tuple[str, str] | None:
        """The answer to what was asked for beyond this one fleet; None: nothing was."""
        if self.deadline is not None:
            return f"How many GPUs for {self.deadline}?", deadline_answer(self.best, self.deadline)
        best, devices = self.best, {fleet.considered.device for fleet in self.fleets}
        if self.slo is not None and best.fewest is not None and len(devices) > 1:
            here = f"of {best.gpus}: {best.banded.keeps(self.slo)}"
            return f"How many GPUs for {self.slo}?", f"{best.fewest_gpus} x {best.considered.name} ({here})"
        return None

    def save_chrome_trace(self, path: str | Path, *, force: bool = False) -> Path:
        """The best fleet's replay for Perfetto: steps, requests, counters."""
        path = Path(path)
        free_file(path, force=force)
        write_result(path, chrome_trace(self._replayed, f"{self.model} on {self.best.name}"))
        return path

    def _notes(self) -> Iterator[Note]:
        best, engine = self.best, self.engine
        yield Note(f"Traffic: {self.requests:,} requests, {self.traffic}.")
        yield from deployment_notes(self._graphs)
        yield Note(
            f"Scheduled by vLLM {engine.get('version')} itself ({engine.get('scheduler')}): at most "
            f"{engine.get('max_sequences')} sequences and {engine.get('max_batched_tokens')} tokens a step, "
            f"{engine.get('cache_blocks')} blocks of {engine.get('block_tokens')} tokens on each replica."
        )
        yield Note(
            f"Step times come from measured kernels ({self.step_origin}). In the low and the high estimate every step "
            "is as fast or as slow as the range that held eight of ten measured servers."
        )
        yield from self._server.notes()
        yield Note("Host work outside the steps is left out: HTTP, tokenizing, and preprocessing images.")
        if best.replicas > 1:
            how = "by vLLM's own router" if best.replicas <= MOST_ROUTED else "round-robin"
            yield Note(f"Requests are distributed over the {best.replicas} replicas {how}.")
        if best.price_per_hour is not None:
            yield Note("Costs are for the GPUs alone, at the load of this traffic.")
        yield from price_notes({fleet.considered.device: fleet.price_per_hour for fleet in self.fleets})
        if best.outcome.is_growing:
            yield Note("The queue keeps growing: with longer traffic, requests wait even longer.", Level.WARNING)
        if len({fleet.considered.device for fleet in self.fleets}) > 1:
            yield Note("One vLLM process schedules for all devices, with the step limits of each of them.")
        if self.refused:
            yield Note(f"No memory is left for such a request next to the weights: {', '.join(self.refused)}.")


def capacity(
    model: str | Path,
    devices: str | Sequence[str | Cluster],
    traffic: str | Path | DeclaredTraffic | Traffic,
    *,
    slo: str | Slo | None = None,
    prices: Mapping[str, float] | None = None,
    pages: int | None = None,
    within: str | None = None,
    measured: str | Path | Sequence[str | Path] | None = None,
    devices_file: Path | None = None,
    kv_offload: str | None = None,
    weights: str | None = None,
    **workload: Any,
) -> CapacityAnswer:
    """Replay requests on these devices, and find the fewest GPUs that meet an SLO or a deadline.

    - `devices`: `8x h100-sxm`, or several with commas: each is tried, the best first.
    - `traffic`: `20/s prompt=lognormal(800,0.8) output=200 for 600s`, a file of them, or a recorded run.
    - `slo`: `ttft=500ms,tpot=40ms`, of 99 in 100 requests; `p95,ttft=1s` for another share.
    - `tp`, `ep`, `pp`, `attention_dp`, `replicas`: default: every `tp` is considered, for models with experts every
      number of groups that share them, and as many replicas as there is room for.
    - `max_sequences`, `max_batched_tokens`: of a step, several with commas. Default: vLLM's own for the device.
    - `prices`: device id -> price of a GPU hour, in place of the table that ships with the package.
    - `pages`, `within`: a deadline, `200000` and `24h`.
    - `measured`: results of a real server with this plan, to show next to the replay; vLLM's log of iterations
      corrects the step times.
    - `kv_offload`: `200GiB`: host memory of each replica for what leaves the GPU's cache, by vLLM's own connector.
    - `weights`: several with commas are tried. `cache`, `routing` and the workload are as in `lpo.trace`.
    """
    clusters = read_clusters(devices, devices_file)
    slo = read_slo(slo) if isinstance(slo, str) else slo
    deadline = read_deadline(pages, within)
    declared = read_traffic(traffic) if isinstance(traffic, str | Path) else traffic
    fixed_plan = taken_plan(workload, slo, is_alone=deadline is not None, kv_offload=kv_offload)
    server = read_server(measured)
    formats = [None] if weights is None else [name.strip() for name in weights.split(",")]
    origins = [find_origin(model, weights=name, torch_device="cuda", **workload) for name in formats]
    with engine_folder(origins[0], model) as folder, Replays(folder) as replays:
        sizes = declared.pages.sizes if isinstance(declared, DeclaredTraffic) and declared.pages is not None else ()
        served = [ServedModel(origin, sizes) for origin in origins]
        requests = as_traffic(declared, served[0].page_tokens)
        considered = _considered(served, clusters, requests, fixed_plan, server)
        fleets = [
            replays.fleet(chosen, requests, slo, hourly_price(chosen.cluster.device.id, prices))
            for chosen in worth_replaying(considered.candidates, slo)
        ]
    fleets.sort(key=lambda replayed: _rank(replayed.fleet, deadline, slo))
    return _answer(fleets, considered, requests, slo, deadline, server)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConsideredPlans:
    """Plans with room for requests, and the names of those without."""

    candidates: list[PlanCandidate]
    refused: list[str]


def _considered(
    served: Sequence[ServedModel],
    clusters: Sequence[Cluster],
    requests: Traffic,
    fixed_plan: SearchSpace,
    server: MeasuredServer,
) -> _ConsideredPlans:
    mean, refused = mean_request(requests), list[str]()
    fitting = [
        candidate
        for model in served
        for candidate in candidates(
            model, clusters, mean, fixed_plan, refused, is_closed=requests.concurrency is not None
        )
    ]
    if not fitting:
        raise UsageError(
            f"{served[0].origin.name} does not fit on {', '.join(map(str, clusters))}.",
            why=f"no plan leaves room for one request: {', '.join(refused) or 'none was allowed'}",
            fix="give more devices, a larger one, or --weights fp8",
        )
    corrected = [
        replace(candidate, replica=server.corrected(candidate.replica, mean, len(fitting))) for candidate in fitting
    ]
    return _ConsideredPlans(candidates=corrected, refused=refused)


def _answer(
    fleets: Sequence[ReplayedFleet],
    considered: _ConsideredPlans,
    requests: Traffic,
    slo: Slo | None,
    deadline: Deadline | None,
    server: MeasuredServer,
) -> CapacityAnswer:
    best = fleets[0]
    served, replica = best.candidate.served, best.candidate.replica
    return CapacityAnswer(
        model=served.trace.graphs[0].model,
        traffic=requests.origin,
        requests=len(requests.requests),
        slo=slo,
        deadline=deadline,
        fleets=tuple(fleet.fleet for fleet in fleets),
        considered=tuple(candidate.replica.considered for candidate in considered.candidates),
        refused=tuple(dict.fromkeys(considered.refused)),
        engine=best.replayed[0].engine,
        step_seconds=served.step_shares(best.candidate.cluster, replica.considered, mean_request(requests)),
        step_origin=replica.table.origin,
        _server=server,
        _replayed=best.replayed,
        _graphs=served.trace.graphs,
    )


def _rank(fleet: Fleet, deadline: Deadline | None, slo: Slo | None) -> tuple[bool, bool, float]:
    """Fleets that meet the SLO first; then the cheapest, or the one with the fewest GPUs for the work.

    One without a price comes after those that have one: what it costs is not known.
    """
    gpus: float | None = fleet.gpus_for(deadline) if deadline is not None else fleet.fewest_gpus
    if gpus is None:
        gpus = fleet.gpus / max(fleet.outcome.requests_per_s, 1e-9)
    breaks = slo is not None and fleet.fewest is None and not fleet.outcome.keeps(slo)
    cost = None if deadline is None else fleet.cost_of(deadline)
    worth = gpus * (fleet.price_per_hour or 1.0) if cost is None else cost
    return breaks, fleet.price_per_hour is None, worth

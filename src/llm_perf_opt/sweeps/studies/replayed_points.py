"""Points of a study under traffic: one traced model, and vLLM's scheduler for every plan, device and traffic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.workload import PageSize
from llm_perf_opt.serving.capacity.outcome import ReplayOutcome
from llm_perf_opt.serving.capacity.replay_report import Banded
from llm_perf_opt.serving.capacity.replays import Replays
from llm_perf_opt.serving.capacity.search import PlanCandidate
from llm_perf_opt.serving.capacity.steady_state import mean_request
from llm_perf_opt.serving.read_traffic import as_traffic, read_traffic
from llm_perf_opt.serving.served_model import ServedModel, engine_folder
from llm_perf_opt.serving.traffic_text import DeclaredTraffic
from llm_perf_opt.sweeps.studies.figures import Figures, costs
from llm_perf_opt.sweeps.studies.tasks import PointDeployment, StudyTask
from llm_perf_opt.tracing.origin import Origin, find_origin

Found = tuple[PointDeployment, Figures | PerfOptError]


def replays_of(task: StudyTask, deployments: Sequence[PointDeployment]) -> Iterator[Found]:
    """The figures of each deployment under its traffic, or why it has none."""
    left = list(deployments)
    if not left:
        return
    try:
        origin = _origin(task)
        with engine_folder(origin, task.model.source) as folder, Replays(folder) as replays:
            points = _ReplayedPoints(origin, replays)
            while left:
                deployment = left.pop(0)
                yield deployment, points.at(deployment)
    except PerfOptError as refusal:  # there is no such model, or no vLLM
        yield from ((deployment, refusal) for deployment in left)


def _origin(task: StudyTask) -> Origin:
    shared = task.deployments[0]
    return find_origin(
        task.model.source,
        weights=shared.weights,
        cache=shared.cache,
        torch_device="cuda",
        trust_remote_code=task.trust_remote_code,
        **task.workload,
    )


class _ReplayedPoints:
    """One model; what was traced for a set of pages serves all plans and devices."""

    def __init__(self, origin: Origin, replays: Replays) -> None:
        self._origin, self._replays = origin, replays
        self._served: dict[tuple[PageSize, ...], ServedModel] = {}

    def at(self, deployment: PointDeployment) -> Figures | PerfOptError:
        """One replay with its low and high estimates."""
        try:
            return self._figures(deployment)
        except PerfOptError as refusal:
            return refusal

    def _figures(self, deployment: PointDeployment) -> Figures:
        assert deployment.traffic is not None, "only traffic is replayed"
        declared = read_traffic(deployment.traffic)
        sizes = declared.pages.sizes if isinstance(declared, DeclaredTraffic) and declared.pages is not None else ()
        served = self._served.setdefault(tuple(sizes), ServedModel(self._origin, sizes))
        requests = as_traffic(declared, served.page_tokens)
        cluster = deployment.cluster()
        plan, mean = replica_plan(deployment.plan), mean_request(requests)
        replica = served.replica(cluster.device, plan, mean, None, cluster=cluster)
        if replica is None:
            raise PerfOptError(
                f"{deployment.plan.describe()} on {deployment.device} has no memory left for a request.",
                why="the weights leave less of the memory than the cache of one request of mean length",
                fix="choose more ranks, a smaller format or a larger device",
            )
        candidate = PlanCandidate(cluster=cluster, served=served, replica=replica, replicas=deployment.plan.dp)
        banded = self._replays.fleet(candidate, requests, None, None).fleet.banded
        return {
            **replayed_figures(banded, deployment.price_per_hour),
            "rates": f"measured kernels, {replica.table.origin}",
            "memory_bytes": cluster.device.memory_bytes,
            "fits_served": True,
        }


def replica_plan(plan: ParallelPlan) -> ParallelPlan:
    """The plan of one replica, as vLLM can have it."""
    if plan.fsdp > 1 or plan.ep not in (1, plan.tp):
        raise PerfOptError(
            f"vLLM does not serve {plan.describe()}.",
            why="it has no fsdp, and with tp each rank holds whole experts or a part of every expert",
            fix="write tp, pp and dp, and ep as large as tp",
        )
    return replace(plan, dp=1)


def replayed_figures(banded: Banded, price_per_hour: float | None) -> Figures:
    """The columns of a replay: times and rates with their low and high estimates, and costs."""
    expected = banded.expected
    figures: Figures = {
        "requests": expected.requests,
        "preemptions": expected.preemptions,
        "mean_waiting": expected.mean_waiting,
        "most_cache_use": expected.most_cache_use,
        "busy": expected.busy,
        "is_growing": expected.is_growing,
    }
    for edge, outcome in (("", expected), ("_low", banded.low), ("_high", banded.high)):
        figures |= _times(edge, outcome)
    rates = {
        "requests": {"low": banded.high.requests_per_s, "high": banded.low.requests_per_s},
        "tokens": {"low": banded.high.output_tokens_per_s, "high": banded.low.output_tokens_per_s},
    }
    for what, edges in rates.items():
        figures |= {f"{what}_per_s_{edge}": value for edge, value in edges.items()}
        figures |= costs(what, edges, price_per_hour)
    return figures


def _times(edge: str, outcome: ReplayOutcome) -> Figures:
    """A time that no request has, such as that between tokens of answers with one, is unknown."""
    shares = {"p50": 0.5, "p99": 0.99}
    times = {"ttft": outcome.ttft, "tpot": outcome.tpot, "e2e": outcome.e2e}
    return {
        f"{name}_{text}{edge}_s": None if time is None else time.at(share)
        for name, time in times.items()
        for text, share in shares.items()
    }

"""Which plans to try: every plan of every cluster by its step table, and which of them to replay."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.links import Cluster, parse_cluster
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.units import format_number_of
from llm_perf_opt.serving.capacity.outcome import Slo
from llm_perf_opt.serving.capacity.sessions import read_host_bytes
from llm_perf_opt.serving.capacity.steady_state import MeanRequest
from llm_perf_opt.serving.engine_settings import SeenDevice
from llm_perf_opt.serving.served_model import Replica, ServedModel
from llm_perf_opt.serving.speculation import Speculation
from llm_perf_opt.timing.step.request_time import FirstToken

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The plans and limits to try. None: all are tried, or the engine's default holds."""

    tp: int | None
    ep: int | None
    pp: int
    attention_dp: int | None
    replicas: int | None
    max_sequences: tuple[int | None, ...]
    max_batched_tokens: tuple[int | None, ...]
    slo: Slo | None
    speculation: Speculation | None = None
    host_bytes: int | None = None  # for blocks that leave the cache of a replica


def taken_plan(
    workload: dict[str, Any], slo: Slo | None, *, is_alone: bool, kv_offload: str | None = None
) -> SearchSpace:
    """Take what belongs to plans out of the keywords of a workload.

    With `is_alone` one replica is enough, since the other replicas have the same rate.
    """
    names = ("tp", "ep", "pp", "attention_dp", "replicas", "max_sequences", "max_batched_tokens")
    given = {name: workload.pop(name, None) for name in names}
    return SearchSpace(
        tp=given["tp"],
        ep=given["ep"],
        pp=given["pp"] or 1,
        attention_dp=given["attention_dp"],
        replicas=1 if is_alone and given["replicas"] is None else given["replicas"],
        max_sequences=_numbers(given["max_sequences"], "max_sequences"),
        max_batched_tokens=_numbers(given["max_batched_tokens"], "max_batched_tokens"),
        slo=slo,
        host_bytes=read_host_bytes(kv_offload),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCandidate:
    """A plan on a cluster, and how many replicas of it there are."""

    cluster: Cluster
    served: ServedModel
    replica: Replica
    replicas: int
    seen: SeenDevice | None = None  # the device that the engine is shown; None: the device itself


def read_clusters(devices: str | Sequence[str | Cluster], devices_file: Path | None) -> tuple[Cluster, ...]:
    """One cluster, or several with commas between them."""
    given = devices.split(",") if isinstance(devices, str) else devices
    clusters = tuple(
        parse_cluster(device.strip(), devices_file) if isinstance(device, str) else device for device in given if device
    )
    if not clusters:
        raise UsageError("No devices are named.", why="the list is empty", fix='write --devices "8x h100-sxm"')
    return clusters


def candidates(
    served: ServedModel,
    clusters: Sequence[Cluster],
    mean: MeanRequest,
    space: SearchSpace,
    refused: list[str],
    *,
    is_closed: bool = False,
    client: FirstToken | None = None,
    is_worth: Callable[[ParallelPlan], bool] = lambda _: True,
) -> Iterator[PlanCandidate]:
    """Every plan with room for a request, small plans first; the names of the others are added to `refused`.

    A plan that is not worth it is left out when its turn comes.
    """
    shared = SeenDevice.of(clusters[0].device) if len({cluster.device.id for cluster in clusters}) > 1 else None
    for cluster in clusters:
        plans = _plans(served, cluster, space)
        log.info("%s: %s", cluster.device.id, format_number_of(len(plans), "plan"))
        ways = product(plans, space.max_sequences, space.max_batched_tokens)
        for plan, max_sequences, max_batched_tokens in ways:
            if not is_worth(plan):
                continue
            log.debug("Plan %s on %s", plan.describe(), cluster)
            replica = served.replica(
                cluster.device,
                plan,
                mean,
                space.slo,
                max_sequences=max_sequences,
                max_batched_tokens=max_batched_tokens,
                cluster=cluster,
                is_closed=is_closed,
                client=client,
                speculation=space.speculation,
                host_bytes=space.host_bytes,
            )
            if replica is None:
                refused.append(f"{cluster.device.id} {plan.describe()}")
                continue
            replicas = space.replicas or cluster.count // plan.replica_ranks
            yield PlanCandidate(cluster=cluster, served=served, replica=replica, replicas=replicas, seen=shared)


def _plans(served: ServedModel, cluster: Cluster, space: SearchSpace) -> list[ParallelPlan]:
    """Ranks that share a layer stay in one node and divide its heads; groups of ranks may share experts."""
    sizes = [space.tp] if space.tp is not None else [2**power for power in range(10)]
    plans = []
    for tp in sizes:
        if tp * space.pp > cluster.count or tp > cluster.per_node or served.heads % tp:
            if space.tp is not None:
                raise UsageError(
                    f"tp{tp} does not run on {cluster}.",
                    why=f"a node has {cluster.per_node} GPUs, and tp must divide the {served.heads} attention heads",
                    fix="choose a tp that divides the heads and is no larger than a node",
                )
            continue
        for groups in _groups(served, cluster, space, tp):
            plans += [
                ParallelPlan(tp=tp, pp=space.pp, attention_dp=groups, ep=tp * groups if is_whole else 1)
                for is_whole in _expert_choices(served, space, tp, groups)
            ]
    if not plans:
        raise UsageError(
            f"vLLM does not divide the experts among {space.ep} ranks here.",
            why="of the tp x attention-dp ranks of a replica, each holds whole experts, or all share every expert",
            fix="give --tp and --attention-dp so that --ep is tp x attention-dp, or leave --ep out",
        )
    return sorted(plans, key=lambda plan: plan.replica_ranks)


def _groups(served: ServedModel, cluster: Cluster, space: SearchSpace, tp: int) -> list[int]:
    """How many groups of `tp` ranks share the experts of a replica. Without experts a group would be a replica."""
    most = cluster.count // tp
    can_share = served.has_experts and space.pp == 1
    if space.attention_dp is None:
        return [2**power for power in range(10) if power == 0 or (can_share and 2**power <= most)]
    if space.attention_dp > 1 and not can_share:
        raise UsageError(
            f"vLLM does not run this model with attention-dp{space.attention_dp}.",
            why="groups of ranks share the experts of one pipeline stage; without that they are replicas",
            fix=f"write --replicas {space.attention_dp} in place of --attention-dp",
        )
    if space.attention_dp > most:
        raise UsageError(
            f"attention-dp{space.attention_dp} of tp{tp} needs more GPUs than {cluster}.",
            why=f"at most {most} groups of tp{tp} fit",
            fix="lower it",
        )
    return [space.attention_dp]


def _expert_choices(served: ServedModel, space: SearchSpace, tp: int, groups: int) -> tuple[bool, ...]:
    """Whether a rank holds whole experts: as given; else always with groups, and both ways without groups."""
    if space.ep is not None:
        return (space.ep > 1,) if space.ep in (1, tp * groups) else ()
    if not served.has_experts or tp * groups == 1:
        return (False,)
    return (True,) if groups > 1 else (False, True)


def worth_replaying(options: Sequence[PlanCandidate], slo: Slo | None) -> list[PlanCandidate]:
    """For each cluster the plan with the most requests/s per GPU in a steady state that meets the SLO.

    With an SLO the next best plan of the cluster too: its shorter steps may meet an SLO that the first plan breaks by
    chance. Where no plan meets it, the plan with the shortest step comes first.
    """
    chosen: list[PlanCandidate] = []
    for cluster in dict.fromkeys(str(option.cluster) for option in options):
        ranked = sorted((option for option in options if str(option.cluster) == cluster), key=_worth, reverse=True)
        others = [
            option
            for option in ranked
            if _plan(option) != _plan(ranked[0]) and option.replica.considered.best is not None
        ]
        chosen += [ranked[0], *(others[:1] if slo is not None else [])]
    return chosen


def _numbers(given: int | str | None, name: str) -> tuple[int | None, ...]:
    """One number, or several with commas; None: the engine's default for the device."""
    if given is None:
        return (None,)
    words = str(given).split(",")
    if not all(word.strip().isdigit() and 0 < int(word.strip()) < 2**24 for word in words):
        raise UsageError(
            f"{str(given)[:60]!r} is not a value of {name}.",
            why="it takes whole numbers from 1 on",
            fix="write 8192, or 2048,8192",
        )
    return tuple(int(word) for word in words)


def _plan(candidate: PlanCandidate) -> tuple[ParallelPlan, str | None]:
    return candidate.replica.considered.plan, candidate.replica.considered.weights


def _worth(candidate: PlanCandidate) -> tuple[bool, float]:
    considered = candidate.replica.considered
    if considered.best is None:
        return False, -considered.states[0].step_s
    return True, considered.requests_per_s_and_gpu or 0.0

"""Which plans to replay: every plan of every cluster by its step table, and the best of each."""

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
from llm_perf_opt.serving.capacity.outcome import Promise
from llm_perf_opt.serving.capacity.steady_state import MeanRequest
from llm_perf_opt.serving.engine_settings import SeenDevice
from llm_perf_opt.serving.served_model import Replica, ServedModel
from llm_perf_opt.timing.step.request_time import FirstToken

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked for. None: everything is considered, or the engine's default holds."""

    tp: int | None
    ep: int | None
    pp: int
    attention_dp: int | None
    replicas: int | None
    max_sequences: tuple[int | None, ...]
    max_batched_tokens: tuple[int | None, ...]
    promise: Promise | None


def taken_plan(workload: dict[str, Any], promise: Promise | None, *, is_alone: bool) -> Asked:
    """What is asked of plans among the keywords of a workload, which are left without it.

    With `is_alone` one replica is enough, since the rate of others is the same.
    """
    names = ("tp", "ep", "pp", "attention_dp", "replicas", "max_sequences", "max_batched_tokens")
    given = {name: workload.pop(name, None) for name in names}
    return Asked(
        tp=given["tp"],
        ep=given["ep"],
        pp=given["pp"] or 1,
        attention_dp=given["attention_dp"],
        replicas=1 if is_alone and given["replicas"] is None else given["replicas"],
        max_sequences=_numbers(given["max_sequences"], "max_sequences"),
        max_batched_tokens=_numbers(given["max_batched_tokens"], "max_batched_tokens"),
        promise=promise,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCandidate:
    """A plan on a cluster, and how many replicas of it there are."""

    cluster: Cluster
    served: ServedModel
    replica: Replica
    replicas: int
    seen: SeenDevice | None = None  # which an engine believes in; None: the device itself


def read_clusters(devices: str | Sequence[str | Cluster], devices_file: Path | None) -> tuple[Cluster, ...]:
    """One cluster, or several with commas between them."""
    given = devices.split(",") if isinstance(devices, str) else devices
    found = tuple(parse_cluster(one.strip(), devices_file) if isinstance(one, str) else one for one in given if one)
    if not found:
        raise UsageError("No devices are named.", why="the list is empty", fix='write --devices "8x h100-sxm"')
    return found


def candidates(
    served: ServedModel,
    clusters: Sequence[Cluster],
    mean: MeanRequest,
    asked: Asked,
    refused: list[str],
    *,
    is_closed: bool = False,
    client: FirstToken | None = None,
    is_worth: Callable[[ParallelPlan], bool] = lambda _: True,
) -> Iterator[PlanCandidate]:
    """Every plan with room for requests, small ones first; the names of those without are added to `refused`.

    A plan that is not worth it is left out when its turn comes.
    """
    shared = SeenDevice.of(clusters[0].device) if len({cluster.device.id for cluster in clusters}) > 1 else None
    for cluster in clusters:
        plans = _plans(served, cluster, asked)
        log.info("%s: %s", cluster.device.id, format_number_of(len(plans), "plan"))
        ways = product(plans, asked.max_sequences, asked.max_batched_tokens)
        for plan, max_sequences, max_batched_tokens in ways:
            if not is_worth(plan):
                continue
            log.debug("Plan %s on %s", plan.describe(), cluster)
            replica = served.replica(
                cluster.device,
                plan,
                mean,
                asked.promise,
                max_sequences=max_sequences,
                max_batched_tokens=max_batched_tokens,
                cluster=cluster,
                is_closed=is_closed,
                client=client,
            )
            if replica is None:
                refused.append(f"{cluster.device.id} {plan.describe()}")
                continue
            replicas = asked.replicas or cluster.count // plan.replica_ranks
            yield PlanCandidate(cluster=cluster, served=served, replica=replica, replicas=replicas, seen=shared)


def _plans(served: ServedModel, cluster: Cluster, asked: Asked) -> list[ParallelPlan]:
    """Ranks that share a layer stay in one node and divide its heads; groups of them may share experts."""
    sizes = [asked.tp] if asked.tp is not None else [2**power for power in range(10)]
    found = []
    for tp in sizes:
        if tp * asked.pp > cluster.count or tp > cluster.per_node or served.heads % tp:
            if asked.tp is not None:
                raise UsageError(
                    f"tp{tp} does not run on {cluster}.",
                    why=f"{cluster.per_node} GPUs share a node, and the model has {served.heads} heads to divide",
                    fix="choose a tp that divides the heads, and no larger than a node",
                )
            continue
        for groups in _groups(served, cluster, asked, tp):
            found += [
                ParallelPlan(tp=tp, pp=asked.pp, attention_dp=groups, ep=tp * groups if is_whole else 1)
                for is_whole in _expert_choices(served, asked, tp, groups)
            ]
    if not found:
        raise UsageError(
            f"vLLM does not spread experts over {asked.ep} ranks here.",
            why="each lies whole on one rank of a replica, and tp x attention-dp are there, or is divided among all",
            fix="give --tp and --attention-dp such that --ep is their product, or leave --ep out",
        )
    return sorted(found, key=lambda plan: plan.replica_ranks)


def _groups(served: ServedModel, cluster: Cluster, asked: Asked, tp: int) -> list[int]:
    """How many groups of `tp` ranks share the experts of a replica. Without experts they would be replicas."""
    most = cluster.count // tp
    can_share = served.has_experts and asked.pp == 1
    if asked.attention_dp is None:
        return [2**power for power in range(10) if power == 0 or (can_share and 2**power <= most)]
    if asked.attention_dp > 1 and not can_share:
        raise UsageError(
            f"attention-dp{asked.attention_dp} is nothing that vLLM does with this model.",
            why="groups of ranks share the experts of one stage; where they cannot, they are replicas",
            fix=f"write --replicas {asked.attention_dp} in place of --attention-dp",
        )
    if asked.attention_dp > most:
        raise UsageError(
            f"attention-dp{asked.attention_dp} of tp{tp} has no room on {cluster}.",
            why=f"{most} groups have",
            fix="lower it",
        )
    return [asked.attention_dp]


def _expert_choices(served: ServedModel, asked: Asked, tp: int, groups: int) -> tuple[bool, ...]:
    """Whether each expert lies whole on one rank: as asked; else with groups always, and both ways without them."""
    if asked.ep is not None:
        return (asked.ep > 1,) if asked.ep in (1, tp * groups) else ()
    if not served.has_experts or tp * groups == 1:
        return (False,)
    return (True,) if groups > 1 else (False, True)


def worth_replaying(found: Sequence[PlanCandidate], promise: Promise | None) -> list[PlanCandidate]:
    """For each cluster the plan with the most requests a second and GPU in a steady state that keeps the promise.

    With a promise the next best plan of the cluster too: its shorter steps may keep what the first one breaks by
    chance. Where none keeps it, the fastest to answer come first.
    """
    chosen: list[PlanCandidate] = []
    for cluster in dict.fromkeys(str(one.cluster) for one in found):
        ranked = sorted((one for one in found if str(one.cluster) == cluster), key=_worth, reverse=True)
        others = [one for one in ranked if _plan(one) != _plan(ranked[0]) and one.replica.considered.best is not None]
        chosen += [ranked[0], *(others[:1] if promise is not None else [])]
    return chosen


def _numbers(given: int | str | None, name: str) -> tuple[int | None, ...]:
    """One number or several with commas; nothing: the default of the device."""
    if given is None:
        return (None,)
    words = str(given).split(",")
    if not all(word.strip().isdigit() and 0 < int(word.strip()) < 2**24 for word in words):
        raise UsageError(
            f"{str(given)[:60]!r} is no {name}.", why="it is a whole number from 1 on", fix="write 8192, or 2048,8192"
        )
    return tuple(int(word) for word in words)


def _plan(one: PlanCandidate) -> tuple[ParallelPlan, str | None]:
    return one.replica.considered.plan, one.replica.considered.weights


def _worth(one: PlanCandidate) -> tuple[bool, float]:
    considered = one.replica.considered
    if considered.best is None:
        return False, -considered.states[0].step_s
    return True, considered.requests_per_s_and_gpu or 0.0

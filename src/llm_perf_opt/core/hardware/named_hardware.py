"""The hardware that an answer is for: one device, or a cluster of them on which the ranks of a plan run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import Cluster, parse_cluster
from llm_perf_opt.core.parallel_plan import ParallelPlan, plan_in

Hardware = Device | Cluster


def find_hardware(given: str | Hardware, devices_file: Path | None = None) -> Hardware:
    """What a text means: a device by its id or reported name, or a cluster such as `8x h100-sxm`."""
    if not isinstance(given, str):
        return given
    cluster = parse_cluster(given, devices_file)
    return cluster if cluster.count > 1 else cluster.device


def device_of(hardware: Hardware) -> Device:
    """The device itself, or the one that a cluster has several of."""
    return hardware.device if isinstance(hardware, Cluster) else hardware


def cluster_of(hardware: Hardware) -> Cluster | None:
    """The cluster; None for one device, which has no links."""
    return hardware if isinstance(hardware, Cluster) else None


def hardware_id(hardware: Hardware | None) -> str | None:
    """How the header of a trace names it; `find_hardware` reads it again. None: no hardware was named."""
    return str(hardware) if isinstance(hardware, Cluster) else None if hardware is None else hardware.id


def require_room(graphs: Sequence[CallGraph], hardware: Hardware) -> None:
    """Refuse a cluster with fewer devices than the traced plan has ranks."""
    plan = plan_in(graphs[0].deployment) if graphs else None
    if plan is not None and isinstance(hardware, Cluster):
        refuse_small_cluster(plan, hardware)


def refuse_small_cluster(plan: ParallelPlan, cluster: Cluster) -> None:
    """Refuse a cluster with fewer devices than the plan has ranks."""
    if plan.ranks > cluster.count:
        raise UsageError(
            f"The {plan.ranks:,} ranks of {plan.describe()} do not fit on {cluster}.",
            why=f"it has {cluster.count:,} devices, and each rank needs one",
            fix=f'name a larger cluster, such as --device "{plan.ranks}x {cluster.device.id}"',
        )

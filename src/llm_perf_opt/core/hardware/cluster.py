"""Clusters as people write them, `8x h100-sxm`, `4x8 h100-sxm`, `72x gb200`: devices, nodes, and their links."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.collectives import GroupRanks
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.device import Device
from llm_perf_opt.core.hardware.links import MOST_GPUS, Link, Node, load_links
from llm_perf_opt.core.hardware.table import find_device

_CLUSTER = re.compile(
    r"(?:(?P<count>\d{1,9})\s*x\s*(?:(?P<each>\d{1,9})\s+)?)?(?P<name>\S.*?)(?:\s+via\s+(?P<link>\S+))?", re.IGNORECASE
)
_HOW = "write 8x h100-sxm for one node, 4x8 h100-sxm for four nodes, 2x8 h100-sxm via roce-400 for another network"


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """How the ranks of a group lie on nodes: on how many, and how many of them on the fullest."""

    ranks: int
    nodes: int
    most_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes of one device: `per_node` GPUs joined by the link `inside`, nodes joined by the link `between`.

    Rank r runs on node r // per_node. A link that is None is not known: collectives over it have no time.
    """

    device: Device
    nodes: int = 1
    per_node: int = 1
    inside: Link | None = None
    between: Link | None = None
    via: str | None = None  # the id of `between` where it is another than that of the device's nodes

    @property
    def count(self) -> int:
        """GPUs in all."""
        return self.nodes * self.per_node

    def __str__(self) -> str:
        size = f"{self.nodes}x{self.per_node}" if self.nodes > 1 else f"{self.per_node}x"
        return f"{size} {self.device.id}{f' via {self.via}' if self.via else ''}"

    def placement(self, group: GroupRanks) -> RankPlacement | None:
        """Where the ranks of a group run; None: they are not all in this cluster, or which they are is not recorded."""
        first, last = sorted((group.first, group.last))
        if last >= self.count:
            return None
        if first // self.per_node == last // self.per_node:
            return RankPlacement(group.size, 1, group.size)
        if not group.stride:
            return None
        by_node = Counter(rank // self.per_node for rank in range(first, last + 1, abs(group.stride)))
        return RankPlacement(group.size, len(by_node), max(by_node.values())) if by_node.total() == group.size else None


def parse_cluster(text: str, devices_file: Path | None = None) -> Cluster:
    """The cluster that a text means.

    `8x NAME` is one node if a node holds as many, otherwise whole nodes: 16 of a device with nodes of 8 are two nodes,
    12 are refused. `4x8 NAME` is four nodes with 8 GPUs each. `NAME` alone is one GPU. `via LINK` replaces the link
    between nodes.
    """
    found = _CLUSTER.fullmatch(" ".join(text.replace("\N{MULTIPLICATION SIGN}", "x").split()))
    if found is None:
        raise UsageError(f"{text[:80]!r} names no cluster.", why="it needs at least the name of a device", fix=_HOW)
    device = find_device(found["name"], devices_file)
    links = load_links(devices_file)
    node = links.nodes.get(device.id)
    nodes, per_node = _sizes(int(found["count"] or 1), found["each"], device, node)
    between = links.find(found["link"]) if found["link"] else None if node is None else node.between
    return Cluster(
        device=device,
        nodes=nodes,
        per_node=per_node,
        inside=None if node is None else node.inside,
        between=between,
        via=found["link"],
    )


def _sizes(count: int, each: str | None, device: Device, node: Node | None) -> tuple[int, int]:
    """Nodes, and GPUs in each."""
    total = count * (1 if each is None else int(each))
    if not 1 <= total <= MOST_GPUS:
        raise UsageError(f"A cluster cannot have {total:,} GPUs.", why=f"1 to {MOST_GPUS:,} are taken", fix=_HOW)
    if each is not None:
        if node is not None and int(each) > node.gpus:
            raise UsageError(
                f"A node of {device.id} does not hold {int(each):,} GPUs.",
                why=f"one link joins {node.gpus} of them",
                fix=f"write {total}x {device.id}, or describe your node as [nodes.{device.id}] in a file for --devices",
            )
        return count, int(each)
    if node is None or count <= node.gpus:
        return 1, count
    if count % node.gpus:
        below = count // node.gpus * node.gpus
        raise UsageError(
            f"{count:,} GPUs are no whole number of nodes.",
            why=f"a node of {device.id} holds {node.gpus}, and which node would hold fewer is not said",
            fix=f"write {below}x or {below + node.gpus}x {device.id}, or equal parts of nodes such as 2x{count // 2}"
            if count % 2 == 0 and count // 2 <= node.gpus
            else f"write {below}x or {below + node.gpus}x {device.id}",
        )
    return count // node.gpus, node.gpus

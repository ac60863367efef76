"""Links between GPUs: how many bytes one GPU can send over them, and which of them join a node and its neighbours."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.collectives import GroupRanks
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.device import (
    DEVICE_FILE,
    GIGA,
    MICRO_IN_NANO,
    Device,
    PositiveDecimal,
    find_device,
    load_devices,
    positive_decimal,
)
from llm_perf_opt.core.parallel_plan import ParallelPlan, plan_in
from llm_perf_opt.core.reading import as_record, naming_file, parse_toml, read_bytes


class LinkKind(StrEnum):
    """What a link is made of; the fraction of it that collectives reach goes by this."""

    NVLINK = "nvlink"
    INFINITY_FABRIC = "infinity-fabric"
    PCIE = "pcie"
    INFINIBAND = "infiniband"
    ROCE = "roce"
    ETHERNET = "ethernet"
    CHIP_TO_CHIP = "chip-to-chip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What one GPU can send over a link, in base units. None is unknown, never zero.

    `bytes_per_s` is one direction, of one GPU: while it sends as much, it can receive as much. `peer_bytes_per_s` is
    what of it reaches one other GPU; None: all of it, as through a switch. `latency_ns` is one step of a collective.
    `reduces_in_network`: switches can add up values on the way; None: not known, and a lower bound grants it.
    `unverified` names the figures, as the file spells them, that were read in none of the `sources`.
    """

    id: str
    name: str
    kind: LinkKind
    bytes_per_s: int
    peer_bytes_per_s: int | None = None
    latency_ns: int | None = None
    reduces_in_network: bool | None = None
    sources: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    notes: str | None = None

    def reach_bytes_per_s(self, peers: int) -> int:
        """What one GPU can send to this many others directly."""
        return (
            self.bytes_per_s if self.peer_bytes_per_s is None else min(self.bytes_per_s, peers * self.peer_bytes_per_s)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """How GPUs of one kind are sold together: `gpus` of them joined by the link `inside`, nodes by the link `between`.

    A node is a domain of the fast link: a rack of 72 is one node where NVLink joins all 72. None: no link is known.
    """

    device: str
    gpus: int
    inside: Link | None = None
    between: Link | None = None
    sources: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    notes: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """Every known link by id, and every known node by the id of its device."""

    links: Mapping[str, Link]
    nodes: Mapping[str, Node]

    def find(self, name: str) -> Link:
        """The link with this id, without regard to case; anything else raises."""
        wanted = name.strip().casefold()
        for identifier, link in self.links.items():
            if identifier.casefold() == wanted:
                return link
        near = difflib.get_close_matches(wanted, self.links, n=3, cutoff=0.4)
        raise UsageError(
            f"There is no link named {name[:80]!r}.",
            why=f"similar names are: {', '.join(near)}" if near else f"the links are: {', '.join(self.links)}",
            fix="give one of them, or describe the link as [links.<id>] in a file for --devices",
        )


def host_link(device: Device) -> Link | None:
    """What joins a GPU to the memory of its host: the link of a superchip, or the device's PCIe. None: not known."""
    links, pcie = load_links().links, str(device.facts.get("pcie", ""))
    if "Superchip" in str(device.facts.get("form_factor", "")):
        return links.get("nvlink-c2c")
    generation, _, lanes = pcie.partition(" x")
    return links.get(f"pcie-{generation.partition('.')[0]}-x{lanes}")


# Links and nodes as TOML: tables `[links.<id>]` and `[nodes.<device>]`, in the file of devices or in one of their own.
#
# Like a table of devices it speaks in the units of data sheets, and is read with every mistake named.

MOST_GPUS = 65_536  # in one node: more is a slip of the pen
TABLES = frozenset({"links", "nodes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _LinkTable:
    """One `[links.<id>]` of a file, key by key."""

    name: str
    kind: str
    gb_per_s_each_way: PositiveDecimal
    gb_per_s_to_one_peer: PositiveDecimal | None = None
    latency_us: PositiveDecimal | None = None
    reduces_in_network: bool | None = None
    sources: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    notes: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeTable:
    """One `[nodes.<device>]` of a file."""

    gpus: int
    inside: str | None = None
    between: str | None = None
    sources: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    notes: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _LinkFile:
    links: Mapping[str, _LinkTable] = field(default_factory=dict)
    nodes: Mapping[str, _NodeTable] = field(default_factory=dict)


_ALL = "all"  # in place of devices: every one that is known


def load_links(devices_file: Path | None = None) -> LinkTable:
    """The package's links and nodes, and the user's; one of the user's file replaces the package's with the same id."""
    known = _package_links()
    if devices_file is None:
        return known
    return read_links(read_bytes(devices_file, DEVICE_FILE), str(devices_file), known)


@cache
def _package_links() -> LinkTable:
    raw = resources.files(__package__).joinpath("links.toml").read_bytes()
    return read_links(raw, "links.toml", LinkTable(links={}, nodes={}))


def read_links(text: str | bytes, origin: str, known: LinkTable) -> LinkTable:
    """The known links and nodes, and the ones in a TOML text; `origin` names the file in errors."""
    with naming_file(origin):
        document = parse_toml(text.encode() if isinstance(text, str) else text, DEVICE_FILE)
        chosen = {key: value for key, value in document.items() if key in TABLES}
        tables = as_record(chosen, _LinkFile, DEVICE_FILE, hook=positive_decimal)
        given = {identifier: _link(identifier, table) for identifier, table in tables.links.items()}
        merged = LinkTable(links={**known.links, **given}, nodes=known.nodes)
        renewed = {device: _with_links(node, given) for device, node in known.nodes.items()}
        mine = {device: _node(device, table, merged) for device, table in tables.nodes.items()}
        return LinkTable(links=merged.links, nodes={**renewed, **mine})


def _with_links(node: Node, given: Mapping[str, Link]) -> Node:
    """The node with the links of the same id that a file gives."""
    inside, between = (None if link is None else given.get(link.id, link) for link in (node.inside, node.between))
    return replace(node, inside=inside, between=between)


def _link(identifier: str, table: _LinkTable) -> Link:
    complain = _complainer(f"Link {identifier[:80]!r}")
    if not table.name:
        raise complain("'name' is empty", "a link needs it to be told from others")
    if table.kind not in set(LinkKind):
        raise complain(f"there is no kind {table.kind[:80]!r}", f"kinds are: {', '.join(LinkKind)}")
    _require_sources(table.sources, complain)
    rate, peer, latency = (
        None if number is None else int(number * scale)
        for number, scale in (
            (table.gb_per_s_each_way, GIGA),
            (table.gb_per_s_to_one_peer, GIGA),
            (table.latency_us, MICRO_IN_NANO),
        )
    )
    if rate is None or rate < 1 or (peer is not None and not 1 <= peer <= rate):
        raise complain("its rates do not fit together", "one peer gets at least a byte and at most the whole rate")
    if latency is not None and latency < 1:
        raise complain("'latency_us' is too small", "it is less than one nanosecond")
    return Link(
        id=identifier,
        name=table.name,
        kind=LinkKind(table.kind),
        bytes_per_s=rate,
        peer_bytes_per_s=peer,
        latency_ns=latency,
        reduces_in_network=table.reduces_in_network,
        **_shared(table),
    )


def _node(device: str, table: _NodeTable, links: LinkTable) -> Node:
    complain = _complainer(f"The node of {device[:80]!r}")
    if not 1 <= table.gpus <= MOST_GPUS:
        raise complain(f"'gpus' cannot be {table.gpus:,}", f"a node holds 1 to {MOST_GPUS:,}")
    _require_sources(table.sources, complain)
    inside, between = (None if name is None else links.find(name) for name in (table.inside, table.between))
    return Node(device=device, gpus=table.gpus, inside=inside, between=between, **_shared(table))


def _shared(table: _LinkTable | _NodeTable) -> dict[str, Any]:
    """What links and nodes say alike."""
    return {key: getattr(table, key) for key in ("sources", "disagreements", "unverified", "notes")}


def _require_sources(sources: tuple[str, ...], complain: Callable[[str, str], UsageError]) -> None:
    if not sources:
        raise complain("it names no sources", "a figure that cannot be looked up cannot be trusted")


def _complainer(subject: str) -> Callable[[str, str], UsageError]:
    def complain(what: str, why: str) -> UsageError:
        return UsageError(f"{subject}: {what}.", why=why, fix="see `add a device` in the documentation for the keys")

    return complain


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
    via: str | None = None  # the id of `between` where it is not the link that the device's nodes have

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
    match = _CLUSTER.fullmatch(" ".join(text.replace("\N{MULTIPLICATION SIGN}", "x").split()))
    if match is None:
        raise UsageError(f"{text[:80]!r} names no cluster.", why="it needs at least the name of a device", fix=_HOW)
    device = find_device(match["name"], devices_file)
    links = load_links(devices_file)
    node = links.nodes.get(device.id)
    nodes, per_node = _sizes(int(match["count"] or 1), match["each"], device, node)
    between = links.find(match["link"]) if match["link"] else None if node is None else node.between
    return Cluster(
        device=device,
        nodes=nodes,
        per_node=per_node,
        inside=None if node is None else node.inside,
        between=between,
        via=match["link"],
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
            f"{count:,} GPUs do not fill whole nodes.",
            why=f"a node of {device.id} holds {node.gpus}, and nothing says which node would hold fewer",
            fix=f"write {below}x or {below + node.gpus}x {device.id}, or equal parts of nodes such as 2x{count // 2}"
            if count % 2 == 0 and count // 2 <= node.gpus
            else f"write {below}x or {below + node.gpus}x {device.id}",
        )
    return count // node.gpus, node.gpus


Hardware = Device | Cluster


def find_hardware(given: str | Hardware, devices_file: Path | None = None) -> Hardware:
    """What a text means: a device by its id or reported name, or a cluster such as `8x h100-sxm`."""
    if not isinstance(given, str):
        return given
    cluster = parse_cluster(given, devices_file)
    return cluster if cluster.count > 1 else cluster.device


def device_names(given: str | Sequence[str | Hardware], devices_file: Path | None = None) -> list[str | Hardware]:
    """`l4, 8x h100-sxm` as a list, with every known device in the place of `all`."""
    names = [name.strip() for name in given.split(",")] if isinstance(given, str) else list(given)
    if _ALL in names:
        names = [*names[: names.index(_ALL)], *load_devices(devices_file).devices, *names[names.index(_ALL) + 1 :]]
    return [name for name in names if name]


def find_devices(given: str | Sequence[str | Hardware], devices_file: Path | None = None) -> tuple[Hardware, ...]:
    """`l4,l40s`, `all`, or a list of names: each device once, in that order; a wrong one is refused before any work."""
    hardware = [find_hardware(name, devices_file) for name in device_names(given, devices_file)]
    if not hardware:
        raise UsageError("No device is named.", why="each is one row", fix="name some, such as l4,h100-sxm, or all")
    return tuple({hardware_id(each): each for each in hardware}.values())


def is_several(device: str | None) -> bool:
    """Whether a text names several devices."""
    return device is not None and ("," in device or device.strip() == _ALL)


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

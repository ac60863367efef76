"""Links between GPUs: how many bytes one GPU can send over them, and which of them join a node and its neighbours."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from llm_perf_opt.core.errors import UsageError


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
        """What one GPU can send to so many others directly."""
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
            f"No link is known as {name[:80]!r}.",
            why=f"near are: {', '.join(near)}" if near else f"known are: {', '.join(self.links)}",
            fix="give one of them, or describe the link as [links.<id>] in a file for --devices",
        )

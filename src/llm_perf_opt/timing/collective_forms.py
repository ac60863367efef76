"""The usual ways to run a collective: how many steps each takes, and how many bytes a rank moves over which link.

g ranks lie on k nodes, at most m on one; N is the payload. On one node k is 1 and m is g.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from llm_perf_opt.core.collectives import CollectiveKind
from llm_perf_opt.core.hardware.links import RankPlacement

_PEERS_AT_ONCE = 8  # sends that NCCL runs side by side (src/include/device.h, NCCL_MAX_DEV_WORK_P2P_PER_BATCH)
_CHAIN = 8  # GPUs of one domain that a tree visits one after the other before it branches


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveForm:
    """One way: steps one after the other, and bytes that one rank sends, inside its node and out of it."""

    name: str
    steps_inside: int
    steps_between: int
    bytes_inside: float
    bytes_between: float
    is_in_switch: bool = False  # the switch of the node adds up: it reaches another share of the link


def fast_forms(
    kind: CollectiveKind, payload: int, at: RankPlacement, *, adds_inside: bool, adds_between: bool
) -> list[CollectiveForm]:
    """What the best implementations do: every peer at once, sums in the switches where these can add."""
    hops = (int(at.most_per_node > 1), int(at.nodes > 1))
    if kind is CollectiveKind.ALL_REDUCE:
        return _fast_all_reduce(payload, at, adds_inside=adds_inside, adds_between=adds_between)
    inside, between = _least_bytes(kind, payload, at)
    name = "point to point" if kind in _ONE_PEER else "pairwise" if kind is CollectiveKind.ALL_TO_ALL else "direct"
    return [_form(name, hops, inside, between)]


def usual_forms(kind: CollectiveKind, payload: int, at: RankPlacement) -> list[CollectiveForm]:
    """What libraries do without help of the switches: rings, trees for short messages, pairs."""
    inside, between = _least_bytes(kind, payload, at)
    ring_steps = (at.ranks - at.nodes, at.nodes - 1)
    if kind is CollectiveKind.ALL_TO_ALL:
        steps = (at.most_per_node - 1, math.ceil((at.ranks - at.most_per_node) / _PEERS_AT_ONCE))
        return [_form("pairwise", steps, inside, between)]
    if kind in _ONE_PEER:
        return [_form("point to point", ring_steps, inside, between)]
    if kind is not CollectiveKind.ALL_REDUCE:
        return [_form("ring", ring_steps, inside, between)]
    depth = min(at.most_per_node, _CHAIN) - 1 + math.ceil(math.log2(max(1.0, at.most_per_node / _CHAIN)))
    tree_steps = (2 * depth, 2 * math.ceil(math.log2(at.nodes)))
    once_inside, once_between = float(payload if at.most_per_node > 1 else 0), payload / at.most_per_node
    return [
        _form("ring", (2 * ring_steps[0], 2 * ring_steps[1]), 2 * inside, 2 * between),
        _form("tree", tree_steps, 2 * once_inside, 2 * once_between if at.nodes > 1 else 0.0),
    ]


_ONE_PEER = frozenset({CollectiveKind.SEND, CollectiveKind.RECV})
_Bytes = Callable[[int, RankPlacement], tuple[float, float]]


def _fast_all_reduce(payload: int, at: RankPlacement, *, adds_inside: bool, adds_between: bool) -> list[CollectiveForm]:
    """One shot (read everything of every peer), two shots (scatter, then gather), and sums in the switch of a node."""
    scatter, between = _scatter_bytes(payload, at)
    steps = (2 * int(at.most_per_node > 1), 2 * int(at.nodes > 1))
    if at.nodes > 1:
        out = payload / at.most_per_node if adds_between else 2 * between
        forms = [_form("hierarchical", steps, 2 * scatter, out)]
    else:
        out = 0.0
        one_shot = _form("one shot", (1, 0), (at.ranks - 1) * payload, 0.0)
        forms = [one_shot, _form("two shots", steps, 2 * scatter, 0.0)]
    if adds_inside:
        forms.append(replace(_form("in-switch", steps, payload, out), is_in_switch=True))
    return forms


def _least_bytes(kind: CollectiveKind, payload: int, at: RankPlacement) -> tuple[float, float]:
    by_kind: dict[CollectiveKind, _Bytes] = {
        CollectiveKind.ALL_TO_ALL: _exchange_bytes,
        CollectiveKind.BROADCAST: _whole_bytes,
        CollectiveKind.SEND: _whole_bytes,
        CollectiveKind.RECV: _whole_bytes,
    }
    return by_kind.get(kind, _scatter_bytes)(payload, at)


def _scatter_bytes(payload: int, at: RankPlacement) -> tuple[float, float]:
    """Gather, or scatter with sums: the parts of other nodes cross once, and are then passed on inside."""
    share = payload / at.ranks
    between = (at.ranks - at.most_per_node) * share / at.most_per_node
    return (at.ranks - 1) * share - between, between


def _exchange_bytes(payload: int, at: RankPlacement) -> tuple[float, float]:
    """An equal part for every rank."""
    share = payload / at.ranks
    return (at.most_per_node - 1) * share, (at.ranks - at.most_per_node) * share


def _whole_bytes(payload: int, at: RankPlacement) -> tuple[float, float]:
    """Everything goes to every node, and there to every rank."""
    inside = float(payload) if at.most_per_node > 1 else 0.0
    return inside, payload / at.most_per_node if at.nodes > 1 else 0.0


def _form(name: str, steps: tuple[int, int], inside: float, between: float) -> CollectiveForm:
    return CollectiveForm(
        name=name, steps_inside=steps[0], steps_between=steps[1], bytes_inside=inside, bytes_between=between
    )

"""How long a collective takes on a cluster: a lower bound that holds for every algorithm, and a band of what is usual.

The bound counts the bytes that must enter or leave one rank, or one node, whatever the algorithm, at the full rate of
its links, and no latency. The band runs from the best form at the highest fraction of the link that anyone reached to
the usual forms at the lowest. Groups of one plan run side by side: each rank has its own adapter out of the node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llm_perf_opt.core.collectives import Collective, CollectiveKind
from llm_perf_opt.core.hardware.links import Cluster, Link, LinkKind, RankPlacement
from llm_perf_opt.core.hardware.priors import LinkPriors, link_priors
from llm_perf_opt.timing.collective_forms import CollectiveForm, fast_forms, usual_forms

_NANO = 10**9
_MICRO_IN_NANO = 1000
_ENGINE_BYTES = 128 * 1024  # up to here engines reduce with kernels of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """One collective on one cluster. What is None is not known, and `why_unknown` says why.

    `form` names the form of the low edge and, where it is another, that of the high edge; `link` the slowest link used.
    """

    bound_ns: int | None
    low_ns: int | None = None
    high_ns: int | None = None
    form: str | None = None
    link: str | None = None
    why_unknown: str | None = None


def collective_time(
    collective: Collective, cluster: Cluster, priors: LinkPriors | None = None, *, by_engine: bool = False
) -> CollectiveTime:
    """The bound and the band of one collective of one group, with nothing else on the links.

    `by_engine`: a serving engine runs it, which has its own kernels for short all-reduces over NVLink.
    """
    if collective.group.size == 1:
        return CollectiveTime(bound_ns=0, low_ns=0, high_ns=0, form="one rank")
    at = cluster.placement(collective.group)
    if at is None:
        why = f"where ranks {collective.group} run on {cluster} is not known"
        return CollectiveTime(bound_ns=None, why_unknown=why)
    links = _links(at, cluster)
    if isinstance(links, str):
        return CollectiveTime(bound_ns=None, why_unknown=links)
    bound_ns = math.floor(_bound_s(collective, at, links) * _NANO)
    slowest = links.between or links.inside
    name = None if slowest is None else slowest.id
    if late := [link.id for link in (links.inside, links.between) if link is not None and link.latency_ns is None]:
        why = f"no latency of {' and '.join(late)} is known"
        return CollectiveTime(bound_ns=bound_ns, link=name, why_unknown=why)
    low, fast = _edge(collective, at, links, priors or link_priors(), is_low=True)
    high, usual = _edge(collective, at, links, priors or link_priors(), is_low=False)
    if by_engine and _has_engine_kernel(collective, at, links):
        high, usual = min((high, usual), _engine_high(collective, at, links, priors or link_priors()))
    return CollectiveTime(
        bound_ns=bound_ns,
        low_ns=max(bound_ns, math.floor(low)),
        high_ns=math.ceil(max(low, high)),
        form=fast if fast == usual else f"{fast} to {usual}",
        link=name,
    )


@dataclass(frozen=True, slots=True)
class _Links:
    """The links that a group uses: None where it does not need one."""

    inside: Link | None
    between: Link | None


def _links(at: RankPlacement, cluster: Cluster) -> _Links | str:
    """Or the reason why they are not known."""
    if at.most_per_node > 1 and cluster.inside is None:
        return f"no link between the GPUs of a node of {cluster.device.id} is known"
    if at.nodes > 1 and cluster.between is None:
        return f"no link between nodes of {cluster.device.id} is known"
    return _Links(cluster.inside if at.most_per_node > 1 else None, cluster.between if at.nodes > 1 else None)


def _bound_s(collective: Collective, at: RankPlacement, links: _Links) -> float:
    """The larger of two times: bytes through the ports of a rank, and bytes through the adapters of a node."""
    port_rate = sum(link.bytes_per_s for link in (links.inside, links.between) if link is not None)
    port_s = _port_bytes(collective, at, links) / port_rate
    return (
        port_s
        if links.between is None
        else max(port_s, _node_bytes(collective, at, links.between) / links.between.bytes_per_s)
    )


def _adds(link: Link | None) -> bool:
    """Whether switches may add up: a bound grants what is not known."""
    return link is not None and link.reduces_in_network is not False


def _port_bytes(collective: Collective, at: RankPlacement, links: _Links) -> float:
    """What must enter or leave a rank.

    Of an all-reduce every element leaves once, as a value or as a sum, and comes back once; without sums in a switch
    2 (g - 1) / g of it are needed (each rank sums its part, then passes it on), and no algorithm needs less.
    """
    payload = collective.payload_bytes
    others = (at.ranks - 1) / at.ranks
    if collective.kind is CollectiveKind.ALL_REDUCE:
        return payload if _adds(links.inside) or _adds(links.between) else 2 * others * payload
    if collective.kind in (CollectiveKind.BROADCAST, CollectiveKind.SEND, CollectiveKind.RECV):
        return payload
    return others * payload


def _node_bytes(collective: Collective, at: RankPlacement, between: Link) -> float:
    """What must enter or leave a node, for each of its adapters in use."""
    payload, most = collective.payload_bytes, at.most_per_node
    if collective.kind is CollectiveKind.ALL_REDUCE:
        return payload / most if _adds(between) else 2 * (at.nodes - 1) / at.ranks * payload
    if collective.kind in (CollectiveKind.BROADCAST, CollectiveKind.SEND, CollectiveKind.RECV):
        return payload / most
    outside = (at.ranks - most) / at.ranks * payload
    return outside if collective.kind is CollectiveKind.ALL_TO_ALL else outside / most


def _edge(
    collective: Collective, at: RankPlacement, links: _Links, priors: LinkPriors, *, is_low: bool
) -> tuple[float, str]:
    """The shortest form in nanoseconds, and its name: the best forms for the low edge, the usual ones for the high."""
    forms = (
        fast_forms(
            collective.kind,
            collective.payload_bytes,
            at,
            adds_inside=links.inside is not None and links.inside.reduces_in_network is True,
            adds_between=links.between is not None and links.between.reduces_in_network is True,
        )
        if is_low
        else usual_forms(collective.kind, collective.payload_bytes, at)
    )
    is_to_one = collective.kind in (CollectiveKind.SEND, CollectiveKind.RECV)
    return min((_form_ns(form, at, links, priors, is_low=is_low, is_to_one=is_to_one), form.name) for form in forms)


def _has_engine_kernel(collective: Collective, at: RankPlacement, links: _Links) -> bool:
    """All three large engines have one for this size, in one node."""
    is_short = collective.kind is CollectiveKind.ALL_REDUCE and collective.payload_bytes <= _ENGINE_BYTES
    return is_short and at.nodes == 1 and links.inside is not None and links.inside.kind is LinkKind.NVLINK


def _engine_high(collective: Collective, at: RankPlacement, links: _Links, priors: LinkPriors) -> tuple[float, str]:
    """One shot, every peer at once, at the high edge of what engines take."""
    form = CollectiveForm(
        name="one shot",
        steps_inside=1,
        steps_between=0,
        bytes_inside=(at.ranks - 1) * collective.payload_bytes,
        bytes_between=0.0,
    )
    as_usual = _form_ns(form, at, links, priors, is_low=False, is_to_one=False)
    return as_usual + (priors.engine_fixed_us.high - priors.fixed_us.high) * _MICRO_IN_NANO, form.name


def _form_ns(
    form: CollectiveForm, at: RankPlacement, links: _Links, priors: LinkPriors, *, is_low: bool, is_to_one: bool
) -> float:
    """Fixed cost, steps, and bytes: at the low edge the traffic inside and between nodes overlaps, at the high not."""
    fixed, factor = (prior.low if is_low else prior.high for prior in (priors.fixed_us, priors.step_factor))
    ns = fixed * _MICRO_IN_NANO
    traffic = [0.0]
    for link, steps, amount, ranks in (
        (links.inside, form.steps_inside, form.bytes_inside, at.most_per_node),
        (links.between, form.steps_between, form.bytes_between, at.nodes),
    ):
        if link is None:
            continue
        ns += steps * (link.latency_ns or 0) * factor
        is_in_switch = form.is_in_switch and link is links.inside
        prior = priors.in_switch_fraction if is_in_switch else priors.fraction(link.kind, ranks)
        rate = link.reach_bytes_per_s(1 if is_to_one else ranks - 1) * (prior.high if is_low else prior.low)
        traffic.append(amount / rate * _NANO)
    return ns + (max(traffic) if is_low else sum(traffic))

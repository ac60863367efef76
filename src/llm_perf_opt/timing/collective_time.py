"""How long a collective takes on a cluster: a lower bound that holds for every algorithm, and a band of what is usual.

The bound counts the bytes that must enter or leave one rank, or one node, whatever the algorithm, at the full rate of
its links, and no latency. The band runs from the best form at the highest fraction of the link that anyone reached to
the usual forms at the lowest. Groups of one plan run side by side: each rank has its own adapter out of the node.

A form is a usual way to run a collective: how many steps it takes, and how many bytes a rank moves over which link.
g ranks run on k nodes, at most m on one; N is the payload. On one node k is 1 and m is g.

An implementation may overlap the collectives of a stage with other work, by splitting a batch in two or by gathering
weights ahead. So the band runs from full overlap, the longer of the two alone, to none, their sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from llm_perf_opt.core.collectives import Collective, CollectiveKind
from llm_perf_opt.core.hardware.links import Cluster, Link, LinkKind, RankPlacement
from llm_perf_opt.core.hardware.priors import LinkPriors, link_priors
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.rates import NOTHING, Band

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
        CollectiveKind.ALL_TO_ALL: _all_to_all_bytes,
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


def _all_to_all_bytes(payload: int, at: RankPlacement) -> tuple[float, float]:
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


_NANO = 10**9
_MICRO_IN_NANO = 1000
_ENGINE_BYTES = 128 * 1024  # up to here engines reduce with kernels of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """One collective on one cluster. What is None is not known, and `why_unknown` says why.

    `form` names the form of the low estimate and, where it differs, of the high one; `link` is the slowest link used.
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
    """Nanoseconds and name of the shortest form: the best forms for the low estimate, the usual ones for high."""
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
    """One shot, every peer at once, at the high estimate of what engines take."""
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
    """Fixed cost, steps, and bytes: traffic inside and between nodes overlaps in the low estimate alone."""
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


NO_GROUP = "the trace does not record between which ranks"
NO_CLUSTER = "one device alone has no links: name the cluster, such as 8x h100-sxm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """The collectives that one rank runs in a stage.

    `sent_bytes` counts a ring or pairs, without sums in a switch. `band` is the time on the links if nothing
    else runs; None: at least one collective has no known time, and `unknown` says why, with how many.
    """

    collectives: int
    payload_bytes: int
    sent_bytes: int
    band: Band | None
    unknown: Mapping[str, int]

    def exposed(self, busy: Band) -> Band | None:
        """The part that other work of the device does not hide: with full overlap, and with none."""
        return None if self.band is None else Band(max(0.0, self.band.low - busy.low), self.band.high)


def communication_of(
    kernels: Mapping[Kernel, int], cluster: Cluster | None, *, by_engine: bool = False
) -> Communication | None:
    """The collectives among these kernels; None: there are none. `by_engine`: a serving engine runs them."""
    counted = [(kernel, count) for kernel, count in kernels.items() if kernel.kind is KernelKind.COMMUNICATION]
    if not counted:
        return None
    band = NOTHING
    unknown: Counter[str] = Counter()
    for kernel, count in counted:
        time = kernel_on_links(kernel, cluster, by_engine=by_engine)
        if (single := band_of(time)) is None:
            unknown[time.why_unknown or ""] += count
        else:
            band += single.times(count)
    known = [(kernel.collective, count) for kernel, count in counted if kernel.collective is not None]
    return Communication(
        collectives=sum(count for _, count in counted),
        payload_bytes=sum(collective.payload_bytes * count for collective, count in known),
        sent_bytes=round(sum(sent_bytes(collective) * count for collective, count in known)),
        band=None if unknown else band,
        unknown=dict(unknown),
    )


def kernel_on_links(kernel: Kernel, cluster: Cluster | None, *, by_engine: bool = False) -> CollectiveTime:
    """The time of one kernel of communication; what is not known says why."""
    if kernel.collective is None:
        return CollectiveTime(bound_ns=None, why_unknown=NO_GROUP)
    return time_on_links(kernel.collective, cluster, by_engine=by_engine)


def time_on_links(collective: Collective, cluster: Cluster | None, *, by_engine: bool = False) -> CollectiveTime:
    """The time of one collective; without a cluster only a group of one rank has a known time, zero."""
    if cluster is not None:
        return collective_time(collective, cluster, by_engine=by_engine)
    if collective.group.size > 1:
        return CollectiveTime(bound_ns=None, why_unknown=NO_CLUSTER)
    return CollectiveTime(bound_ns=0, low_ns=0, high_ns=0)


def band_of(time: CollectiveTime) -> Band | None:
    """In seconds; None: not known."""
    if time.low_ns is None or time.high_ns is None:
        return None
    return Band(time.low_ns * 1e-9, time.high_ns * 1e-9)


def overlapped(busy: Band, communication: Band) -> Band:
    """Other work and communication on one device: the longer of the two with full overlap, the sum with none.

    Engines overlap little of it, so that the sum is expected.
    """
    known = None not in (busy.expected, communication.expected)
    expected = (busy.expected or 0.0) + (communication.expected or 0.0) if known else None
    return Band(max(busy.low, communication.low), busy.high + communication.high, expected)


def sent_bytes(collective: Collective) -> float:
    """What a rank sends to others: an all-reduce 2 (g - 1) / g of its payload, what is scattered or gathered half."""
    payload, others = collective.payload_bytes, (collective.group.size - 1) / collective.group.size
    if collective.kind is CollectiveKind.ALL_REDUCE:
        return 2 * others * payload
    if collective.kind is CollectiveKind.RECV:
        return 0.0
    if collective.kind in (CollectiveKind.SEND, CollectiveKind.BROADCAST):
        return float(payload)
    return others * payload

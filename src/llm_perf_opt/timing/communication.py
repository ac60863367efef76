"""The collectives of a stage on one rank: bytes sent, their time on the links, and how much of it nothing hides.

An implementation may overlap communication with other work, by splitting a batch in two or by gathering weights ahead.
So the band runs from full overlap, the longer of the two alone, to none, their sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from llm_perf_opt.core.collectives import Collective, CollectiveKind
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.collective_time import CollectiveTime, collective_time
from llm_perf_opt.timing.rates import NOTHING, Band

_NANO = 1e-9
NO_GROUP = "the trace does not record between which ranks"
NO_CLUSTER = "one device alone has no links: name the cluster, such as 8x h100-sxm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """What one rank exchanges in a stage.

    `sent_bytes` are those of a ring or of pairs, without sums in a switch. `band` is the time on the links if nothing
    else runs; None: at least one collective has no known time, and `unknown` says why, with how many.
    """

    collectives: int
    payload_bytes: int
    sent_bytes: int
    band: Band | None
    unknown: Mapping[str, int]

    def exposed(self, busy: Band) -> Band | None:
        """What is left of it beside the other work of the device: with full overlap, and with none."""
        return None if self.band is None else Band(max(0.0, self.band.low - busy.low), self.band.high)


def communication_of(
    kernels: Mapping[Kernel, int], cluster: Cluster | None, *, by_engine: bool = False
) -> Communication | None:
    """The collectives among these kernels; None: there are none. `by_engine`: a serving engine runs them."""
    found = [(kernel, count) for kernel, count in kernels.items() if kernel.kind is KernelKind.COMMUNICATION]
    if not found:
        return None
    band = NOTHING
    unknown: Counter[str] = Counter()
    for kernel, count in found:
        time = kernel_on_links(kernel, cluster, by_engine=by_engine)
        if (each := band_of(time)) is None:
            unknown[time.why_unknown or ""] += count
        else:
            band += each.times(count)
    known = [(kernel.collective, count) for kernel, count in found if kernel.collective is not None]
    return Communication(
        collectives=sum(count for _, count in found),
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
    """The time of one collective; without a cluster only that of a group of one is known, which exchanges nothing."""
    if cluster is not None:
        return collective_time(collective, cluster, by_engine=by_engine)
    if collective.group.size > 1:
        return CollectiveTime(bound_ns=None, why_unknown=NO_CLUSTER)
    return CollectiveTime(bound_ns=0, low_ns=0, high_ns=0)


def band_of(time: CollectiveTime) -> Band | None:
    """In seconds; None: not known."""
    if time.low_ns is None or time.high_ns is None:
        return None
    return Band(time.low_ns * _NANO, time.high_ns * _NANO)


def beside(busy: Band, communication: Band) -> Band:
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

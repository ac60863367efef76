"""Clusters: how many GPUs, which links join them, and how long collectives between their ranks take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.collectives import Collective, CollectiveKind, GroupRanks, group_of
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.links import Cluster, Link, parse_cluster
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, Table, counted
from llm_perf_opt.core.units import format_bytes, format_seconds
from llm_perf_opt.timing.collective_time import CollectiveTime, collective_time

_SHOWN_BYTES = (2**14, 2**20, 2**26, 2**30)
_SHOWN_KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCollective:
    """A collective, and how long it takes on the cluster."""

    collective: Collective
    time: CollectiveTime


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClusterAnswer(Answer):
    """A cluster with its links, and the times of some collectives over all its ranks."""

    cluster: Cluster
    collectives: tuple[TimedCollective, ...]

    def time(self, kind: str, payload_bytes: int, ranks: range | tuple[int, ...] | None = None) -> CollectiveTime:
        """How long one collective takes: `all-reduce`, `all-to-all`, ... of so many bytes, over all ranks or these."""
        if kind not in set(CollectiveKind):
            raise UsageError(
                f"There is no collective {kind!r}.", why=f"there are: {', '.join(CollectiveKind)}", fix="choose one"
            )
        if payload_bytes < 0:
            raise UsageError("A payload cannot be below zero.", why="it is a number of bytes", fix="give another")
        if ranks is not None and not ranks:
            raise UsageError(
                "There are no ranks.", why="a collective needs at least one", fix="give some, or none at all"
            )
        group = group_of(range(self.cluster.count) if ranks is None else ranks)
        return collective_time(
            Collective(kind=CollectiveKind(kind), payload_bytes=payload_bytes, group=group), self.cluster
        )

    def report(self) -> Report:
        """The links, and the times."""
        cluster = self.cluster
        title = f"{cluster}: {cluster.count:,} x {cluster.device.name}"
        return Report(
            title=title,
            answer=tuple(self._lines()),
            tables=(self._times(), link_table(cluster.inside, cluster.between)),
            notes=tuple(self._notes()),
        )

    def _lines(self) -> Iterator[str]:
        """The links, and how long the largest all-reduce takes."""
        cluster = self.cluster
        links = [("inside a node", cluster.inside)]
        links += [("between nodes", cluster.between)] if cluster.nodes > 1 else []
        told = [f"{where} {'not known' if link is None else f'{link.id}'}" for where, link in links]
        yield f"{cluster}: {counted(cluster.count, 'device')}, {', '.join(told)}."
        known = [one for one in self.collectives if one.time.low_ns is not None and one.time.high_ns is not None]
        if known and (low := (largest := _largest(known)).time.low_ns) and (high := largest.time.high_ns):
            size = format_bytes(largest.collective.payload_bytes)
            band = f"{format_seconds(low / 10**9)} to {format_seconds(high / 10**9)}"
            yield f"{largest.collective.kind} of {size} over all of them: {band}."

    def _times(self) -> Table:
        return Table(
            title="Collectives",
            columns=(
                Column("collective"),
                Column("payload", Kind.BYTES),
                Column("ranks"),
                Column("bound", Kind.SECONDS),
                Column("low", Kind.SECONDS),
                Column("high", Kind.SECONDS),
                Column("form"),
                Column("slowest link"),
            ),
            rows=tuple(map(_time_row, self.collectives)),
        )

    def _notes(self) -> Iterator[Note]:
        yield Note(
            "Bound: no algorithm is faster. Low to high: what libraries reach, from the best form at the highest "
            "fraction of the link that anyone measured to rings at the lowest. Nothing else is on the links."
        )
        for why in dict.fromkeys(one.time.why_unknown for one in self.collectives if one.time.why_unknown):
            yield Note(f"Unknown: {why}. Describe it in a file for --devices.", Level.WARNING)
        for link in (self.cluster.inside, self.cluster.between if self.cluster.nodes > 1 else None):
            if link is not None and link.unverified:
                yield Note(f"Not read in a source: {', '.join(link.unverified)} of {link.id}.", Level.WARNING)


def cluster(text: str, devices_file: str | Path | None = None) -> ClusterAnswer:
    """The cluster that a text means: `8x h100-sxm`, `4x8 h100-sxm`, `72x gb200`, `2x8 h100-sxm via roce-400`."""
    found = parse_cluster(text, None if devices_file is None else Path(devices_file))
    group = group_of(range(found.count))
    shown = tuple(
        Collective(kind=kind, payload_bytes=payload, group=group) for kind in _SHOWN_KINDS for payload in _SHOWN_BYTES
    )
    if found.count > 1:
        far = GroupRanks(2, 0, found.count - 1, found.count - 1)
        shown += tuple(Collective(kind=CollectiveKind.SEND, payload_bytes=size, group=far) for size in _SHOWN_BYTES)
    return ClusterAnswer(
        cluster=found,
        collectives=tuple(TimedCollective(collective=one, time=collective_time(one, found)) for one in shown),
    )


def _largest(found: Sequence[TimedCollective]) -> TimedCollective:
    """The largest payload; the first kind of those."""
    return max(found, key=lambda one: one.collective.payload_bytes)


def link_table(inside: Link | None, between: Link | None) -> Table:
    """The link between the GPUs of a node and the one between nodes; unknown ones too."""
    return Table(
        title="Links",
        columns=(
            Column("where"),
            Column("link"),
            Column("kind"),
            Column("each way, of one GPU", Kind.BYTES_PER_S),
            Column("to one peer", Kind.BYTES_PER_S),
            Column("one step", Kind.SECONDS),
            Column("adds up in switches"),
            Column("not verified"),
        ),
        rows=(_link_row("inside a node", inside), _link_row("between nodes", between)),
    )


def _link_row(where: str, link: Link | None) -> tuple[Cell, ...]:
    if link is None:
        return (where, *[None] * 7)
    adds = None if link.reduces_in_network is None else "yes" if link.reduces_in_network else "no"
    return (
        where,
        link.id,
        str(link.kind),
        link.bytes_per_s,
        link.peer_bytes_per_s or link.bytes_per_s,
        None if link.latency_ns is None else link.latency_ns / 10**9,
        adds,
        ", ".join(link.unverified),
    )


def _time_row(one: TimedCollective) -> tuple[Cell, ...]:
    bound, low, high = (
        None if figure is None else figure / 10**9 for figure in (one.time.bound_ns, one.time.low_ns, one.time.high_ns)
    )
    asked = one.collective
    return (str(asked.kind), asked.payload_bytes, str(asked.group), bound, low, high, one.time.form, one.time.link)

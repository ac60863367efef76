"""The device table, every figure with its source; clusters: which links join their GPUs, how long collectives take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.collectives import Collective, CollectiveKind, GroupRanks, group_of
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device, Node, find_device, load_devices, load_links
from llm_perf_opt.core.hardware.links import Cluster, Link, parse_cluster
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, Table, counted
from llm_perf_opt.core.units import format_bytes, format_bytes_per_s, format_flops_per_s, format_seconds
from llm_perf_opt.timing.collective_time import CollectiveTime, collective_time
from llm_perf_opt.timing.kernels.tables import MEASURED_ON, system_of

_LISTED_RATES = ("bf16", "fp16", "fp8", "fp32")
_LISTED = {  # column of the list -> the figure as a file of devices spells it
    **{name: f"peak_tflops_dense.{name}" for name in _LISTED_RATES},
    "bandwidth": "bandwidth_gb_per_s",
    "memory": "memory_gb",
}

_SHOWN_BYTES = (2**14, 2**20, 2**26, 2**30)
_SHOWN_KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DevicesAnswer(Answer):
    """Every known device with all its figures."""

    devices: tuple[Device, ...]
    nodes: Mapping[str, Node] = field(default_factory=dict)  # id of a device -> how it is sold; left out: not known
    measured_kernels: Mapping[str, str] = field(default_factory=dict)  # id -> the device of the measured kernels

    def report(self) -> Report:
        """One row per device."""
        columns = (
            Column("id"),
            Column("memory", Kind.BYTES),
            Column("bandwidth", Kind.BYTES_PER_S),
            *(Column(name, Kind.FLOPS_PER_S) for name in _LISTED_RATES),
            Column("name"),
            Column("GPUs in a node", Kind.COUNT),
            Column("joined by"),
            Column("nodes joined by"),
            Column("measured kernels"),
            Column("unverified figures", Kind.COUNT),
            Column("of them in this row"),
        )
        table = Table(
            title="Devices",
            columns=columns,
            rows=tuple(
                _row(device, self.nodes.get(device.id), self.measured_kernels.get(device.id)) for device in self.devices
            ),
        )
        note = Note(
            "Rates are dense, with accumulation in float32; fp32 is the rate of the vector units. llm-perf-opt devices "
            "show ID lists every figure with its sources, and the figures that no source confirms; devices cluster "
            "shows how long collectives take. Measured kernels are the device's own, or scaled from the named device; "
            "they need the extra `kernels`."
        )
        answer = (
            f"{counted(len(self.devices), 'device is', 'devices are')} known, "
            f"{len(self.measured_kernels)} with measured kernels, their own or of a similar device.",
            "Next: llm-perf-opt devices show ID, or llm-perf-opt serve MODEL --gpus all --input 4000.",
        )
        return Report(title="Known devices", answer=answer, tables=(table,), notes=(note,))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DeviceAnswer(Answer):
    """Everything that is known of one device."""

    device: Device
    node: Node | None = None  # how it is sold with others; None: not known

    def report(self) -> Report:
        """Rates, memory, links, further figures, and the sources with what they disagree about."""
        device, node = self.device, self.node
        links = () if node is None else (link_table(node.inside, node.between),)
        tables = (_rates_table(device), _memory_table(device), *links, _further_table(device, node))
        notes = (*_notes(device), *_link_notes(node))
        rates = [f"{name} {format_flops_per_s(rate)}" for name, rate in _main_rates(device)]
        memory = [format_bytes_per_s(device.bandwidth_bytes_per_s), format_bytes(device.memory_bytes)]
        answer = (
            f"{device.name}: {', '.join((*rates, *memory))}.",
            f"Next: llm-perf-opt serve MODEL --gpus {device.id} --input 4000.",
        )
        return Report(title=f"{device.name} ({device.id})", answer=answer, tables=tables, notes=notes)


def devices(devices_file: str | Path | None = None) -> DevicesAnswer:
    """The devices of the shipped table and of a TOML file of your own."""
    file = _path(devices_file)
    known = tuple(load_devices(file).devices.values())
    return DevicesAnswer(devices=known, nodes=load_links(file).nodes, measured_kernels=_measured_kernels(known))


def device(name: str, devices_file: str | Path | None = None) -> DeviceAnswer:
    """One device by its id, or by the name that its driver reports."""
    file = _path(devices_file)
    named = find_device(name, file)
    return DeviceAnswer(device=named, node=load_links(file).nodes.get(named.id))


def _path(file: str | Path | None) -> Path | None:
    return None if file is None else Path(file)


def _measured_kernels(devices: Sequence[Device]) -> dict[str, str]:
    systems = {device.id: system_of(device) for device in devices}
    return {name: MEASURED_ON[system.system] for name, system in systems.items() if system is not None}


def _row(device: Device, node: Node | None, measured_on: str | None) -> tuple[Cell, ...]:
    inside, between = (None, None) if node is None else (node.inside, node.between)
    return (
        device.id,
        device.memory_bytes,
        device.bandwidth_bytes_per_s,
        *(device.peak_flops_per_s.get(name) for name in _LISTED_RATES),
        device.name,
        None if node is None else node.gpus,
        None if inside is None else inside.id,
        None if between is None else between.id,
        "own" if measured_on == device.id else measured_on,
        len(device.unverified),
        ", ".join(name for name, figure in _LISTED.items() if figure in device.unverified),
    )


def _main_rates(device: Device) -> list[tuple[str, int]]:
    return [(name, device.peak_flops_per_s[name]) for name in ("bf16", "fp8") if name in device.peak_flops_per_s]


def _rates_table(device: Device) -> Table:
    return Table(
        title="Rates",
        columns=(
            Column("dtype"),
            Column("dense peak", Kind.FLOPS_PER_S),
            Column("best measured matmul", Kind.FLOPS_PER_S),
            Column("of the peak", Kind.RATIO),
            Column("verified"),
        ),
        rows=tuple(
            (
                dtype,
                peak,
                (best := device.achieved_flops_per_s.get(dtype)),
                None if best is None else best / peak,
                _verified(device, f"peak_tflops_dense.{dtype}"),
            )
            for dtype, peak in device.peak_flops_per_s.items()
        ),
    )


def _memory_table(device: Device) -> Table:
    return Table(
        title="Memory",
        columns=(Column("what"), Column("bytes", Kind.BYTES), Column("rate", Kind.BYTES_PER_S), Column("verified")),
        rows=(
            (
                "memory" if device.nominal_memory_bytes is None else "memory as the driver reports it",
                device.memory_bytes,
                device.bandwidth_bytes_per_s,
                _verified(device, "bandwidth_gb_per_s", "memory_gb"),
            ),
            *(
                (name, size, None, _verified(device, figure))
                for name, size, figure in (
                    ("nominal memory", device.nominal_memory_bytes, "memory_gb"),
                    ("L2 cache", device.l2_bytes, "l2_mib"),
                    ("last cache", device.last_cache_bytes, "last_cache_mib"),
                )
                if size is not None
            ),
        ),
    )


def _further_table(device: Device, node: Node | None) -> Table:
    rows = [(name, str(value), _verified(device, name)) for name, value in _further(device)]
    if node is not None:
        rows.append(("gpus in a node", str(node.gpus), "no" if "gpus" in node.unverified else "yes"))
    return Table(
        title="Further figures",
        columns=(Column("figure"), Column("value"), Column("verified")),
        rows=tuple(rows),
    )


def _further(device: Device) -> Iterator[tuple[str, str | int | float]]:
    yield from device.facts.items()
    overheads = {
        "launch_overhead_us": device.launch_overhead_ns,
        "launch_overhead_fastest_us": device.launch_overhead_fastest_ns,
        "launch_overhead_slowest_us": device.launch_overhead_slowest_ns,
    }
    yield from ((name, overhead_ns / 1000) for name, overhead_ns in overheads.items() if overhead_ns is not None)
    if device.threads is not None:
        yield "threads", device.threads


def _verified(device: Device, *figures: str) -> str:
    return "no" if set(figures) & set(device.unverified) else "yes"


def _notes(device: Device) -> Iterator[Note]:
    if device.reported_names:
        yield Note(f"Reported as: {', '.join(device.reported_names)}.")
    if device.notes:
        yield Note(device.notes)
    yield from (Note(f"Source: {source}") for source in device.sources)
    if device.achieved_source:
        yield Note(f"Source of the best measured matmul: {device.achieved_source}")
    if device.memory_reported_source:
        yield Note(f"Source of the reported memory: {device.memory_reported_source}")
    yield from (Note(f"Agrees: {source}") for source in device.cross_checks)
    yield from (Note(f"Disagrees: {text}", Level.WARNING) for text in device.disagreements)
    is_nominal = device.nominal_memory_bytes is None and "memory_gb" in device.unverified
    if is_nominal:
        yield Note(
            "The memory is nominal, in gigabytes of 10^9 bytes, because no report of the driver is known. Drivers of "
            "other cards report up to 7 % more.",
            Level.WARNING,
        )
    if unread := [figure for figure in device.unverified if not (is_nominal and figure == "memory_gb")]:
        yield Note(f"No source confirms: {', '.join(unread)}.", Level.WARNING)


def _link_notes(node: Node | None) -> Iterator[Note]:
    if node is None:
        yield Note("The links between these devices are unknown, so their collectives have no times.")
        return
    if node.notes:
        yield Note(f"Node: {node.notes}")
    yield from (Note(f"Source of the node: {source}") for source in node.sources)
    yield from (Note(f"Disagrees about the node: {text}", Level.WARNING) for text in node.disagreements)
    if "between" in node.unverified:
        yield Note("No source says which link joins the nodes: choose another with via LINK.", Level.WARNING)
    for link in (node.inside, node.between):
        if link is not None:
            yield from (Note(f"Source of {link.id}: {source}") for source in link.sources)
            yield from (Note(f"Disagrees about {link.id}: {text}", Level.WARNING) for text in link.disagreements)


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
        """How long one collective (`all-reduce`, `all-to-all`, ...) of these bytes takes, over all ranks or these."""
        if kind not in set(CollectiveKind):
            raise UsageError(
                f"There is no collective {kind!r}.", why=f"there are: {', '.join(CollectiveKind)}", fix="choose one"
            )
        if payload_bytes < 0:
            raise UsageError("A payload cannot be negative.", why="it is a number of bytes", fix="give 0 or more")
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
        link_texts = [f"{where} {'not known' if link is None else f'{link.id}'}" for where, link in links]
        yield f"{cluster}: {counted(cluster.count, 'device')}, {', '.join(link_texts)}."
        known = [
            collective
            for collective in self.collectives
            if collective.time.low_ns is not None and collective.time.high_ns is not None
        ]
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
                Column("lower bound", Kind.SECONDS),
                Column("low", Kind.SECONDS),
                Column("high", Kind.SECONDS),
                Column("algorithm"),
                Column("slowest link"),
            ),
            rows=tuple(map(_time_row, self.collectives)),
        )

    def _notes(self) -> Iterator[Note]:
        yield Note(
            "The lower bound holds for any algorithm. Low is the best algorithm at the highest share of the link that "
            "was ever measured; high is a ring at the lowest. Nothing else uses the links."
        )
        for why in dict.fromkeys(
            collective.time.why_unknown for collective in self.collectives if collective.time.why_unknown
        ):
            yield Note(f"Unknown: {why}. Describe it in a file for --devices.", Level.WARNING)
        for link in (self.cluster.inside, self.cluster.between if self.cluster.nodes > 1 else None):
            if link is not None and link.unverified:
                yield Note(f"No source confirms {', '.join(link.unverified)} of {link.id}.", Level.WARNING)


def cluster(text: str, devices_file: str | Path | None = None) -> ClusterAnswer:
    """The cluster that a text means: `8x h100-sxm`, `4x8 h100-sxm`, `72x gb200`, `2x8 h100-sxm via roce-400`."""
    parsed = parse_cluster(text, None if devices_file is None else Path(devices_file))
    group = group_of(range(parsed.count))
    shown = tuple(
        Collective(kind=kind, payload_bytes=payload, group=group) for kind in _SHOWN_KINDS for payload in _SHOWN_BYTES
    )
    if parsed.count > 1:
        far = GroupRanks(2, 0, parsed.count - 1, parsed.count - 1)
        shown += tuple(Collective(kind=CollectiveKind.SEND, payload_bytes=size, group=far) for size in _SHOWN_BYTES)
    return ClusterAnswer(
        cluster=parsed,
        collectives=tuple(
            TimedCollective(collective=collective, time=collective_time(collective, parsed)) for collective in shown
        ),
    )


def _largest(collectives: Sequence[TimedCollective]) -> TimedCollective:
    """The largest payload; the first kind of those."""
    return max(collectives, key=lambda timed: timed.collective.payload_bytes)


def link_table(inside: Link | None, between: Link | None) -> Table:
    """The link between the GPUs of a node and the one between nodes; unknown ones too."""
    return Table(
        title="Links",
        columns=(
            Column("where"),
            Column("link"),
            Column("kind"),
            Column("each way, per GPU", Kind.BYTES_PER_S),
            Column("to one peer", Kind.BYTES_PER_S),
            Column("latency", Kind.SECONDS),
            Column("reduces in network"),
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


def _time_row(timed: TimedCollective) -> tuple[Cell, ...]:
    bound, low, high = (
        None if figure is None else figure / 10**9
        for figure in (timed.time.bound_ns, timed.time.low_ns, timed.time.high_ns)
    )
    collective = timed.collective
    return (
        str(collective.kind),
        collective.payload_bytes,
        str(collective.group),
        bound,
        low,
        high,
        timed.time.form,
        timed.time.link,
    )

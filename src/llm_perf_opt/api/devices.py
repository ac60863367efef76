"""The device table: which devices are known, with every figure and its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.cluster import link_table
from llm_perf_opt.core.hardware import Device, Node, find_device, load_devices, load_links
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, Table, counted
from llm_perf_opt.core.units import format_bytes, format_bytes_per_s, format_flops_per_s
from llm_perf_opt.timing.kernels.tables import MEASURED_ON, system_of

_LISTED_RATES = ("bf16", "fp16", "fp8", "fp32")
_LISTED = {  # column of the list -> the figure as a file of devices spells it
    **{name: f"peak_tflops_dense.{name}" for name in _LISTED_RATES},
    "bandwidth": "bandwidth_gb_per_s",
    "memory": "memory_gb",
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DevicesAnswer(Answer):
    """Every known device with all its figures."""

    devices: tuple[Device, ...]
    nodes: Mapping[str, Node] = field(default_factory=dict)  # id of a device -> how it is sold; left out: not known
    measured_kernels: Mapping[str, str] = field(default_factory=dict)  # id -> the device whose kernels were measured

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
            rows=tuple(_row(one, self.nodes.get(one.id), self.measured_kernels.get(one.id)) for one in self.devices),
        )
        note = Note(
            "Dense rates, accumulation in float32; fp32 is the rate of the vector units. llm-perf-opt devices show ID "
            "tells every figure, which of them were not read in a source, and the sources; devices cluster tells how "
            "long collectives between such GPUs take. Measured kernels: the device itself (own), or the one that times "
            "are scaled from; predict takes them with the extra `kernels`."
        )
        answer = (
            f"{counted(len(self.devices), 'device is', 'devices are')} known, "
            f"{len(self.measured_kernels)} with measured kernels of their own or of one near.",
            "Next: llm-perf-opt devices show ID, or llm-perf-opt predict MODEL --device all.",
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
            f"Next: llm-perf-opt predict MODEL --device {device.id}.",
        )
        return Report(title=f"{device.name} ({device.id})", answer=answer, tables=tables, notes=notes)


def devices(devices_file: str | Path | None = None) -> DevicesAnswer:
    """The devices of the table, and those of a TOML file of your own."""
    file = _path(devices_file)
    found = tuple(load_devices(file).devices.values())
    return DevicesAnswer(devices=found, nodes=load_links(file).nodes, measured_kernels=_measured_kernels(found))


def device(name: str, devices_file: str | Path | None = None) -> DeviceAnswer:
    """One device by its id, or by the name that its driver reports."""
    file = _path(devices_file)
    found = find_device(name, file)
    return DeviceAnswer(device=found, node=load_links(file).nodes.get(found.id))


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
            Column("best measured product", Kind.FLOPS_PER_S),
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
        yield Note(f"Source of the best measured product: {device.achieved_source}")
    if device.memory_reported_source:
        yield Note(f"Source of the reported memory: {device.memory_reported_source}")
    yield from (Note(f"Agrees: {source}") for source in device.cross_checks)
    yield from (Note(f"Disagrees: {text}", Level.WARNING) for text in device.disagreements)
    is_nominal = device.nominal_memory_bytes is None and "memory_gb" in device.unverified
    if is_nominal:
        yield Note(
            "The memory is nominal, in gigabytes of 10^9 bytes: nobody read what the driver reports. "
            "Drivers of other cards report up to 7 % more.",
            Level.WARNING,
        )
    if unread := [figure for figure in device.unverified if not (is_nominal and figure == "memory_gb")]:
        yield Note(f"Not read in a source: {', '.join(unread)}.", Level.WARNING)


def _link_notes(node: Node | None) -> Iterator[Note]:
    if node is None:
        yield Note("No links between such devices are known: collectives between them have no time.")
        return
    if node.notes:
        yield Note(f"Node: {node.notes}")
    yield from (Note(f"Source of the node: {source}") for source in node.sources)
    yield from (Note(f"Disagrees about the node: {text}", Level.WARNING) for text in node.disagreements)
    if "between" in node.unverified:
        yield Note("Which link joins nodes was read in no source: choose another with via LINK.", Level.WARNING)
    for link in (node.inside, node.between):
        if link is not None:
            yield from (Note(f"Source of {link.id}: {source}") for source in link.sources)
            yield from (Note(f"Disagrees about {link.id}: {text}", Level.WARNING) for text in link.disagreements)

"""What a predicted time rests on: the sentences below the tables, with every reservation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.device import PEAKS_OF_DTYPE
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.report import Level, Note
from llm_perf_opt.core.units import format_bytes, format_seconds
from llm_perf_opt.costs.necessary.necessary_table import StageNeeds, difference_notes, expert_notes
from llm_perf_opt.costs.run_description import run_notes, workload_note
from llm_perf_opt.ops.op import KernelKind
from llm_perf_opt.timing.lower_bound import BoundBy, is_known
from llm_perf_opt.timing.predict import StageTime
from llm_perf_opt.timing.rates import NOTHING, RateSource

Phases = Sequence[tuple[CallGraph, Sequence[StageTime]]]


def prediction_notes(phases: Phases, rates: RateSource) -> Iterator[Note]:
    """The workload, what the source of rates is, what follows from the times, and what they leave out."""
    graphs = [graph for graph, _ in phases]
    stages = [stage for _, found in phases for stage in found]
    yield workload_note(graphs)
    if rates.device is not None:
        yield from run_notes(graphs)
    yield from rates.notes()
    if rates.device is not None:
        yield from _bound_notes(stages, rates.device)
        yield from _decode_notes(graphs, stages)
        yield from _raised_notes(stages)
        yield from _launch_notes(stages)
        yield from _reservations(stages, rates.device)
        yield from _link_notes(stages, rates.cluster)
    yield from _untimed_notes(phases)


def _link_notes(stages: Sequence[StageTime], cluster: Cluster | None) -> Iterator[Note]:
    """How communication is timed, by which figures, and which of it has no time."""
    exchanged = [stage.communication for stage in stages if stage.communication is not None]
    unknown: Counter[str] = Counter()
    for found in exchanged:
        unknown.update(found.unknown)
    for why, count in unknown.items():
        yield Note(f"{count:,} collectives have no known time and are in no sum: {why}.", Level.WARNING)
    if not exchanged or cluster is None:
        return
    yield Note(
        "Communication may run beside other work, so the lower bound is the largest of compute, memory and "
        "communication, and the band runs from full overlap (the longer of the two) to none (their sum). "
        "docs/links.md explains the times of collectives."
    )
    for link in (cluster.inside, cluster.between if cluster.nodes > 1 else None):
        if link is not None and link.unverified:
            yield Note(
                f"Figures of {link.name} that are used here and were not read in a source: "
                f"{', '.join(link.unverified)}.",
                Level.WARNING,
            )


def _untimed_notes(phases: Phases) -> Iterator[Note]:
    for graph, stages in phases:
        for stage in stages:
            others = {name: count for name, count in stage.untimed.items() if name != KernelKind.COMMUNICATION}
            if others:
                named = ", ".join(f"{name} ({count})" for name, count in others.items())
                yield Note(f"{graph.phase}, {stage.name}: no calibrated work describes {named}.", Level.WARNING)


def bound_claim(device: Device, stages: Sequence[StageTime], *, with_experts: bool = False) -> str:
    """How far the lower bound can be trusted."""
    if device.is_measured:
        return "The lower bound rests on measured rates, which a quiet moment may beat"
    is_rank = any(stage.communication is not None for stage in stages)
    nothing = (
        "Nothing that runs this plan as traced beats the lower bound" if is_rank else "Nothing beats the lower bound"
    )
    if with_experts:
        nothing += " unless its routers touch fewer experts, and nothing the one with the fewest"
    return f"{nothing}; an engine that shares what the plan leaves whole on every rank may" if is_rank else nothing


def has_experts(stages: Sequence[StageTime]) -> bool:
    """Whether a bound depends on how many experts get tokens."""
    return any(stage.work.necessary is not None and stage.work.necessary.distinct_experts for stage in stages)


def _bound_notes(stages: Sequence[StageTime], device: Device) -> Iterator[Note]:
    """What the bound is, where the code does more than it must, and by which routing policy experts are counted."""
    of_code = "FLOPs, bytes moved, launches and the band are of the code as written."
    if any(stage.is_engine for stage in stages):
        of_code = "FLOPs and bytes moved are of the code as written, the band is of an engine's kernels."
    yield Note(
        f"{of_code} The lower bound is of necessary work: "
        "what any implementation must compute and read once, at the dense peak and at full bandwidth. "
        f"{bound_claim(device, stages, with_experts=has_experts(stages))}. docs/how-fast-could-it-be.md explains both."
    )
    works = [stage.work for stage in stages]
    yield from difference_notes(
        [
            StageNeeds(name=work.name, flops=work.flops, bytes_moved=work.bytes_moved, necessary=work.necessary)
            for work in works
        ]
    )
    for work in works:
        if work.necessary is not None:
            yield from expert_notes(work.name, work.necessary)


def _decode_notes(graphs: Sequence[CallGraph], stages: Sequence[StageTime]) -> Iterator[Note]:
    for graph in graphs:
        steps = graph.runtime.get("decode_steps")
        stage = next((stage for stage in stages if stage.name == graph.phase == "decode"), None)
        if stage is not None and isinstance(steps, int) and steps > 1:
            band = stage.wall.times(1 / steps)
            yield Note(
                f"The {steps} steps of the decode take {format_seconds(band.low)} to {format_seconds(band.high)} each."
            )


def _raised_notes(stages: Sequence[StageTime]) -> Iterator[Note]:
    for stage in stages:
        if stage.raised_from_s is not None and stage.busy_time.expected is not None:
            yield Note(
                f"{stage.name}: its measured kernels add up to {format_seconds(stage.raised_from_s)}, in which its "
                "bytes cannot be read at the best bandwidth that the tables show (kernels measured alone find their "
                f"weights in a cache); {format_seconds(stage.busy_time.expected)} is expected.",
                Level.WARNING,
            )


def _launch_notes(stages: Sequence[StageTime]) -> Iterator[Note]:
    for stage in stages:
        if stage.bound_by is BoundBy.LAUNCHES and stage.host_time != NOTHING:
            yield Note(
                f"{stage.name} is bound by its {stage.launches:,} launches: the device would be done in "
                f"{format_seconds(stage.device_time.low)} to {format_seconds(stage.device_time.high)}."
            )


def _reservations(stages: Sequence[StageTime], device: Device) -> Iterator[Note]:
    dtypes = sorted({dtype for stage in stages for dtype in stage.work.flops_by_dtype})
    if doubtful := sorted(_figures_used(dtypes, device) & set(device.unverified)):
        yield Note(
            f"Figures of {device.name} that are used here and were not read in a source: {', '.join(doubtful)}.",
            Level.WARNING,
        )
    for other in dtypes:
        if not is_known(other, device):
            yield Note(
                f"{device.name} has no known rate for {other}: that work is counted at the fastest rate it could have.",
                Level.WARNING,
            )
    unpriced = sum(stage.work.unpriced_ops for stage in stages)
    if unpriced:
        yield Note(f"{unpriced:,} ops have no price: of their work only the bytes are in the band.", Level.WARNING)
    if any(stage.work.necessary is None for stage in stages):
        yield Note("The trace does not record which tensors an op took: no lower bound is known.", Level.WARNING)
    elif any(stage.work.must_read_bytes is None for stage in stages):
        yield Note("The trace follows no memory: the lower bound rests on FLOPs alone.", Level.WARNING)
    if device.cache_bytes is None:
        yield Note(f"No cache size is known for {device.name}: every byte is counted as coming from memory.")
    else:
        size = format_bytes(device.cache_bytes)
        yield Note(f"The lower bound assumes that the cache of {device.name}, {size}, holds what it can.")


def _figures_used(dtypes: Sequence[str], device: Device) -> set[str]:
    """What bound, band and memory rest on, as a file of devices spells it."""
    peaks = {name for dtype in dtypes for name in PEAKS_OF_DTYPE.get(dtype, (dtype,))}
    if "float32" in dtypes:
        peaks.add("tf32")  # the bound lets a program choose it
    caches = {"l2_mib": device.l2_bytes, "last_cache_mib": device.last_cache_bytes}
    return {
        *(f"peak_tflops_dense.{name}" for name in peaks),
        *(name for name, size in caches.items() if size is not None and size == device.cache_bytes),
        "bandwidth_gb_per_s",
        "memory_gb",
        "launch_overhead_us",
    }

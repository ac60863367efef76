"""What helps where a run does not fit: how much memory is short, and how many devices hold it at least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.parallel_plan import plan_in
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.costs.memory.need import RunMemory, run_memory
from llm_perf_opt.costs.memory.replicated import replicated_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A run of which one rank needs more memory than a device has. Without a plan there is one rank.

    `devices` split the weights evenly, except those that the plan replicates, while each holds inputs, cache and
    activations as large as now: no plan takes fewer unless it splits more. All replicas count. None: without the split
    weights it is too much for one already. `formats` are weight formats in which every rank fits, with what it then
    needs, the widest first.
    """

    ranks: int
    needed_bytes: int  # of the rank that needs most
    memory_bytes: int
    devices: int | None
    formats: tuple[tuple[str, int], ...] = ()

    @property
    def short_bytes(self) -> int:
        """What is missing on one device."""
        return self.needed_bytes - self.memory_bytes


def largest_need(kinds: Sequence[Sequence[CallGraph]]) -> RunMemory:
    """The memory of the rank that needs most, of one rank of each kind; one of unknown need comes first."""
    found = [run_memory(graphs) for graphs in kinds]
    unknown = [memory for memory in found if memory.total_bytes is None]
    return unknown[0] if unknown else max(found, key=lambda memory: memory.total_bytes or 0)


def shortage_of(kinds: Sequence[Sequence[CallGraph]], device: Device) -> Shortage | None:
    """From the phases of one rank of each kind; None where every rank fits, or where the need of one is not known."""
    needed = largest_need(kinds).total_bytes
    if needed is None or needed <= device.memory_bytes:
        return None
    plan = plan_in(kinds[0][0].deployment)
    return Shortage(
        ranks=1 if plan is None else plan.ranks,
        needed_bytes=needed,
        memory_bytes=device.memory_bytes,
        devices=_fewest(kinds, device),
    )


def _fewest(kinds: Sequence[Sequence[CallGraph]], device: Device) -> int | None:
    """Split weights of all ranks / what a device has left for them.

    Where a trace does not say what is replicated, all weights count as split: that gives the smaller number.
    """
    plans = [plan_in(graphs[0].deployment) for graphs in kinds]
    first, split_bytes, room = plans[0], 0, device.memory_bytes
    counts = (1,) if first is None else first.ranks_of_kinds([(plan or first).rank or 0 for plan in plans])
    for graphs, ranks in zip(kinds, counts, strict=True):
        memory = run_memory(graphs)
        weights = max(phase.weight_bytes for phase in memory.phases)
        replicated = sum(one.bytes for one in replicated_weights(graphs[0]) or ())
        split_bytes += ranks * (weights - replicated)
        room = min(room, device.memory_bytes - ((memory.total_bytes or 0) - weights + replicated))
    return -(-split_bytes // room) if room > 0 else None


def fit_text(memory: RunMemory, device: Device) -> str:
    """`fits, 6.65 of 22.5 GiB`."""
    needed = memory.total_bytes
    if needed is None:
        return "whether it fits is not known"
    return f"{'fits' if needed <= device.memory_bytes else 'does not fit'}, {_of(needed, device.memory_bytes)}"


def shortage_text(shortage: Shortage, device: Device) -> str:
    """That it does not fit, how many devices hold it at least, and in which format those that were asked about do."""
    parts = [] if shortage.devices is None else [f"{shortage.devices:,} x {device.id} at least"]
    is_spread = shortage.ranks > 1
    if shortage.formats:
        parts.append(f"{f'these {shortage.ranks:,}' if is_spread else 'one'} with --weights {shortage.formats[0][0]}")
    helps = ", or ".join(parts) or "no number of them holds what is beside the weights"
    where = f"{shortage.ranks:,} x {device.name}" if is_spread else device.name
    need = f"{'a rank needs ' if is_spread else ''}{_of(shortage.needed_bytes, shortage.memory_bytes)}"
    return f"Does not fit on {where}: {need}; {helps}."


def _of(needed: int, memory: int) -> str:
    """`6.65 of 22.5 GiB`, with one unit where both have it."""
    parts, whole = format_bytes(needed), format_bytes(memory)
    return f"{parts.split(' ')[0] if parts.split(' ')[1] == whole.split(' ')[1] else parts} of {whole}"

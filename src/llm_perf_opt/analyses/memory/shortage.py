"""What helps where a run does not fit: how much memory is short, and how many devices hold it at least."""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.analyses.memory.need import RunMemory
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A run that needs more memory than a device has.

    `devices` share the weights evenly, while each holds inputs, cache and activations whole: no plan takes fewer unless
    it shares those too. None: without weights it is too much for one already. `formats` are weight formats in which one
    device holds it, with what the run then needs, the widest first.
    """

    needed_bytes: int
    memory_bytes: int
    devices: int | None
    formats: tuple[tuple[str, int], ...] = ()

    @property
    def short_bytes(self) -> int:
        """What is missing on one device."""
        return self.needed_bytes - self.memory_bytes


def shortage_of(memory: RunMemory, device: Device) -> Shortage | None:
    """None where the run fits, or where its need is not known."""
    needed = memory.total_bytes
    if needed is None or needed <= device.memory_bytes:
        return None
    weights = max(phase.weight_bytes for phase in memory.phases)
    room = device.memory_bytes - (needed - weights)
    return Shortage(
        needed_bytes=needed,
        memory_bytes=device.memory_bytes,
        devices=-(-weights // room) if room > 0 else None,
    )


def fit_text(memory: RunMemory, device: Device) -> str:
    """`fits, 6.65 of 22.5 GiB`."""
    needed = memory.total_bytes
    if needed is None:
        return "whether it fits is not known"
    return f"{'fits' if needed <= device.memory_bytes else 'does not fit'}, {_of(needed, device.memory_bytes)}"


def shortage_text(shortage: Shortage, device: Device) -> str:
    """That it does not fit, how many devices hold it at least, and in which format one does."""
    parts = [] if shortage.devices is None else [f"{shortage.devices:,} x {device.id} at least"]
    if shortage.formats:
        parts.append(f"one with --weights {shortage.formats[0][0]}")
    helps = ", or ".join(parts) or "no number of them holds what is beside the weights"
    return f"Does not fit on {device.name}: {_of(shortage.needed_bytes, shortage.memory_bytes)}; {helps}."


def _of(needed: int, memory: int) -> str:
    """`6.65 of 22.5 GiB`, with one unit where both have it."""
    parts, whole = format_bytes(needed), format_bytes(memory)
    return f"{parts.split(' ')[0] if parts.split(' ')[1] == whole.split(' ')[1] else parts} of {whole}"

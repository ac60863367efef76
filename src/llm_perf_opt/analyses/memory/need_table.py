"""What a device must hold in each phase, and whether a given one does."""

from __future__ import annotations

from llm_perf_opt.analyses.memory.need import PhaseMemory, RunMemory
from llm_perf_opt.document import Cell, Column, Kind, Table
from llm_perf_opt.hardware import Device

_NEED = (
    Column("phase"),
    Column("weights", Kind.BYTES),
    Column("buffers", Kind.BYTES),
    Column("inputs", Kind.BYTES),
    Column("KV cache at the peak", Kind.BYTES),
    Column("other activations at the peak", Kind.BYTES),
    Column("needed in all", Kind.BYTES),
)
_SHARE = (Column("device memory", Kind.BYTES), Column("of the device", Kind.RATIO), Column("fits"))


def need_table(memory: RunMemory, device: Device | None = None) -> Table:
    """A row per phase; a device adds its memory, the share that is needed, and whether that is too much."""
    if device is None:
        return Table(title="Memory that a device needs", columns=_NEED, rows=tuple(map(_need, memory.phases)))
    rows = tuple((*_need(phase), *_share(phase, device)) for phase in memory.phases)
    return Table(title=f"Does it fit on {device.name}?", columns=(*_NEED, *_SHARE), rows=rows)


def _need(phase: PhaseMemory) -> tuple[Cell, ...]:
    return (
        phase.phase,
        phase.weight_bytes,
        phase.buffer_bytes,
        phase.input_bytes,
        phase.peak_kv_bytes,
        phase.peak_other_bytes,
        phase.total_bytes,
    )


def _share(phase: PhaseMemory, device: Device) -> tuple[Cell, ...]:
    if phase.total_bytes is None:
        return device.memory_bytes, None, None
    fits = "yes" if phase.total_bytes <= device.memory_bytes else "no"
    return device.memory_bytes, phase.total_bytes / device.memory_bytes, fits

"""What a device must hold in each phase, and whether a given one does."""

from __future__ import annotations

from llm_perf_opt.analyses.memory.need import PhaseMemory, RunMemory
from llm_perf_opt.document import Cell, Column, Kind, Table
from llm_perf_opt.hardware import Device

_PHASE = Column("phase")
_ANSWER = (Column("fits"), Column("of the device", Kind.RATIO), Column("device memory", Kind.BYTES))
_NEED = (
    Column("needed in all", Kind.BYTES),
    Column("weights", Kind.BYTES),
    Column("buffers", Kind.BYTES),
    Column("inputs", Kind.BYTES),
    Column("KV cache at the peak", Kind.BYTES),
    Column("other activations at the peak", Kind.BYTES),
)


def need_table(memory: RunMemory, device: Device | None = None) -> Table:
    """A row per phase, the answer first; a device adds whether it fits, the share that is needed, and its memory."""
    if device is None:
        rows = tuple((phase.phase, *_need(phase)) for phase in memory.phases)
        return Table(title="Memory that a device needs", columns=(_PHASE, *_NEED), rows=rows)
    rows = tuple((phase.phase, *_answer(phase, device), *_need(phase)) for phase in memory.phases)
    return Table(title=f"Does it fit on {device.name}?", columns=(_PHASE, *_ANSWER, *_NEED), rows=rows)


def _need(phase: PhaseMemory) -> tuple[Cell, ...]:
    return (
        phase.total_bytes,
        phase.weight_bytes,
        phase.buffer_bytes,
        phase.input_bytes,
        phase.peak_kv_bytes,
        phase.peak_other_bytes,
    )


def _answer(phase: PhaseMemory, device: Device) -> tuple[Cell, ...]:
    if phase.total_bytes is None:
        return None, None, device.memory_bytes
    fits = "yes" if phase.total_bytes <= device.memory_bytes else "no"
    return fits, phase.total_bytes / device.memory_bytes, device.memory_bytes

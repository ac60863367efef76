"""A traced training step of a script's own: one call graph for each phase, and its memory over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.trace import Trace
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.report import Cell, Column, Kind, Note, Report, Table
from llm_perf_opt.core.units import format_bytes, format_flops
from llm_perf_opt.tracing.traced_phases import reserve_folder, with_events, write_graphs
from llm_perf_opt.training.step_record import MemoryAtPeak, MemoryKind, TrainingStep
from llm_perf_opt.training.training_step import trace_own_step

_SHOWN = 20  # tensors in the report; the answer has more


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StepTrace(Trace):
    """A training step, one call graph for each phase: forward, loss, backward, optimizer."""

    step: TrainingStep = field(compare=False)

    def training(self) -> StepAnswer:
        """The work of each phase, memory over time by kind, and what is alive at the peak."""
        return StepAnswer(**{each.name: getattr(self.step, each.name) for each in fields(StepAnswer)})


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StepAnswer(Answer):
    """Bytes of tensors on one device, by kind; FLOPs of matmuls, convolutions and attention."""

    model: str
    parameters: int
    trainable_parameters: int
    flops: int
    recomputed_flops: int
    phases: tuple[Any, ...]  # the work of each
    peak: MemoryAtPeak
    peak_by_phase: Mapping[str, MemoryAtPeak]
    memory: tuple[Any, ...]  # over time, about 400 points with every phase's peak
    notes: tuple[str, ...] = ()

    def report(self) -> Report:
        """Phases, memory by kind at the peak of each, and the largest tensors at the highest."""
        return Report(
            title=f"Training step: {self.model}",
            answer=tuple(self._lines()),
            tables=(self._work(), self._kinds(), self._alive()),
            notes=tuple(map(Note, self.notes)),
        )

    def _lines(self) -> Iterator[str]:
        largest = sorted(self.peak.by_kind.items(), key=lambda item: -item[1])[:3]
        parts = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in largest)
        where = f"{self.peak.op} of {self.peak.module}" if self.peak.module else self.peak.op
        yield f"Peak of {format_bytes(self.peak.peak_bytes)} in the {self.peak.phase}, at {where}: {parts}."
        again = f", {format_flops(self.recomputed_flops)} of it recomputed" if self.recomputed_flops else ""
        yield f"{format_flops(self.flops)} in a step{again}."
        yield f"{self.trainable_parameters:,} of {self.parameters:,} parameters are trained."

    def _work(self) -> Table:
        columns = (
            Column("phase"),
            Column("FLOPs", Kind.FLOPS),
            Column("recomputed", Kind.FLOPS),
            Column("bytes moved", Kind.BYTES),
            Column("kernel launches", Kind.COUNT),
        )
        rows = tuple(
            (phase.name, phase.flops, phase.recomputed_flops, phase.bytes_moved, phase.launches)
            for phase in self.phases
        )
        return Table(title="Work by phase", columns=columns, rows=rows)

    def _kinds(self) -> Table:
        columns = (
            Column("peak of"),
            *(Column(str(kind), Kind.BYTES) for kind in MemoryKind),
            Column("all", Kind.BYTES),
        )
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (phase, *(peak.by_kind.get(kind, 0) for kind in MemoryKind), peak.peak_bytes)
            for phase, peak in self.peak_by_phase.items()
        )
        return Table(title="Memory by kind", columns=columns, rows=rows)

    def _alive(self) -> Table:
        columns = (
            *map(Column, ("tensor", "module", "kind", "shape", "dtype")),
            Column("tensors", Kind.COUNT),
            Column("bytes", Kind.BYTES),
        )
        rows = tuple(
            (each.name, each.module, str(each.kind), "x".join(map(str, each.shape)), each.dtype, each.count, each.bytes)
            for each in self.peak.tensors[:_SHOWN]
        )
        return Table(title="Alive at the peak", columns=columns, rows=rows)


def trace_step(
    step: Callable[..., object],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    options: Mapping[str, object],
    *,
    routing: str | None,
    torch_device: str | None,
    out: Path | None,
    force: bool,
    events: bool,
) -> StepTrace:
    """The trace of `step(*args, **kwargs)`; other `options` of a trace that were given are refused."""
    for name in (name for name, value in options.items() if value):
        raise UsageError(
            f"A training step of your own takes no {name}.",
            why="the function and its arguments say what runs",
            fix=f"leave {name} out, and change the function or its arguments",
        )
    traced = trace_own_step(step, args, kwargs or {}, routing=routing, device=torch_device or "cuda")
    graphs = tuple(map(with_events, traced.graphs)) if events else traced.graphs
    files: tuple[Path, ...] = ()
    if out is not None:
        reserve_folder(out, [graph.phase for graph in graphs], force=force)
        files = write_graphs(graphs, out, force=force)
    return StepTrace(name=traced.model, graphs=graphs, files=files, step=traced)

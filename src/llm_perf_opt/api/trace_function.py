"""A trace as a function of batch and context, and what it is asked: packed steps, a sweep, a file to keep it in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.sweep import SweepAnswer, find_gpus, sweep_answer
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.links import Hardware
from llm_perf_opt.core.number_ranges import POINTS, Given, NumberRange, read_range
from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.reading import filled
from llm_perf_opt.core.report import Column, Kind, Note, Report, Table, table_of
from llm_perf_opt.costs.memory.kv_cache import CHUNK
from llm_perf_opt.sweeps.function.figures.packed import PackedOp, PackedProgram, PackedSequence, UnpackedOp
from llm_perf_opt.sweeps.function.phase_function import FunctionCell, PhaseFunction
from llm_perf_opt.sweeps.function_files import save_function
from llm_perf_opt.sweeps.run_function import BATCH, CONTEXT, NEW_TOKENS, R, R_co, RunFunction
from llm_perf_opt.timing.datasheet_rates import Execution

DECODE, PREFILL = "decode", "prefill"
_PROOF = ("cells", "open regions", "traces")  # of a phase: proven parts of the range, parts without proof


def _range_text(ends: tuple[int, int] | None) -> str:
    if ends is None:
        return ""
    low, high = ends
    return f"{low:,}" if low == high else f"{low:,}..{high:,}"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MixedStepAnswer(Answer):
    """What one packed step costs. `flops` and the other figures are sums over all ops that are not in `unpacked`.

    `shared_bytes` are the part of `bytes_moved` that the step moves once, whatever its sequences: the weights. Of
    sequences that begin a prefill or decode, `checked` have the FLOPs that the traced prefill and decode have.
    """

    model: str
    sequences: int
    new_tokens: int
    cached_tokens: int
    flops: int
    vector_flops: int
    bytes_moved: int
    bytes_moved_at_most: int
    shared_bytes: int
    launches: int
    unpriced_ops: int
    unpacked: tuple[UnpackedOp, ...]
    checked: int
    region: Mapping[str, tuple[int, int]]  # of the cell that the program belongs to

    def report(self) -> Report:
        """The figures of the step, and the ops that have none."""
        cells = {
            Column("sequences", Kind.COUNT): self.sequences,
            Column("new tokens", Kind.COUNT): self.new_tokens,
            Column("cached tokens", Kind.COUNT): self.cached_tokens,
            Column("FLOPs", Kind.FLOPS): self.flops,
            Column("vector FLOPs", Kind.FLOPS): self.vector_flops,
            Column("bytes moved", Kind.BYTES): self.bytes_moved,
            Column("of it weights", Kind.BYTES): self.shared_bytes,
            Column("at most", Kind.BYTES): self.bytes_moved_at_most,
            Column("kernel launches", Kind.COUNT): self.launches,
        }
        step = Table(title="One packed step", columns=tuple(cells), rows=(tuple(cells.values()),))
        return Report(
            title=f"{self.model}: a packed step of {self.new_tokens:,} tokens",
            tables=(step, _unpacked_table(self.unpacked)) if self.unpacked else (step,),
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterator[Note]:
        yield Note("Sequences are packed without padding; weights are read once for all of them.")
        if self.unpacked:
            yield Note(
                "Some ops have no packed figure. They count only towards the upper limit of the bytes, for each "
                "sequence by itself."
            )
        if self.unpriced_ops:
            yield Note(f"{self.unpriced_ops:,} ops have no price and are left out of every sum.")


def _unpacked_table(ops: Sequence[UnpackedOp]) -> Table:
    return table_of(
        "Ops without a packed figure",
        ops,
        {
            Column("op"): lambda op: op.op,
            Column("runs", Kind.COUNT): lambda op: op.runs,
            Column("figure"): lambda op: op.figure.replace("_", " "),
            Column("of equal sequences"): lambda op: op.form,
            Column("at most", Kind.COUNT): lambda op: op.at_most,
            Column("why"): lambda op: op.reason,
        },
    )


@dataclass(eq=False, kw_only=True)
class MixedSteps:
    """Packed steps of one model, from the functions of its chunk, its prefill and its decode."""

    model: str
    chunk: PhaseFunction
    phases: Mapping[str, PhaseFunction]
    _programs: dict[int, PackedProgram] = field(default_factory=dict)

    def answer(self, chunks: Sequence[tuple[int, int]], decodes: Sequence[int]) -> MixedStepAnswer:
        """Chunks are (new tokens, cached tokens), decodes the cached tokens of sequences with one new token."""
        sequences = _sequences(chunks, decodes)
        cell, program = self._program_of(sequences)
        figures = program.figures(sequences)
        return filled(
            MixedStepAnswer,
            figures,
            model=self.model,
            sequences=len(sequences),
            new_tokens=sum(sequence.new_tokens for sequence in sequences),
            cached_tokens=sum(sequence.cached_tokens for sequence in sequences),
            bytes_moved_at_most=figures.at_most("bytes_moved"),
            checked=self._checked(program, sequences),
            region=cell.region,
        )

    def by_op(self, chunks: Sequence[tuple[int, int]], decodes: Sequence[int]) -> Iterator[PackedOp]:
        """The same step, op by op."""
        sequences = _sequences(chunks, decodes)
        return self._program_of(sequences)[1].by_op(sequences)

    def _program_of(self, sequences: Sequence[PackedSequence]) -> tuple[FunctionCell, PackedProgram]:
        number, cell = self._cell_of(sequences)
        if number not in self._programs:
            self._programs[number] = PackedProgram(cell.cell)
        return cell, self._programs[number]

    def _cell_of(self, sequences: Sequence[PackedSequence]) -> tuple[int, FunctionCell]:
        """The one cell that holds all sequences; a first chunk and a decode stand at its edge."""
        several = [
            (n, cell) for n, cell in enumerate(self.chunk.cells) if cell.region[BATCH][0] < cell.region[BATCH][1]
        ]
        places = {
            sequence: next((number for number, cell in several if _is_in(cell.region, sequence)), None)
            for sequence in set(sequences)
        }
        outside = next((sequence for sequence, place in places.items() if place is None), None)
        if outside is not None:
            raise UsageError(
                f"A sequence of {_text(outside)} is outside every proven cell with several batches.",
                why="packed steps are known only where the program is known",
                fix="make the function over a larger range of batch (2 or more), context and new_tokens, "
                "or with more traces",
            )
        number = next(iter(places.values()))
        other = next((sequence for sequence, place in places.items() if place != number), None)
        if other is not None:
            raise UsageError(
                f"Sequences of {_text(next(iter(places)))} and of {_text(other)} run two different programs.",
                why="a window or the like is full in one of them, and a packed step runs one program",
                fix="ask for steps with all sequences in one cell",
            )
        assert number is not None
        cell = self.chunk.cells[number]
        if cell.cell.program.loops:
            raise UsageError(
                f"Packed steps of {self.model} are not known.",
                why="its code loops over experts or positions, and ops in a loop have no form of their own",
                fix="trace it with grouped experts, where the model has them",
            )
        return number, cell

    def _checked(self, program: PackedProgram, sequences: Sequence[PackedSequence]) -> int:
        """How many sequences at the edge of the cell have the FLOPs of the traced phase; a difference is refused."""
        checked = 0
        for name, group in ((DECODE, _decoding(sequences)), (PREFILL, _beginning(sequences))):
            phase = self.phases.get(name)
            if phase is None or not group:
                continue
            distinct = sorted(set(group), key=lambda sequence: (sequence.new_tokens, sequence.cached_tokens))
            lengths = [sequence.cached_tokens if name == DECODE else sequence.new_tokens for sequence in distinct]
            batch = phase.domain[BATCH][0]
            points = {BATCH: np.full(len(lengths), batch), CONTEXT: np.asarray(lengths, dtype=np.int64)}
            known = phase.cell_of_points(points) >= 0
            flops = phase.figures({key: column[known] for key, column in points.items()}, ("flops",))["flops"]
            held = [sequence for sequence, is_known in zip(distinct, known, strict=True) if is_known]
            for sequence, traced in zip(held, flops, strict=True):
                if program.figures([sequence] * batch).flops != traced:
                    raise UsageError(
                        f"A sequence of {_text(sequence)} runs a different program than the chunk.",
                        why=f"a {name} of {batch:,} of them runs {int(traced):,} FLOPs, and the chunk another number",
                        fix="ask for that sequence by itself",
                    )
            checked += sum(sequence in held for sequence in group)
        return checked


def _decoding(sequences: Sequence[PackedSequence]) -> list[PackedSequence]:
    return [sequence for sequence in sequences if sequence.new_tokens == 1 and sequence.cached_tokens]


def _beginning(sequences: Sequence[PackedSequence]) -> list[PackedSequence]:
    return [sequence for sequence in sequences if not sequence.cached_tokens]


def _is_in(region: Mapping[str, tuple[int, int]], sequence: PackedSequence) -> bool:
    """Whether a chunk lies in a region; a decode, or a first chunk, if the nearest chunk does."""
    lengths = {NEW_TOKENS: max(sequence.new_tokens, 2), CONTEXT: max(sequence.cached_tokens, 1)}
    return all(region[name][0] <= value <= region[name][1] for name, value in lengths.items())


def _text(sequence: PackedSequence) -> str:
    return f"{sequence.new_tokens:,} new and {sequence.cached_tokens:,} cached tokens"


def _sequences(chunks: Sequence[tuple[int, int]], decodes: Sequence[int]) -> list[PackedSequence]:
    sequences = [*(PackedSequence(*chunk) for chunk in chunks), *(PackedSequence(1, cached) for cached in decodes)]
    if not sequences:
        raise UsageError("A step has at least one sequence.", why="there are no chunks and no decodes", fix="give some")
    for sequence in sequences:
        if sequence.new_tokens < 1 or sequence.cached_tokens < 0:
            raise UsageError(
                f"A sequence cannot have {_text(sequence)}.",
                why="it computes at least one token, and a cache holds none or more",
                fix="give chunks as (new, cached)",
            )
    return sequences


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceFunction(RunFunction[R_co]):
    """What a model runs, as a function of how many sequences run together and how long their context is.

    `context` counts the tokens that a prefill computes, and that a decode step finds in the cache: prompt and image
    tokens. A function that was read from a file has no `origin`: it answers what its cells prove.
    """

    @classmethod
    def of(cls, function: RunFunction[R]) -> TraceFunction[R]:
        """The same function, with what can be asked of it."""
        return TraceFunction(**{field.name: getattr(function, field.name) for field in fields(function)})

    def mixed_step(self, *, chunks: Sequence[tuple[int, int]] = (), decodes: Sequence[int] = ()) -> MixedStepAnswer:
        """One packed step: chunks of (new, cached) tokens, and sequences that decode on this many cached tokens."""
        return self._mixed_steps.answer(chunks, decodes)

    @cached_property
    def _mixed_steps(self) -> MixedSteps:
        return MixedSteps(
            model=self.name, chunk=self.phase(CHUNK), phases={phase.phase: phase for phase in self.phases}
        )

    def sweep(
        self,
        *,
        batch: Given | NumberRange | None = None,
        context: Given | NumberRange | None = None,
        points: int = POINTS,
        gpus: str | Hardware | Sequence[str | Hardware] | None = None,
        devices_file: Path | None = None,
        execution: str = Execution.FUSED,
    ) -> SweepAnswer:
        """Cost, memory and time over a grid of batches and contexts, by default over the whole range of both.

        `gpus` names one or several, `l4,h100-sxm`, or `all`; `execution` is who launches their kernels.
        """
        domain = self.phases[0].domain
        ranges = (
            given if isinstance(given, NumberRange) else read_range(given or domain[name], name, points=points)
            for name, given in ((BATCH, batch), (CONTEXT, context))
        )
        batches, contexts = ranges
        machines = find_gpus(gpus, devices_file)
        return sweep_answer(
            self, self._traces.graph, batches=batches, contexts=contexts, gpus=machines, execution=execution
        )

    def __repr__(self) -> str:
        return REPORTERS.get("text")().render(self._as_table())

    def _as_table(self) -> Report:
        """Its phases, the ranges that it holds for, and what proves it."""
        phases = (*self.phases, *(() if self.chunk is None else (self.chunk,)))
        names = list(dict.fromkeys(name for phase in phases for name in phase.domain))
        columns = (Column("phase"), *map(Column, names), *(Column(name, Kind.COUNT) for name in _PROOF))
        rows = tuple(
            (
                phase.phase,
                *(_range_text(phase.domain.get(name)) for name in names),
                *(len(phase.cells), len(phase.open_regions), phase.traces),
            )
            for phase in phases
        )
        note = Note("function.sweep() shows a grid of points; function.save(FILE) keeps it.")
        table = Table(title="", columns=columns, rows=rows)
        return Report(title=f"{self.name} as a function of {' and '.join(names)}", tables=(table,), notes=(note,))

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Keep it in one file, which `load_function` reads without torch. `force` overwrites."""
        return save_function(self, Path(path), force=force)

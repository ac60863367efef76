"""A whole training step as one call graph, with what a call graph alone does not say of its ops and its memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.errors import PerfOptError

FORWARD, LOSS, BACKWARD, OPTIMIZER = PHASES = ("forward", "loss", "backward", "optimizer")


class StepStoppedError(PerfOptError):
    """The code that trains raised something, which is the cause of this error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(
            "The training step stopped.",
            why=f"the model's own code raised {type(error).__name__}: {error}",
            fix="give it what it takes, for instance a shorter --seq",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Ops in a row that are in one phase; it ends where the next begins."""

    phase: str
    first_op: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTrainingStep:
    """One step as it ran; numbers are rows of its graph."""

    graph: CallGraph
    stretches: tuple[Stretch, ...]
    recomputed: tuple[range, ...]  # ops in a row that a backward ran again, in order
    gradients: frozenset[int]  # storages that were some parameter's gradient
    optimizer_states: frozenset[int]
    trainable: frozenset[str]  # names of parameters

    @property
    def op_count(self) -> int:
        """Of the whole step, views included."""
        return 0 if self.graph.ops is None else len(self.graph.ops.kind)

    def ranges(self) -> Iterator[tuple[str, range]]:
        """Every stretch as its phase and its ops, in order."""
        ends = [*(stretch.first_op for stretch in self.stretches[1:]), self.op_count]
        for stretch, end in zip(self.stretches, ends, strict=True):
            if end > stretch.first_op:
                yield stretch.phase, range(stretch.first_op, end)

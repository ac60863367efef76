"""Where a ladder begins that starts from a measurement: the time of each phase that was measured."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.advice.pricing import steps_of
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.measurement import DECODE
from llm_perf_opt.measurements.measurement import MeasuredRun, Quantity


def measured_phases(
    runs: Sequence[MeasuredRun], graphs: Sequence[CallGraph], users: int | None = None
) -> dict[str, float]:
    """Phase -> seconds. A TPOT is one step of the decode phase, a TTFT the phase before it.

    `users` sent requests at once, each of which was traced alone.
    """
    phases = {graph.phase: graph for graph in graphs}
    before = [phase for phase in phases if phase != DECODE]
    found: dict[str, float] = {}
    for run in runs:
        _refuse_other_batch(run, users or graphs[0].workload.get("batch", 1))
        if (step := run.time_of(Quantity.TPOT)) is not None and DECODE in phases:
            found[DECODE] = step.seconds * steps_of(phases[DECODE])
        if (first := run.time_of(Quantity.TTFT)) is not None and len(before) == 1:
            found[before[0]] = first.seconds
    if not found:
        raise UsageError(
            "Nothing of this trace was measured.",
            why="a ladder begins at the time of the prompt (TTFT) or of a decode step (TPOT)",
            fix="write --measured 'ttft=0.5s tpot=20ms', and trace the phases that were measured",
        )
    return found


def _refuse_other_batch(run: MeasuredRun, traced: int) -> None:
    if run.sequences is not None and run.sequences != traced:
        raise UsageError(
            f"{run.sequences:,} sequences were measured, and {traced:,} are traced.",
            why="a ladder begins at the time of the very same work",
            fix=f"add --users {run.sequences}",
        )

"""A trace as a function of batch and context, and what it is asked: packed steps, a sweep, a file to keep it in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

from llm_perf_opt.api.mixed_step import MixedStepAnswer, MixedSteps
from llm_perf_opt.api.sweep import sweep_answer
from llm_perf_opt.api.sweep_answer import SweepAnswer
from llm_perf_opt.core.hardware.links import Hardware, find_hardware
from llm_perf_opt.core.number_ranges import POINTS, Given, NumberRange, read_range
from llm_perf_opt.costs.memory.kv_cache import CHUNK
from llm_perf_opt.sweeps.function_files import save_function
from llm_perf_opt.sweeps.run_function import BATCH, CONTEXT, R, R_co, RunFunction
from llm_perf_opt.timing.datasheet_rates import Execution


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
        """One packed step: chunks of (new, cached) tokens, and sequences that decode on so many cached tokens."""
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
        device: str | Hardware | None = None,
        devices_file: Path | None = None,
        execution: str = Execution.EAGER,
    ) -> SweepAnswer:
        """Cost, memory and time over a grid of batches and contexts, by default over the whole range of both."""
        domain = self.phases[0].domain
        ranges = (
            given if isinstance(given, NumberRange) else read_range(given or domain[name], name, points=points)
            for name, given in ((BATCH, batch), (CONTEXT, context))
        )
        batches, contexts = ranges
        hardware = None if device is None else find_hardware(device, devices_file)
        return sweep_answer(
            self, self._traces.graph, batches=batches, contexts=contexts, device=hardware, execution=execution
        )

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Keep it in one file, which `load_function` reads without torch. `force` overwrites."""
        return save_function(self, Path(path), force=force)

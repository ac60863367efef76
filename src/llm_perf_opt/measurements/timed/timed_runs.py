"""Pages through a model, over and over, with a clock: a cold pass apart, warm-up, then the passes that count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.measurement import OperatorTime, PageMeasurement, TimedPass
from llm_perf_opt.core.protocols import RealRun, StageWatch
from llm_perf_opt.core.run_lock import OneRun, RunWatch
from llm_perf_opt.harness.environment import environment, torch_threads
from llm_perf_opt.harness.phase_runs import PhasesDone, run_phases
from llm_perf_opt.harness.profiler_details import ProfilerOptions
from llm_perf_opt.harness.quiet import few_collections
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.harness.stage_ranges import PASS_RANGE, Unwatched, named_range
from llm_perf_opt.measurements.timed.operator_pass import PeakMemory, profile_operators, resident_bytes
from llm_perf_opt.measurements.timed.stage_clock import StageClock, stamps_for


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRun:
    """One page or prompt to measure. `eos_token_id` may end a pass early; None: a fixed number of tokens."""

    image: str | None
    run: RealRun
    eos_token_id: int | None = None
    text_of: Callable[[Sequence[int]], str | None] = lambda _: None  # tokens -> words


class TimedRuns:
    """Measures pages one after the other on one model. The first pass of all is the cold one and is kept apart.

    A page of a shape that was not met before is run `warmup` times without being counted.
    """

    def __init__(
        self,
        models: RealModels,
        *,
        warmup: int = 1,
        repeats: int = 3,
        clock: str = "auto",
        threads: int | None = None,
        watch: StageWatch | None = None,
    ) -> None:
        self._models = models
        self._threads = threads
        self._warmup = warmup
        self._repeats = repeats
        self._stamps = stamps_for(clock, models.device)
        self._watch = watch
        self._model: torch.nn.Module | None = None
        self._shapes: set[tuple[object, int]] = set()

    def environment(self) -> dict[str, Any]:
        """Machine, libraries and settings that the times depend on."""
        with OneRun(), torch_threads(self._threads):
            return environment(self._models.device)

    def measure(self, page: PageRun) -> PageMeasurement:
        """One page; the garbage collector is put off while the clock runs, and no other thread runs a model here."""
        with OneRun(), torch_threads(self._threads):
            return self._measured(page)

    def _measured(self, page: PageRun) -> PageMeasurement:
        self.model_for(page)  # built and loaded before anything is timed
        start_bytes = resident_bytes()
        memory = PeakMemory(self._models.device)
        with few_collections():
            done, cold = self.timed_pass(page)
            is_first = not self._shapes
            if self._is_new_shape(done):
                for _ in range(self._warmup):
                    self._untimed_pass(page)
                timed = [self.timed_pass(page) for _ in range(self._repeats)]
            else:
                timed = [(done, cold), *(self.timed_pass(page) for _ in range(self._repeats - 1))]
        _require_same_work(page, [timed_pass for timed_pass, _ in timed])
        return PageMeasurement(
            image=page.image,
            workload=asdict(_ran(page, done)),
            context_tokens=page.run.targets[0].workload.get("context_tokens"),
            decode_steps=done.decode_steps,
            cache_tokens=done.cache_tokens,
            token_ids=done.token_ids,
            text=page.text_of(done.token_ids),
            passes=tuple(timed_pass for _, timed_pass in timed),
            cold=cold if is_first else None,
            peak_process_bytes=memory.process_bytes(),
            peak_device_bytes=memory.device_bytes(),
            start_process_bytes=start_bytes,
            input_shapes=done.input_shapes,
        )

    def timed_pass(self, page: PageRun) -> tuple[PhasesDone, TimedPass]:
        """One pass with the clock, and whoever watches besides, on every stage."""
        with _watch(page):  # outside the clock: it takes a moment to begin and to end
            clock = StageClock(self._stamps, self._watch)
            clock.start()
            done = self._pass(page, clock)
            return done, clock.finish()

    def operators(
        self, page: PageRun, chrome_trace: Path, *, modules: bool, options: ProfilerOptions | None = None
    ) -> tuple[OperatorTime, ...]:
        """One more pass under torch's profiler; its times enter no figure of a stage.

        `modules` names a range for each module call, which `with_modules` of the options needs.
        """
        named = _ranges(modules or (options is not None and options.with_modules))
        with OneRun(), torch_threads(self._threads):
            self.model_for(page)
            return profile_operators(
                lambda: self._untimed_pass(page, named), self._models.device, chrome_trace, options
            )

    def ranged_pass(self, page: PageRun, *, modules: bool) -> None:
        """Warm up, then one pass inside a range of its own, for a profiler that watches from outside."""
        with OneRun(), torch_threads(self._threads):
            for _ in range(self._warmup):
                self._untimed_pass(page)
            with named_range(PASS_RANGE):
                self._untimed_pass(page, _ranges(modules))

    def model_for(self, page: PageRun) -> torch.nn.Module:
        """The model, built by the first page: pages differ in their inputs alone."""
        if self._model is None:
            self._model = self._models.model_of(page.run.targets[0])
        return self._model

    def _pass(self, page: PageRun, watch: StageWatch, ranges: str = "none") -> PhasesDone:
        return run_phases(
            self.model_for(page),
            page.run.targets,
            watch,
            device=self._models.device,
            eos_token_id=page.eos_token_id,
            ranges=ranges,
        )

    def _untimed_pass(self, page: PageRun, ranges: str = "none") -> PhasesDone:
        with _watch(page):
            return self._pass(page, Unwatched(), ranges)

    def _is_new_shape(self, done: PhasesDone) -> bool:
        shape = (done.input_shapes, done.decode_steps)
        is_new = shape not in self._shapes
        self._shapes.add(shape)
        return is_new


def _watch(page: PageRun) -> RunWatch:
    """The limits of work hold for each pass."""
    return RunWatch(f"{page.run.targets[0].model}, one pass")


def _ranges(modules: bool) -> str:
    return "modules" if modules else "stages"


def _ran(page: PageRun, done: PhasesDone) -> Any:
    """The workload as it ran: an end token may have ended it earlier than asked for."""
    workload = page.run.workload
    return workload if page.eos_token_id is None else replace(workload, decode_steps=done.decode_steps)


def _require_same_work(page: PageRun, runs: list[PhasesDone]) -> None:
    """Samples of one page must be of one workload: a pass that ended earlier is another workload."""
    steps = sorted({run.decode_steps for run in runs})
    if len(steps) > 1:
        raise PerfOptError(
            f"{page.image or page.run.targets[0].model}: the passes decoded {steps} steps.",
            why="the same page ended at different lengths, so its times are not samples of one thing",
            fix="profile with workload.stop_at_eos=false, which decodes a fixed number of tokens",
        )

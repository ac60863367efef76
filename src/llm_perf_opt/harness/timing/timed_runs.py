"""Pages through a session, over and over, with a clock: a cold pass apart, warm-up, then the passes that count."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.measurement import InferenceRequest, OperatorTime, PageMeasurement, TimedPass
from llm_perf_opt.core.protocols import Inference, Session, StageWatch
from llm_perf_opt.harness.environment import environment
from llm_perf_opt.harness.quiet import few_collections
from llm_perf_opt.harness.stage_ranges import PASS_RANGE, Unwatched, named_range
from llm_perf_opt.harness.timing.operator_pass import PeakMemory, profile_operators, resident_bytes
from llm_perf_opt.harness.timing.stage_clock import StageClock, stamps_for


class TimedRuns:
    """Measures pages one after the other. The first pass of all is the cold one and is kept apart.

    A page of a shape that was not met before is run `warmup` times without being counted.
    """

    def __init__(
        self,
        session: Session,
        *,
        warmup: int = 1,
        repeats: int = 3,
        clock: str = "auto",
        threads: int | None = None,
        watch: StageWatch | None = None,
    ) -> None:
        _require_present(session.device)
        if threads is not None:
            torch.set_num_threads(threads)
        self._session = session
        self._warmup = warmup
        self._repeats = repeats
        self._stamps = stamps_for(clock, session.device)
        self._watch = watch
        self._shapes: set[tuple[int, int]] = set()

    def environment(self) -> dict[str, Any]:
        """Machine, libraries and settings that the times depend on."""
        return environment(self._session.device)

    def measure(self, request: InferenceRequest) -> PageMeasurement:
        """One page; the garbage collector is put off while the clock runs."""
        self._session.model.eval()  # built and loaded before anything is timed
        start_bytes = resident_bytes()
        memory = PeakMemory(self._session.device)
        with few_collections():
            done, cold = self.timed_pass(request)
            is_first = not self._shapes
            if self._is_new_shape(done):
                for _ in range(self._warmup):
                    self._session.infer(request, Unwatched())
                timed = [self.timed_pass(request) for _ in range(self._repeats)]
            else:
                timed = [(done, cold), *(self.timed_pass(request) for _ in range(self._repeats - 1))]
        _require_same_work(request, [one for one, _ in timed])
        return PageMeasurement(
            image=request.image,
            workload=asdict(done.workload),
            context_tokens=done.context_tokens,
            decode_steps=done.decode_steps,
            cache_tokens=done.cache_tokens,
            token_ids=done.token_ids,
            text=done.text,
            passes=tuple(one for _, one in timed),
            cold=cold if is_first else None,
            peak_process_bytes=memory.process_bytes(),
            peak_device_bytes=memory.device_bytes(),
            start_process_bytes=start_bytes,
        )

    def timed_pass(self, request: InferenceRequest) -> tuple[Inference, TimedPass]:
        """One pass with the clock, and whoever watches besides, on every stage."""
        clock = StageClock(self._stamps, self._watch)
        clock.start()
        done = self._session.infer(request, clock)
        return done, clock.finish()

    def operators(self, request: InferenceRequest, chrome_trace: Path, *, modules: bool) -> tuple[OperatorTime, ...]:
        """One more pass under torch's profiler, whose times are its own and enter no stage's figure."""
        return profile_operators(self._session, request, chrome_trace, modules=modules)

    def ranged_pass(self, request: InferenceRequest, *, modules: bool) -> None:
        """Warm up, then one pass inside a range of its own, for a profiler that watches from outside."""
        for _ in range(self._warmup):
            self._session.infer(request, Unwatched())
        with named_range(PASS_RANGE):
            self._session.infer(request, Unwatched(), ranges="modules" if modules else "stages")

    def _is_new_shape(self, done: Inference) -> bool:
        shape = (done.context_tokens, done.decode_steps)
        is_new = shape not in self._shapes
        self._shapes.add(shape)
        return is_new


def _require_present(device: str) -> None:
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise PerfOptError(
            "There is no CUDA device here.",
            why=f"the run was to be on {device}",
            fix="use device=cpu; to know what a GPU would do, ask llm-perf-opt predict",
        )


def _require_same_work(request: InferenceRequest, runs: list[Inference]) -> None:
    """Samples of one page must be of one workload: a pass that ended earlier is another workload."""
    if len({run.decode_steps for run in runs}) > 1:
        raise PerfOptError(
            f"{request.image}: the passes decoded {sorted({run.decode_steps for run in runs})} steps.",
            why="the same page ended at different lengths, so its times are not samples of one thing",
            fix="profile with workload.stop_at_eos=false, which decodes a fixed number of tokens",
        )

"""The profiler tracer: a real run under torch.profiler, its ops and kernels placed in the modules that ran them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, record_function

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder, OpKind, TensorMeta
from llm_perf_opt.core.callgraph.queries import deepest_claim
from llm_perf_opt.core.callgraph.records import canonical_text
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import move_whole, write_whole
from llm_perf_opt.core.protocols import PartialTrace, Sight
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.module_calls import StopSite, watch_modules
from llm_perf_opt.harness.profiler_details import ProfilerOptions, annotate, exported_trace, op_details
from llm_perf_opt.harness.quiet import quiet_profiler, silenced
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.harness.recorded_modules import ModuleFilter, RecordedModules
from llm_perf_opt.harness.stage_ranges import MODULE_PREFIX, STAGE_PREFIX, range_text
from llm_perf_opt.harness.trace_header import RuntimeFacts, declare_inputs, declare_modules, finished_graph, observing
from llm_perf_opt.harness.tracers.chrome_trace import Entered, Left, ProfiledOp, ProfiledRun, read_chrome_trace
from llm_perf_opt.harness.twins import RealTensors

CHROME_SUFFIX = ".chrome-trace.json"
Pairs = list[tuple[TensorMeta, int]]


class ProfilerTracer:
    """Runs targets with real tensors under torch.profiler. It sees modules, ops and time, not memory.

    Ops carry the shapes that the profiler noted and the time they took, on the host and, with CUDA, of their kernels.
    Their results are not known, so they have no price; a weightless trace of the same run has. With `keep_in` the
    Chrome trace stays there as `<phase>.chrome-trace.json`, with ranges for stages and modules. On CUDA each phase runs
    once before it is profiled, since the first run pays for loading kernels.

    `with_stack`, `with_modules` and `profile_memory` are torch's options. What they record is in the Chrome trace, at
    each op; the source line and the bytes that an op allocates are among its arguments in the call graph too.
    """

    sees = frozenset({Sight.MODULES, Sight.OPS, Sight.TIME})
    takes = frozenset({"weights", "device", "keep_in", "with_stack", "with_modules", "profile_memory", "only", "stage"})

    def __init__(
        self,
        *,
        weights: str = "random",
        device: str = "cpu",
        keep_in: Path | None = None,
        with_stack: bool = False,
        with_modules: bool = False,
        profile_memory: bool = False,
        only: str | None = None,
        stage: str | None = None,
    ) -> None:
        self._models = RealModels(weights=weights, device=device)
        self._filter = ModuleFilter(only, stage)
        self._keep_in = keep_in
        self._options = ProfilerOptions(with_stack=with_stack, with_modules=with_modules, profile_memory=profile_memory)

    def trace(self, target: Target) -> CallGraph:
        """Run one phase for real and record every module call and op with its time."""
        model = self._models.model_of(target)
        builder = CallGraphBuilder()
        tensors = RealTensors(builder)
        declare_modules(builder, model, tensors.described)
        calls = _RangedCalls(tensors, {path: stage.name for stage in target.stages for path in stage.paths})
        if self._models.device != "cpu":
            with self._models.inputs_moved(model), silenced():
                target.run(model)
        with self._models.inputs_moved(model):
            given = target.start(model)
        declare_inputs(builder, given, tensors.described)
        recorded = self._filter.of(target, model)
        document, facts, stop, error = self._profile(target, model, given, calls, recorded)
        run = read_chrome_trace(document)
        calls.replay(run, builder)
        graph = finished_graph(
            builder,
            target,
            facts,
            "profiler",
            {**self._models.settings, **recorded.settings},
            notes=(*_notes(run), *recorded.notes),
            stopped_in=None if error is None else stop.of(error),
        )
        if error is not None:
            raise PartialTrace(graph, error) from error
        return graph

    def _profile(
        self,
        target: Target,
        model: torch.nn.Module,
        given: object,
        calls: _RangedCalls,
        recorded: RecordedModules,
    ) -> tuple[Mapping[str, Any], RuntimeFacts, StopSite, Exception | None]:
        failure: Exception | None = None
        with (
            observing(target, model) as facts,
            self._models.inputs_moved(model),
            watch_modules(model, calls.enter, calls.leave, recorded.paths) as stop,
            silenced(),
            quiet_profiler(),
            self._options.profiler(self._models.device) as profiler,
        ):
            try:
                target.run(model, given)
            except Exception as error:  # noqa: BLE001  raised again, with the trace, when the profiler is closed
                failure = error
        return self._export(profiler, target.phase), facts, stop, failure

    def _export(self, profiler: profile, phase: str) -> Mapping[str, Any]:
        chrome_file = None if self._keep_in is None else self._keep_in / f"{phase}{CHROME_SUFFIX}"
        with exported_trace(profiler, self._keep_in) as file:
            document: Mapping[str, Any] = json.loads(file.read_text("utf-8", errors="replace"))
            if chrome_file is not None and not self._options:
                move_whole(file, chrome_file)
        if self._options:
            annotate(document, op_details(profiler, self._options))
            if chrome_file is not None:
                write_whole(chrome_file, [json.dumps(document).encode()])
        return document


class _RangedCalls:
    """Module calls as they happen, each inside a named range of the profiler; ops are put between them afterwards."""

    def __init__(self, tensors: RealTensors, stage_of_path: Mapping[str, str]) -> None:
        self._tensors = tensors
        self._stage_of_path = stage_of_path
        self._calls: list[tuple[str, Pairs]] = []
        self._outputs: list[Pairs] = []
        self._open: list[tuple[int, str | None, ExitStack]] = []

    def enter(self, path: str, tensors: Sequence[torch.Tensor]) -> None:
        around = self._open[-1][1] if self._open else None
        stage = deepest_claim(path, self._stage_of_path) or around
        pairs = self._tensors.pairs(tensors)
        with ExitStack() as ranges:
            if stage is not None and stage != around:
                ranges.enter_context(record_function(range_text(f"{STAGE_PREFIX}{stage}")))
            ranges.enter_context(record_function(range_text(f"{MODULE_PREFIX}{path or '(root)'}")))
            self._open.append((len(self._calls), stage, ranges.pop_all()))
        self._calls.append((path, pairs))
        self._outputs.append([])

    def leave(self, tensors: Sequence[torch.Tensor]) -> None:
        call, _, ranges = self._open.pop()
        ranges.close()
        self._outputs[call] = self._tensors.pairs(tensors)

    def replay(self, run: ProfiledRun, builder: CallGraphBuilder) -> None:
        """Write calls and ops in the order in which they happened."""
        kinds: dict[str, OpKind] = {}
        entered = 0
        open_calls: list[int] = []
        for event in run.events:
            if isinstance(event, Entered) and entered < len(self._calls):
                builder.enter(*self._calls[entered], event.start_ns)
                open_calls.append(entered)
                entered += 1
            elif isinstance(event, Left):
                builder.leave(self._outputs[open_calls.pop()], event.end_ns)
            elif isinstance(event, ProfiledOp):
                builder.timed_op(_kind(event, kinds), duration_ns=event.duration_ns, device_ns=event.device_ns)
        if entered != len(self._calls):
            raise PerfOptError(
                f"The profiler kept {entered} of {len(self._calls)} module ranges.",
                why="its buffer was full, so ops cannot be assigned to modules",
                fix="profile a smaller workload, or fewer decode steps",
            )


def _kind(op: ProfiledOp, kinds: dict[str, OpKind]) -> OpKind:
    key = canonical_text([op.name, dict(op.arguments)])
    if key not in kinds:
        kinds[key] = OpKind(name=op.name, inputs=(), outputs=(), arguments=op.arguments)
    return kinds[key]


def _notes(run: ProfiledRun) -> tuple[str, ...]:
    notes = ["ops carry the names and input shapes of the profiler and no results, so they have no price"]
    if run.unattributed_device_ns:
        notes.append(f"{run.unattributed_device_ns:,} ns of device time belong to no op")
    return tuple(notes)

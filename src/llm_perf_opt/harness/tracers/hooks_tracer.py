"""The hooks tracer: a real run, in which every forward is watched and timed from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder, TensorMeta
from llm_perf_opt.core.protocols import PartialTrace, Sight
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.module_calls import watch_modules
from llm_perf_opt.harness.quiet import few_collections, silenced
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.harness.recorded_modules import ModuleFilter
from llm_perf_opt.harness.trace_header import declare_inputs, declare_modules, finished_graph, observing
from llm_perf_opt.harness.twins import RealTensors


class HooksTracer:
    """Runs targets with real tensors on a real device. It sees modules and wall time; ops, hence costs, stay unknown.

    A call's time holds everything that happened between entering and leaving its forward. On a GPU the device is
    waited for at both ends, so that a kernel counts where it was launched; the run as a whole becomes slower by that.
    """

    sees = frozenset({Sight.MODULES, Sight.TIME})
    takes = frozenset({"weights", "device", "only", "stage"})

    def __init__(
        self, *, weights: str = "random", device: str = "cpu", only: str | None = None, stage: str | None = None
    ) -> None:
        self._models = RealModels(weights=weights, device=device)
        self._filter = ModuleFilter(only, stage)

    def trace(self, target: Target) -> CallGraph:
        """Run one phase for real and record every module call with its tensors and its time."""
        model = self._models.model_of(target)
        builder = CallGraphBuilder()
        tensors = RealTensors(builder)
        declare_modules(builder, model, tensors.described)
        calls = _TimedCalls(tensors, _wait_for(self._models.device))
        recorded = self._filter.of(target, model)
        settings = {**self._models.settings, **recorded.settings}
        with self._models.inputs_moved(model):
            given = target.start(model)
        declare_inputs(builder, given, tensors.described)
        with (
            observing(target, model) as facts,
            self._models.inputs_moved(model),
            watch_modules(model, calls.enter, calls.leave, recorded.paths) as stop,
            few_collections(),
            silenced(),
        ):
            try:
                target.run(model, given)
            except Exception as error:
                calls.replay(builder)
                stopped_in = stop.of(error)
                graph = finished_graph(
                    builder, target, facts, "hooks", settings, notes=recorded.notes, stopped_in=stopped_in
                )
                raise PartialTrace(graph, error) from error
        calls.replay(builder)
        return finished_graph(builder, target, facts, "hooks", settings, notes=recorded.notes)


class _TimedCalls:
    """Module calls on one clock. The clock is read last on entry and first on exit: our own work is the caller's.

    While the model runs an event is only noted, since whatever more is touched is pushed out of the caches by the next
    matmul and paid for again; the builder gets to see the events when the run is over.
    """

    def __init__(self, tensors: RealTensors, wait: Callable[[], None] | None) -> None:
        self._pairs = tensors.pairs
        self._wait = wait
        self._events: list[tuple[str | None, int, list[tuple[TensorMeta, int]]]] = []  # a path of None: left

    def enter(self, path: str, tensors: Sequence[torch.Tensor]) -> None:
        pairs = self._pairs(tensors)
        if self._wait is not None:
            self._wait()
        self._events.append((path, time.perf_counter_ns(), pairs))

    def leave(self, tensors: Sequence[torch.Tensor]) -> None:
        if self._wait is not None:
            self._wait()
        now_ns = time.perf_counter_ns()
        self._events.append((None, now_ns, self._pairs(tensors)))

    def replay(self, builder: CallGraphBuilder) -> None:
        """Hand everything over, in order, in time since the first event."""
        origin_ns = self._events[0][1] if self._events else 0
        for path, time_ns, pairs in self._events:
            if path is None:
                builder.leave(pairs, time_ns - origin_ns)
            else:
                builder.enter(path, pairs, time_ns - origin_ns)


def _wait_for(device: str) -> Callable[[], None] | None:
    """How to wait until the device has done what was asked of it; None where nothing runs ahead."""
    kind = torch.device(device).type
    return None if kind == "cpu" else getattr(torch, kind).synchronize

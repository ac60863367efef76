"""The weightless tracer: the model's own forward at full size, with no weights and no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder, TensorMeta
from llm_perf_opt.core.interrupts import InterruptsWait
from llm_perf_opt.core.protocols import PartialTrace, Sight
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.module_calls import watch_modules
from llm_perf_opt.harness.quiet import few_collections, silenced
from llm_perf_opt.harness.trace_header import RuntimeFacts, declare_inputs, declare_modules, finished_graph, observing
from llm_perf_opt.weightless import Engine, RoutingPolicy, routing_policy
from llm_perf_opt.weightless.ghost import local_tensor
from llm_perf_opt.weightless.recording import OpRecorder, bytes_of
from llm_perf_opt.weightless.routing import even_over_ranks


class WeightlessTracer:
    """Traces targets on ghosts. One tracer keeps one engine, so a second phase reuses what the first worked out."""

    sees = frozenset({Sight.MODULES, Sight.OPS, Sight.LIFETIMES})
    takes = frozenset({"routing", "device"})

    def __init__(self, *, routing: str | RoutingPolicy = "uniform", device: str = "cuda") -> None:
        self._routing = routing
        self._engine = Engine(device=device)

    def trace(self, target: Target) -> CallGraph:
        """Build the model, run one phase, and record every module call, op and storage.

        A guess of the oracle that makes the model raise is revised and the phase is run again, with a fresh record.
        """
        with nullcontext() if target.world is None else target.world:
            return self._traced(target)

    def _traced(self, target: Target) -> CallGraph:
        engine, routing = self._engine, self._routing
        engine.other_ranks = None if target.world is None else target.world.integers
        engine.oracle.routing = routing_policy(routing, target.phase) if isinstance(routing, str) else routing
        if target.world is not None:
            engine.oracle.routing = even_over_ranks(engine.oracle.routing, target.world.expert_ranks)
        with engine:
            model = engine.adopt(target.build())
        settings = {"routing": engine.oracle.routing.name, "device": engine.disguise.shown}
        failures: list[_Failure] = []
        try:
            builder, facts = engine.run(lambda: _record(engine, target, model, failures))
        except Exception as error:
            failed = next((failure for failure in failures if failure.error is error), None)
            if failed is None:
                raise
            graph = finished_graph(
                failed.builder, target, failed.facts, "weightless", settings, stopped_in=failed.stopped_in
            )
            raise PartialTrace(graph, error) from error
        return finished_graph(builder, target, facts, "weightless", settings, notes=engine.oracle.revisions())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """A run that raised. The engine may revise a guess and run again; if that is no use it raises the first error."""

    error: Exception
    builder: CallGraphBuilder
    facts: RuntimeFacts
    stopped_in: str


def _record(
    engine: Engine, target: Target, model: torch.nn.Module, failures: list[_Failure]
) -> tuple[CallGraphBuilder, RuntimeFacts]:
    builder = CallGraphBuilder()
    given = target.start(model)
    with InterruptsWait(), engine.recording(builder) as recorder, few_collections():
        declare_modules(builder, model, lambda tensor: _described(recorder, tensor))
        declare_inputs(builder, given, lambda tensor: _described(recorder, tensor))
        calls = _Calls(recorder, is_spread=target.world is not None)
        with observing(target, model) as facts, watch_modules(model, calls.enter, calls.leave) as stop, silenced():
            try:
                target.run(model, given)
            except Exception as error:
                failures.append(_Failure(error=error, builder=builder, facts=facts, stopped_in=stop.of(error)))
                raise
    return builder, facts


class _Calls:
    """Module calls, with the tensors that went in and came out."""

    def __init__(self, recorder: OpRecorder, *, is_spread: bool) -> None:
        self._recorder = recorder
        self._is_spread = is_spread  # over ranks: some tensors may be more than this rank holds

    def enter(self, path: str, tensors: Sequence[torch.Tensor]) -> None:
        self._recorder.builder.enter(path, self._with_tokens(tensors))

    def leave(self, tensors: Sequence[torch.Tensor]) -> None:
        self._recorder.builder.leave(self._with_tokens(tensors))

    def _with_tokens(self, tensors: Sequence[torch.Tensor]) -> list[tuple[TensorMeta, int]]:
        recorder = self._recorder
        held = map(local_tensor, tensors) if self._is_spread else tensors
        return [(recorder.meta(tensor), recorder.token(tensor)) for tensor in held]


def _described(recorder: OpRecorder, tensor: torch.Tensor) -> tuple[TensorMeta, int, int]:
    held = local_tensor(tensor)
    return recorder.meta(held), recorder.token(held), bytes_of(held)

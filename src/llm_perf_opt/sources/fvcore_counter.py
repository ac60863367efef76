"""fvcore on each stage by itself and on each phase as a whole, traced on ghosts: full size, no weights.

What refuses ghosts is traced on real tensors with random weights, if they fit into memory.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version

import torch

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.interrupts import Interruptible
from llm_perf_opt.core.protocols import ModelAdapter
from llm_perf_opt.core.run_lock import OneRun
from llm_perf_opt.core.source_figures import Method, SourceFigures
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.harness.environment import free_memory_bytes
from llm_perf_opt.harness.isolation import IsolatedCall, build_on_ghosts
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.harness.twins import real_twin
from llm_perf_opt.sources.fvcore_gaps import SeenWork
from llm_perf_opt.sources.fvcore_reading import (
    FvcoreReading,
    blind_spots_of,
    completed_of,
    modules_of,
    notes_of,
    operators_of,
    prefixed,
    read_module,
)
from llm_perf_opt.sources.isolated_stages import ASKING_ERRORS, IsolatedStage, ask, failed_phase, reason_of
from llm_perf_opt.sources.traceable import OnePhase, OnTensors, RecordedConvolutions, UnrecordedOps
from llm_perf_opt.weightless import Engine, routing_policy

SOURCE = "fvcore"
NOT_INSTALLED = "fvcore is not installed; pip install 'llm-perf-opt[fvcore]'"
_TABLE_DEPTH = 3  # fvcore's own default
_SHARE_FOR_WEIGHTS = 0.5  # of free memory; activations need some too


class FvcoreCounter:
    """Asks `FlopCountAnalysis` and `ActivationCountAnalysis`. Multiply-adds, which fvcore calls flops, are doubled."""

    runs_model = True

    def __init__(self, *, routing: str = "uniform", device: str = "cuda") -> None:
        self._routing = routing
        self._engine = Engine(device=device, routing=routing)

    def figures(self, adapter: ModelAdapter, workload: Workload) -> tuple[SourceFigures, ...]:
        """The figures of each stage of every phase, in the order in which they run."""
        with OneRun(), Interruptible():
            targets = adapter.targets(workload)
            if importlib.util.find_spec("fvcore") is None:
                return tuple(figures for target in targets for figures in failed_phase(target, SOURCE, NOT_INSTALLED))
            return tuple(
                figures for target in targets for figures in ask(target, self._engine, SOURCE, _of_stage, self._routing)
            )

    def whole_runs(self, adapter: ModelAdapter, workload: Workload) -> tuple[SourceFigures, ...]:
        """Each phase as one module, as fvcore's own users ask it; a phase that it cannot trace has the reason."""
        with OneRun(), Interruptible():
            targets = adapter.targets(workload)
            if importlib.util.find_spec("fvcore") is None:
                return tuple(_failed_run(target, NOT_INSTALLED) for target in targets)
            return tuple(self._whole_run(adapter, workload, place, target) for place, target in enumerate(targets))

    def _whole_run(self, adapter: ModelAdapter, workload: Workload, place: int, target: Target) -> SourceFigures:
        start = time.perf_counter()
        try:
            self._engine.oracle.routing = routing_policy(self._routing, target.phase)
            model = build_on_ghosts(target, self._engine)
        except ASKING_ERRORS as error:
            return _failed_run(target, reason_of(error))
        try:
            reading = self._engine.run(lambda: _read_on_ghosts(target, model))
            figures = replace(_of_run(target, model, reading), routing=self._engine.oracle.routing.name)
        except ASKING_ERRORS as error:
            fresh = adapter.targets(workload)[place]  # the other one built ghosts
            figures = _of_real_run(fresh, bytes_of(model), reason_of(error))
        return replace(figures, seconds=time.perf_counter() - start)


def _of_stage(stage: IsolatedStage, engine: Engine) -> SourceFigures:
    read = [_read_call(call, engine) for call in stage.calls]
    readings = [reading for reading, _ in read]
    refusals = [refusal for _, refusal in read if refusal is not None]
    left = sum(spot.flops for spot in stage.loose if spot.flops is not None)
    completed = None if any(spot.flops is None for spot in stage.loose) else completed_of(readings)
    return replace(
        _figures(readings, is_real=bool(refusals)),
        phase=stage.phase,
        stage=stage.name,
        method=Method.ISOLATED,
        completed_flops=None if completed is None else completed + left,
        blind_spots=(*blind_spots_of(readings), *stage.loose),
        notes=(*stage.notes(), *refusals, *notes_of(readings)),
        own_table="\n\n".join(
            f"{_heading(call)}\n{reading.table}" for call, reading in zip(stage.calls, readings, strict=True)
        ),
    )


def _read_call(call: IsolatedCall, engine: Engine) -> tuple[FvcoreReading, str | None]:
    """One call on ghosts, or on real tensors with the reason why."""

    def read() -> FvcoreReading:
        seen = SeenWork()
        with RecordedConvolutions(), UnrecordedOps(seen.on_op):
            return _read_isolated(OnTensors(call), call, seen)

    try:
        return engine.run(read), None
    except ASKING_ERRORS as error:
        if lack := lack_of_memory(bytes_of(call.module)):
            raise PerfOptError(
                f"weightless tensors were refused ({reason_of(error)}), and {lack}",
                why="fvcore traces a module that runs",
                fix="use a machine with more memory, or another source",
            ) from error
        module, args, kwargs = real_twin(call.module), *real_twin((call.args, call.kwargs))
        real = replace(call, module=module, args=args, kwargs=kwargs)
        with torch.no_grad():
            reading = _read_isolated(OnTensors(real), call, SeenWork())
        return reading, f"{call.path} ran on real tensors, because weightless ones were refused: {reason_of(error)}"


def _read_isolated(module: OnTensors, call: IsolatedCall, seen: SeenWork) -> FvcoreReading:
    path_of = prefixed("module", call.path)
    return read_module(module, module.tensors, seen, path_of=path_of, table_depth=_TABLE_DEPTH, calls=call.calls)


def _read_on_ghosts(target: Target, model: torch.nn.Module) -> FvcoreReading:
    seen = SeenWork()
    with silenced():
        phase = OnePhase(target, model, target.start(model), keeps_all=True)
    with RecordedConvolutions(), UnrecordedOps(seen.on_op):
        return read_module(phase, phase.tensors, seen, path_of=prefixed("model", ""), table_depth=_TABLE_DEPTH)


def _of_real_run(target: Target, weight_bytes: int, refusal: str) -> SourceFigures:
    """The phase with random weights on the CPU, because ghosts were refused for that reason."""
    if lack := lack_of_memory(weight_bytes):
        return _failed_run(target, f"weightless tensors were refused ({refusal}), and {lack}")
    try:
        with silenced(), torch.no_grad():
            model = RealModels(weights="random", device="cpu").model_of(target)
            phase = OnePhase(target, model, target.start(model), keeps_all=False)
            path_of = prefixed("model", "")
            reading = read_module(phase, phase.tensors, SeenWork(), path_of=path_of, table_depth=_TABLE_DEPTH)
    except ASKING_ERRORS as error:
        return _failed_run(
            target, f"weightless tensors were refused ({refusal}), and real ones too ({reason_of(error)})"
        )
    figures = _of_run(target, model, reading)
    note = f"it ran on real tensors with random weights, because weightless ones were refused: {refusal}"
    return replace(figures, tensors="real", notes=(note, *figures.notes))


def _of_run(target: Target, model: torch.nn.Module, reading: FvcoreReading) -> SourceFigures:
    from fvcore.nn import parameter_count

    return replace(
        _figures([reading], is_real=False),
        phase=target.phase,
        stage=target.phase,
        method=Method.WHOLE_RUN,
        parameters=int(parameter_count(model)[""]),
        completed_flops=reading.completed_flops,
        blind_spots=tuple(blind_spots_of([reading])),
        notes=tuple(notes_of([reading])),
        own_table=reading.table,
    )


def _figures(readings: Sequence[FvcoreReading], *, is_real: bool) -> SourceFigures:
    """What all readings add up to, of no phase or stage yet."""
    operators = operators_of(readings)
    return SourceFigures(
        source=SOURCE,
        phase="",
        stage="",
        method=Method.ISOLATED,
        flops=sum(operator.flops or 0 for operator in operators),
        activations=sum(sum(reading.activations.values()) * reading.calls for reading in readings),
        operators=operators,
        modules=modules_of(readings),
        completed_with=tuple(dict.fromkeys(name for reading in readings for name in reading.completed_with)),
        uncalled_modules=tuple(dict.fromkeys(path for reading in readings for path in reading.uncalled)),
        unit="mac",
        tensors="real" if is_real else "weightless",
        version=version("fvcore"),
    )


def _failed_run(target: Target, reason: str) -> SourceFigures:
    return SourceFigures(source=SOURCE, phase=target.phase, stage=target.phase, method=Method.WHOLE_RUN, failure=reason)


def bytes_of(module: torch.nn.Module) -> int:
    """What its weights and buffers take, each once."""
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}.values()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def lack_of_memory(weight_bytes: int) -> str | None:
    """Why weights of that size are not made for real: they would take most of the memory that is free."""
    free = free_memory_bytes()
    if free is not None and weight_bytes <= _SHARE_FOR_WEIGHTS * free:
        return None
    room = "an unknown amount" if free is None else format_bytes(free)
    return (
        f"real weights take {format_bytes(weight_bytes)}, more than {_SHARE_FOR_WEIGHTS:.0%} of the {room} that is free"
    )


def _heading(call: IsolatedCall) -> str:
    shapes = ", ".join(str(list(tensor.shape)) for tensor in OnTensors(call).tensors[:3])
    last = f" to {call.paths[-1]}" if len(call.paths) > 1 else ""
    return f"{call.stage}: {call.path}{last}, {call.calls} x, on {shapes}"

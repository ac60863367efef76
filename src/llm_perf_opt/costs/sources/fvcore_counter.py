"""fvcore on each stage by itself and on each phase as a whole, traced on ghosts: full size, no weights.

What refuses ghosts is traced on real tensors with random weights, if they fit into memory.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.interrupts import Interruptible
from llm_perf_opt.core.plain_text import error_line
from llm_perf_opt.core.protocols import ModelAdapter
from llm_perf_opt.core.run_lock import OneRun
from llm_perf_opt.core.source_figures import Method, SourceFigures
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.sources.fvcore_reading import (
    FvcoreReading,
    SeenWork,
    blind_spots_of,
    completed_of,
    modules_of,
    notes_of,
    operators_of,
    prefixed,
    read_module,
)
from llm_perf_opt.costs.sources.isolated_stages import ASKING_ERRORS, GhostCounter, IsolatedStage, ask, failed_phase
from llm_perf_opt.harness.environment import free_memory_bytes
from llm_perf_opt.harness.isolation import IsolatedCall, build_on_ghosts
from llm_perf_opt.harness.module_calls import watch_forwards
from llm_perf_opt.harness.op_watch import OpWatch
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.harness.trace_header import observing
from llm_perf_opt.harness.twins import distinct_tensors, real_twin, tensors_in, with_tensors
from llm_perf_opt.weightless import Engine, Ghost, routing_policy

SOURCE = "fvcore"
NOT_INSTALLED = "fvcore is not installed; pip install 'llm-perf-opt[fvcore]'"
_TABLE_DEPTH = 3  # fvcore's own default
_SHARE_FOR_WEIGHTS = 0.5  # of free memory; activations need some too


class FvcoreCounter(GhostCounter):
    """Asks `FlopCountAnalysis` and `ActivationCountAnalysis`. Multiply-adds, which fvcore calls flops, are doubled."""

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
            return _failed_run(target, error_line(error))
        try:
            reading = self._engine.run(lambda: _read_on_ghosts(target, model))
            figures = replace(_of_run(target, model, reading), routing=self._engine.oracle.routing.name)
        except ASKING_ERRORS as error:
            fresh = adapter.targets(workload)[place]  # the other one built ghosts
            figures = _of_real_run(fresh, bytes_of(model), error_line(error))
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
                f"weightless tensors were refused ({error_line(error)}), and {lack}",
                why="fvcore counts a module while the module runs",
                fix="use a machine with more memory, or another source",
            ) from error
        module, args, kwargs = real_twin(call.module), *real_twin((call.args, call.kwargs))
        real = replace(call, module=module, args=args, kwargs=kwargs)
        with torch.no_grad():
            reading = _read_isolated(OnTensors(real), call, SeenWork())
        return reading, f"{call.path} ran on real tensors, because weightless ones were refused: {error_line(error)}"


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
            target, f"weightless tensors were refused ({refusal}), and real ones too ({error_line(error)})"
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


# What `torch.jit.trace` needs, a module of tensors only, and the ops that it does not write down.
#
# Ghosts can be traced: the tracer writes an op down before it reaches the engine. It skips `conv2d` and the like,
# expecting the `_convolution` inside, which no engine ever calls; here they are called by that name from the start.
#
# The tracer stops listening while a recorded op runs. So an op that arrives while it still listens was not recorded,
# and the engine has to work on it without being traced itself.


class OnTensors(torch.nn.Module):
    """A module with one call's arguments, as a function of the tensors among them."""

    def __init__(self, call: IsolatedCall) -> None:
        super().__init__()
        self.module = call.module
        self._arguments = (call.args, call.kwargs)
        self.tensors = tuple(distinct_tensors(self._arguments))

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors in what the module returns; a cache among the arguments is a new one in each call."""
        args, kwargs = with_tensors(self._arguments, zip(self.tensors, tensors, strict=True))
        return _returnable(tensors_in(self.module(*args, **kwargs)))


class OnePhase(torch.nn.Module):
    """A phase of a model as one module: a function of the tensors that the phase begins with.

    The tracer drops whatever nothing returned depends on, such as the logits of a decode that gives back its cache. So
    the outputs of all modules are returned too. Real tensors would fill memory, so then the model's output alone is.
    """

    def __init__(self, target: Target, model: torch.nn.Module, given: object, *, keeps_all: bool) -> None:
        super().__init__()
        self.model = model
        self._target, self._given, self._keeps_all = target, (given,), keeps_all
        self.tensors = tuple(distinct_tensors(self._given)) or (torch.zeros(()),)  # a trace needs one at least

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors that the phase and its modules return."""
        (given,) = with_tensors(self._given, zip(self.tensors, tensors, strict=True))
        outputs: list[torch.Tensor] = []

        def before(path: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            pass

        def after(path: str, output: Any) -> None:
            if self._keeps_all or not path:
                outputs.extend(tensor for tensor in tensors_in(output) if tensor.is_floating_point())

        with observing(self._target, self.model), watch_forwards(self.model, before, after):
            outputs.extend(tensors_in(self._target.run(self.model, given)))
        return _returnable({id(tensor): tensor for tensor in outputs}.values())


def _returnable(tensors: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The tracer refuses to return a real tensor that it has not seen being made; it sees the copy."""
    return tuple(tensor if isinstance(tensor, Ghost) else tensor.clone() for tensor in tensors)


class RecordedConvolutions(TorchFunctionMode):
    """Calls `torch._convolution` for every convolution with numeric padding."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Everything else passes unchanged."""
        kwargs = kwargs or {}
        convolve = _CONVOLUTIONS.get(func)
        if convolve is None or any(isinstance(value, str) for value in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        return convolve(*args, **kwargs)


def _plain(dimensions: int) -> Callable[..., torch.Tensor]:
    def convolve(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> torch.Tensor:
        sizes = [_per_dimension(value, dimensions) for value in (stride, padding, dilation)]
        return _convolution(input, weight, bias, *sizes, False, [0] * dimensions, groups)

    return convolve


def _transposed(dimensions: int) -> Callable[..., torch.Tensor]:
    def convolve(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> torch.Tensor:
        sizes = [_per_dimension(value, dimensions) for value in (stride, padding, dilation)]
        return _convolution(input, weight, bias, *sizes, True, _per_dimension(output_padding, dimensions), groups)

    return convolve


def _convolution(*arguments: Any) -> torch.Tensor:
    benchmark, deterministic, cudnn_enabled, allow_tf32 = False, False, True, True
    convolve: Callable[..., torch.Tensor] = torch._convolution
    return convolve(*arguments, benchmark, deterministic, cudnn_enabled, allow_tf32)


def _per_dimension(value: Any, dimensions: int) -> list[int]:
    sizes = [int(value)] if isinstance(value, (int, torch.Tensor)) else [int(size) for size in value]
    return sizes * dimensions if len(sizes) == 1 else sizes


_CONVOLUTIONS: dict[Any, Callable[..., torch.Tensor]] = {
    F.conv1d: _plain(1),
    F.conv2d: _plain(2),
    F.conv3d: _plain(3),
    F.conv_transpose1d: _transposed(1),
    F.conv_transpose2d: _transposed(2),
    F.conv_transpose3d: _transposed(3),
}


class UnrecordedOps(OpWatch):
    """Tells of every op that is missing from the trace, and runs it unseen."""

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the op; tell of it where the tracer does not know it."""
        state: Any = torch._C._get_tracing_state()
        if state is None:
            return func(*args, **kwargs)
        _set_tracing_state(None)
        try:
            output = func(*args, **kwargs)
            self.on_op(func, args, kwargs, output)
        finally:
            _set_tracing_state(state)
        return tree_map_only(Ghost, _known_to_the_tracer, output)


def _known_to_the_tracer(ghost: Ghost) -> torch.Tensor:
    """A fresh ghost that the tracer saw being made: one that came from nowhere it takes for a constant, and reads."""
    with _tracer_listening():
        return torch.empty(tuple(ghost.shape), dtype=ghost.dtype)


def _set_tracing_state(state: Any) -> None:
    with _tracer_listening():
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]


def _tracer_listening() -> AbstractContextManager[object]:
    """Inside a dispatched op the tracer's key is excluded, so that its state may not change; this lifts that."""
    excluded = torch._C._dispatch_tls_local_exclude_set().remove(torch._C._dispatch_key_parse("Tracer"))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)

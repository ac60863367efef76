"""A phase cut into modules that a source can run by themselves, and the work that no cut holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.plain_text import error_line
from llm_perf_opt.core.source_figures import BlindSpot, Method, SourceFigures
from llm_perf_opt.core.target import Target
from llm_perf_opt.costs.sources.torch_prices import Tally, count, may_do_matrix_work
from llm_perf_opt.harness.isolation import IsolatedCall, LooseOp, cut_apart, stage_roots
from llm_perf_opt.harness.twins import tensors_in
from llm_perf_opt.weightless import Engine, routing_policy

# What running a module in a way its author never tried may raise; anything else is a mistake of ours.
ASKING_ERRORS = (PerfOptError, RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolatedStage:
    """The calls that make up one stage of one phase. `loose` is matrix work between them, `loose_ops` all ops there."""

    phase: str
    name: str
    calls: tuple[IsolatedCall, ...]
    loose: tuple[BlindSpot, ...]
    loose_ops: int

    def notes(self) -> tuple[str, ...]:
        """What was left out, where anything was."""
        if not self.loose_ops:
            return ()
        work = ", ".join(spot.operator for spot in self.loose)
        return (f"{self.loose_ops:,} ops ran in no isolated module, {f'among them {work}' if work else 'no matmul'}",)


def isolated_stages(target: Target, engine: Engine) -> tuple[IsolatedStage, ...]:
    """The stages of a phase that ran, in the order in which the target declares them, the phase itself last."""
    isolation = cut_apart(target, stage_roots(target, engine), engine)
    ran = {call.stage for call in isolation.calls} | {op.stage for op in isolation.loose}
    return tuple(
        _stage(
            target.phase,
            name,
            tuple(call for call in isolation.calls if call.stage == name),
            [op for op in isolation.loose if op.stage == name],
            engine,
        )
        for name in _stage_names(target)
        if name in ran
    )


class GhostCounter:
    """What every source has that runs a model on ghosts: the engine, and the routing that it is told."""

    runs_model = True

    def __init__(self, *, routing: str = "uniform", device: str = "cuda") -> None:
        routing_policy(routing)  # one that does not exist is refused here, not as the failure of a stage
        self._routing = routing
        self._engine = Engine(device=device, routing=routing)


def ask(
    target: Target,
    engine: Engine,
    source: str,
    of_stage: Callable[[IsolatedStage, Engine], SourceFigures],
    routing: str,
) -> Iterator[SourceFigures]:
    """What a source says of each stage of a phase; what it raises becomes that stage's failure."""
    try:
        engine.oracle.routing = routing_policy(routing, target.phase)
        stages = isolated_stages(target, engine)
    except ASKING_ERRORS as error:
        yield from failed_phase(target, source, error_line(error))
        return
    for stage in stages:
        start = time.perf_counter()
        try:
            figures = of_stage(stage, engine)
        except ASKING_ERRORS as error:
            figures = _failed(source, target.phase, stage.name, error_line(error))
        yield replace(figures, routing=engine.oracle.routing.name, seconds=time.perf_counter() - start)


def failed_phase(target: Target, source: str, failure: str) -> tuple[SourceFigures, ...]:
    """The same reason for every stage of a phase that could not be asked for at all."""
    return tuple(_failed(source, target.phase, name, failure) for name in _stage_names(target))


def _failed(source: str, phase: str, stage: str, failure: str) -> SourceFigures:
    return SourceFigures(source=source, phase=phase, stage=stage, method=Method.ISOLATED, failure=failure)


def _stage_names(target: Target) -> tuple[str, ...]:
    return (*(stage.name for stage in target.stages), target.phase)


def _stage(
    phase: str, name: str, calls: tuple[IsolatedCall, ...], loose: Sequence[LooseOp], engine: Engine
) -> IsolatedStage:
    work = Tally()
    for op in loose:
        if may_do_matrix_work(op.func, tensors_in((op.args, op.kwargs))):
            work.add(count(engine, partial(op.func, *op.args, **op.kwargs)), op.calls)
    return IsolatedStage(
        phase=phase, name=name, calls=calls, loose=_outside(work), loose_ops=sum(op.calls for op in loose)
    )


def _outside(work: Tally) -> tuple[BlindSpot, ...]:
    counted = [(name, flops) for name, flops in work.flops.items() if flops]
    uncounted = [(spot.operator, spot.flops) for spot in work.blind_spots()]
    return tuple(
        BlindSpot(cause="outside-isolated-modules", operator=name, calls=work.calls[name], flops=flops)
        for name, flops in (*counted, *uncounted)
    )

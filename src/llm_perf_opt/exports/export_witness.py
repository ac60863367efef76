"""The exported graph as a witness: each stage's modules exported by themselves, the graphs run under torch's counter.

Neither the graph nor the formulas are those of the trace, so agreement to the FLOP is no accident.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from llm_perf_opt.errors import PerfOptError
from llm_perf_opt.execution.isolation import IsolatedCall, LooseOp, cut_apart
from llm_perf_opt.execution.silence import silenced
from llm_perf_opt.execution.stage_roots import stage_roots
from llm_perf_opt.execution.twins import meta_twin
from llm_perf_opt.export_outcome import Check
from llm_perf_opt.exports.eager_count import TorchCount, torch_count
from llm_perf_opt.exports.failure import EXPORT_ERRORS, failed
from llm_perf_opt.exports.meta_autocast import autocast_knows_meta
from llm_perf_opt.exports.quiet import quiet
from llm_perf_opt.exports.tensor_signature import TensorsOnly
from llm_perf_opt.plugins import ModelAdapter, Target, Workload
from llm_perf_opt.testimony import BlindSpot, Family, Method, OperatorFigure, Testimony, family_of
from llm_perf_opt.weightless import Engine, routing_policy

SOURCE = "exported"
_UNCOUNTED = {Family.ATTENTION: "fused-attention-uncounted", Family.GROUPED: "grouped-product-uncounted"}


class ExportWitness:
    """Exports the modules that together are the run; a stage with a module that does not export says where it stops."""

    def __init__(self, *, routing: str = "uniform", device: str = "cpu") -> None:
        self._routing = routing
        self._engine = Engine(device=device, routing=routing)

    def testify(self, adapter: ModelAdapter, workload: Workload) -> tuple[Testimony, ...]:
        """One testimony per stage of every phase, in the order in which they run."""
        return tuple(
            replace(testimony, routing=self._engine.oracle.routing.name)
            for target in adapter.targets(workload)
            for testimony in _of_phase(target, self._engine, self._routing)
        )


def _of_phase(target: Target, engine: Engine, routing: str) -> Iterator[Testimony]:
    names = (*(stage.name for stage in target.stages), target.phase)
    try:
        engine.oracle.routing = routing_policy(routing, target.phase)
        cut = cut_apart(target, stage_roots(target, engine), engine)
    except (PerfOptError, *EXPORT_ERRORS) as error:
        for name in names:
            yield replace(_silent(target, name), failure=f"{type(error).__name__}: {error}")
        return
    for name in names:
        calls = [call for call in cut.calls if call.stage == name]
        if calls:
            with quiet(), silenced():
                yield _of_stage(_silent(target, name), calls, [op for op in cut.loose if op.stage == name])


def _silent(target: Target, stage: str) -> Testimony:
    return Testimony(source=SOURCE, phase=target.phase, stage=stage, method=Method.ISOLATED)


def _of_stage(testimony: Testimony, calls: Sequence[IsolatedCall], loose: Sequence[LooseOp]) -> Testimony:
    started = time.perf_counter()
    total = _Tally()
    for call in calls:
        try:
            total.add(_exported_count(call), call.calls)
        except EXPORT_ERRORS as error:
            where = failed(Check.EXPORT, error)
            return replace(testimony, failure=f"{call.path} does not export: {where.reason}, at {where.site}")
    return replace(
        testimony,
        flops=total.flops.total(),
        operators=tuple(
            OperatorFigure(name=name, family=family_of(name), flops=flops, calls=total.calls[name])
            for name, flops in total.flops.most_common()
        ),
        blind_spots=(*_uncounted(total), *_outside(loose)),
        notes=(f"{len(calls)} distinct graphs, each at the shapes of the run",),
        seconds=time.perf_counter() - started,
    )


def _exported_count(call: IsolatedCall) -> TorchCount:
    """Export on the meta device, then run the graph there, where every fused op falls into countable products."""
    on_meta = meta_twin(TensorsOnly(call.module, call.args, call.kwargs))
    inputs = tuple(on_meta.given)
    with torch.no_grad(), autocast_knows_meta():
        graph = torch.export.export(on_meta, inputs).module()
    return torch_count(graph, inputs)


@dataclass(slots=True)
class _Tally:
    """Sums over the calls of a stage."""

    flops: Counter[str]
    calls: Counter[str]
    unknown: Counter[str]

    def __init__(self) -> None:
        self.flops, self.calls, self.unknown = Counter(), Counter(), Counter()

    def add(self, count: TorchCount, times: int) -> None:
        """A graph that stands for so many calls of the run."""
        for total, part in (
            (self.flops, count.flops_by_operator),
            (self.calls, count.calls_by_operator),
            (self.unknown, count.unknown),
        ):
            total.update({name: value * times for name, value in part.items()})


def _uncounted(total: _Tally) -> Iterator[BlindSpot]:
    for name, calls in total.unknown.items():
        cause = _UNCOUNTED.get(family_of(name), "op-without-formula")
        yield BlindSpot(cause=cause, operator=name, calls=calls)


def _outside(loose: Sequence[LooseOp]) -> Iterator[BlindSpot]:
    """Products between the modules, which are in no graph."""
    for op in loose:
        name = str(op.func._overloadpacket)
        if family_of(name) is not Family.OTHER:
            args, kwargs = meta_twin((op.args, op.kwargs))
            count = torch_count(partial(op.func, *args, **kwargs), ())
            yield BlindSpot(
                cause="outside-isolated-modules", operator=name, calls=op.calls, flops=count.flops * op.calls
            )

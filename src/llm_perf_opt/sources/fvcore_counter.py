"""fvcore's analyses on each stage by itself, traced on ghosts: full size, no weights."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from llm_perf_opt.core.protocols import ModelAdapter, Workload
from llm_perf_opt.core.source_figures import BlindSpot, Method, OperatorFigure, Testimony, family_of
from llm_perf_opt.harness.isolation import IsolatedCall
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.sources.fvcore_gaps import SeenWork, gaps, settled, watched_operators
from llm_perf_opt.sources.isolated_stages import IsolatedStage, ask, failed_phase
from llm_perf_opt.sources.traceable import OnTensors, RecordedConvolutions, UnrecordedOps
from llm_perf_opt.weightless import Engine

SOURCE = "fvcore"
_FLOPS_PER_MAC = 2
_TABLE_DEPTH = 3


class FvcoreCounter:
    """Asks `FlopCountAnalysis` and `ActivationCountAnalysis`. Multiply-adds, which fvcore calls flops, are doubled."""

    def __init__(self, *, routing: str = "uniform", device: str = "cuda") -> None:
        self._routing = routing
        self._engine = Engine(device=device, routing=routing)

    def testify(self, adapter: ModelAdapter, workload: Workload) -> tuple[Testimony, ...]:
        """One testimony per stage of every phase, in the order in which they run."""
        targets = adapter.targets(workload)
        if importlib.util.find_spec("fvcore") is None:
            failure = "fvcore is not installed; pip install 'llm-perf-opt[fvcore]'"
            return tuple(testimony for target in targets for testimony in failed_phase(target, SOURCE, failure))
        return tuple(
            testimony for target in targets for testimony in ask(target, self._engine, SOURCE, _of_stage, self._routing)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """What fvcore says of one call, in FLOPs."""

    flops: dict[str, int]
    activations: dict[str, int]
    blind_spots: tuple[BlindSpot, ...]
    silent: Counter[str]
    uncalled: int
    table: str


def _of_stage(stage: IsolatedStage, engine: Engine) -> Testimony:
    counted = [(call, _count(call, engine)) for call in stage.calls]
    flops, activations, silent = Counter[str](), Counter[str](), Counter[str]()
    for call, figures in counted:
        for total, part in ((flops, figures.flops), (activations, figures.activations), (silent, figures.silent)):
            total.update({name: count * call.calls for name, count in part.items()})
    return Testimony(
        source=SOURCE,
        phase=stage.phase,
        stage=stage.name,
        method=Method.ISOLATED,
        flops=flops.total(),
        activations=activations.total(),
        operators=_operators(flops, activations),
        blind_spots=(*_merged(counted), *stage.loose),
        notes=(*stage.notes(), *_notes(silent, sum(figures.uncalled for _, figures in counted))),
        unit="mac",
        own_table="\n\n".join(f"{_heading(call)}\n{figures.table}" for call, figures in counted),
    )


def _count(call: IsolatedCall, engine: Engine) -> _Counted:
    from fvcore.nn import ActivationCountAnalysis, FlopCountAnalysis, flop_count_table

    module = OnTensors(call)

    def read() -> _Counted:
        seen = SeenWork()
        with silenced(), RecordedConvolutions(), UnrecordedOps(seen.on_op):
            analysis = _quiet(FlopCountAnalysis(module, module.tensors))
            figures = {name: round(_FLOPS_PER_MAC * macs) for name, macs in analysis.by_operator().items()}
        unsupported = Counter(analysis.unsupported_ops())
        watched = watched_operators(figures, unsupported)
        with silenced(), RecordedConvolutions(), UnrecordedOps(lambda *_: None):
            activations = _quiet(ActivationCountAnalysis(module, module.tensors))
            if watched:
                look = _quiet(FlopCountAnalysis(module, module.tensors))
                look.set_op_handle(**{operator: seen.handle(operator) for operator in watched})
                look.total()
            return _Counted(
                flops=figures,
                activations={name: int(count) for name, count in activations.by_operator().items()},
                blind_spots=tuple(gaps(figures, seen)),
                silent=Counter({name: count for name, count in unsupported.items() if name not in watched}),
                uncalled=len(analysis.uncalled_modules()),
                table=flop_count_table(analysis, max_depth=_TABLE_DEPTH, activations=activations),
            )

    return engine.run(read)


def _quiet(analysis: Any) -> Any:
    """What it would warn of is part of the testimony."""
    return analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")


def _operators(flops: Counter[str], activations: Counter[str]) -> tuple[OperatorFigure, ...]:
    return tuple(
        OperatorFigure(name=name, family=family_of(name), flops=count, activations=activations.get(name))
        for name, count in flops.most_common()
    )


def _merged(counted: list[tuple[IsolatedCall, _Counted]]) -> Iterator[BlindSpot]:
    """One blind spot per cause and operator over all calls; one unknown part makes the sum unknown."""
    spots: dict[tuple[str, str], BlindSpot] = {}
    for call, figures in counted:
        for spot in figures.blind_spots:
            known = spots.get((spot.cause, spot.operator))
            flops = None if spot.flops is None else spot.flops * call.calls
            if known is not None:
                flops = None if flops is None or known.flops is None else known.flops + flops
            calls = spot.calls * call.calls + (known.calls if known else 0)
            spots[spot.cause, spot.operator] = replace(spot, calls=calls, flops=flops)
    yield from map(settled, spots.values())


def _notes(silent: Counter[str], uncalled: int) -> Iterator[str]:
    if silent:
        names = ", ".join(name.removeprefix("aten::") for name, _ in silent.most_common(6))
        yield f"no handle for {silent.total():,} elementwise and indexing ops of {len(silent)} kinds: {names}"
    if uncalled:
        yield f"{uncalled:,} modules were not called, or by their `forward`, and have no figure of their own"


def _heading(call: IsolatedCall) -> str:
    shapes = ", ".join(str(list(tensor.shape)) for tensor in OnTensors(call).tensors[:3])
    last = f" to {call.paths[-1]}" if len(call.paths) > 1 else ""
    return f"{call.stage}: {call.path}{last}, {call.calls} x, on {shapes}"

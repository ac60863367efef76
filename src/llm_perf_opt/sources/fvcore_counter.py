"""fvcore's analyses on each stage by itself, traced on ghosts: full size, no weights; every gap named and priced."""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llm_perf_opt.core.protocols import ModelAdapter
from llm_perf_opt.core.source_figures import BlindSpot, Method, OperatorFigure, SourceFigures, WorkFamily, family_of
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.harness.isolation import IsolatedCall
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.harness.twins import tensors_in
from llm_perf_opt.sources.isolated_stages import IsolatedStage, ask, failed_phase
from llm_perf_opt.sources.torch_prices import Shape, cause_of_gap, does_matrix_work, flops_of, may_do_matrix_work
from llm_perf_opt.sources.traceable import OnTensors, RecordedConvolutions, UnrecordedOps
from llm_perf_opt.weightless import Engine

_EINSUM, _MATMUL = "aten::einsum", "aten::matmul"
_ROUNDED = "rounded"  # fvcore gives an einsum in four digits
Handle = Callable[[list[Any], list[Any]], int]


@dataclass(slots=True)
class SeenWork:
    """FLOPs of chosen ops by the shapes in a trace, and how often each ran; None where the shapes do not tell."""

    flops: dict[str, int | None] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)

    def handle(self, operator: str) -> Handle:
        """A handle for fvcore that notes the op down and adds nothing to any figure."""

        def look(inputs: list[Any], outputs: list[Any]) -> int:
            is_einsum = operator == _EINSUM
            self._note(operator, _einsum_flops(inputs) if is_einsum else _flops(operator, inputs, outputs))
            return 0

        return look

    def on_op(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        """An op ran that is not in the trace, so that no handle can look at it."""
        tensors = [*tensors_in(list(args)), *tensors_in(dict(kwargs))]
        if may_do_matrix_work(func, tensors):
            inputs, outputs = ([tuple(tensor.shape) for tensor in group] for group in (tensors, tensors_in(output)))
            self._note(str(func).rpartition(".")[0], flops_of(str(func), inputs, outputs))

    def _note(self, operator: str, flops: int | None) -> None:
        self.calls[operator] += 1
        known = self.flops.setdefault(operator, 0)
        self.flops[operator] = None if known is None or flops is None else known + flops


def watched_operators(figures: Mapping[str, float], unsupported: Mapping[str, int]) -> tuple[str, ...]:
    """Ops worth a second look: the unsupported ones that multiply, and those that fvcore prices only roughly."""
    uncounted = [name for name in unsupported if does_matrix_work(name) or not name.startswith("aten::")]
    rough = [f"aten::{name}" for name in figures if f"aten::{name}" in (_EINSUM, _MATMUL)]
    return (*uncounted, *rough)


def gaps(figures: Mapping[str, int], seen: SeenWork) -> Iterator[BlindSpot]:
    """Blind spots of one traced call; `figures` are FLOPs by fvcore's operator names.

    Of an op that fvcore prices roughly the gap may be negative, which `settled` turns into a name of its own.
    """
    for operator, flops in seen.flops.items():
        counted = figures.get(operator.removeprefix("aten::"))
        calls = seen.calls[operator]
        if counted is None:
            yield BlindSpot(cause=cause_of_gap(operator), operator=operator, calls=calls, flops=flops)
        elif flops is not None and flops != counted:
            cause = _ROUNDED if operator == _EINSUM else "broadcast-uncounted"
            yield BlindSpot(cause=cause, operator=operator, calls=calls, flops=flops - counted)
    for name, flops in figures.items():
        if family_of(name) is WorkFamily.OTHER and flops:
            yield BlindSpot(cause="elementwise-counted", operator=name, calls=0, flops=flops)


def settled(spot: BlindSpot) -> BlindSpot:
    """A sum of gaps as the ledger knows it: rounding may have taken FLOPs away or added some."""
    if spot.cause != _ROUNDED or spot.flops is None:
        return spot
    return replace(spot, cause="rounded-down" if spot.flops > 0 else "rounded-up", flops=abs(spot.flops))


def _flops(operator: str, inputs: list[Any], outputs: list[Any]) -> int | None:
    shapes = [_shape(value) for value in _tensors(inputs)]
    return flops_of(operator, [shape for shape in shapes if shape is not None], [_shape(outputs[0]) or ()])


def _tensors(inputs: list[Any]) -> Iterator[Any]:
    """The values of a traced op, those in lists one by one."""
    for value in inputs:
        if value.node().kind() == "prim::ListConstruct":
            yield from value.node().inputs()
        else:
            yield value


def _einsum_flops(inputs: list[Any]) -> int | None:
    """Of two operands: one multiply-add per combination of all indices. None where a dimension is broadcast."""
    equation = str(inputs[0].toIValue()).replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    shapes = [_shape(value) for value in inputs[1].node().inputs()]
    if len(terms) != 2 or "." in equation:
        return None
    size_of: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, size in zip(term, shape or (), strict=True):
            size_of[letter] = max(size, size_of.get(letter, 1))
    return 2 * math.prod(size_of.values())


def _shape(value: Any) -> Shape | None:
    """The sizes of a value in a trace; None for what is no tensor."""
    kind = value.type()
    return tuple(kind.sizes()) if value.isCompleteTensor() else None


SOURCE = "fvcore"
_FLOPS_PER_MAC = 2
_TABLE_DEPTH = 3


class FvcoreCounter:
    """Asks `FlopCountAnalysis` and `ActivationCountAnalysis`. Multiply-adds, which fvcore calls flops, are doubled."""

    runs_model = True

    def __init__(self, *, routing: str = "uniform", device: str = "cuda") -> None:
        self._routing = routing
        self._engine = Engine(device=device, routing=routing)

    def figures(self, adapter: ModelAdapter, workload: Workload) -> tuple[SourceFigures, ...]:
        """The figures of each stage of every phase, in the order in which they run."""
        targets = adapter.targets(workload)
        if importlib.util.find_spec("fvcore") is None:
            failure = "fvcore is not installed; pip install 'llm-perf-opt[fvcore]'"
            return tuple(figures for target in targets for figures in failed_phase(target, SOURCE, failure))
        return tuple(
            figures for target in targets for figures in ask(target, self._engine, SOURCE, _of_stage, self._routing)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """What fvcore says of one call, in FLOPs."""

    flops: dict[str, int]
    activations: dict[str, int]
    blind_spots: tuple[BlindSpot, ...]
    uncounted: Counter[str]
    uncalled: int
    table: str


def _of_stage(stage: IsolatedStage, engine: Engine) -> SourceFigures:
    counted = [(call, _count(call, engine)) for call in stage.calls]
    flops, activations, uncounted = Counter[str](), Counter[str](), Counter[str]()
    for call, figures in counted:
        for total, part in ((flops, figures.flops), (activations, figures.activations), (uncounted, figures.uncounted)):
            total.update({name: count * call.calls for name, count in part.items()})
    return SourceFigures(
        source=SOURCE,
        phase=stage.phase,
        stage=stage.name,
        method=Method.ISOLATED,
        flops=flops.total(),
        activations=activations.total(),
        operators=_operators(flops, activations),
        blind_spots=(*_merged(counted), *stage.loose),
        notes=(*stage.notes(), *_notes(uncounted, sum(figures.uncalled for _, figures in counted))),
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
                uncounted=Counter({name: count for name, count in unsupported.items() if name not in watched}),
                uncalled=len(analysis.uncalled_modules()),
                table=flop_count_table(analysis, max_depth=_TABLE_DEPTH, activations=activations),
            )

    return engine.run(read)


def _quiet(analysis: Any) -> Any:
    """What it would warn of is part of the figures."""
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


def _notes(uncounted: Counter[str], uncalled: int) -> Iterator[str]:
    if uncounted:
        names = ", ".join(name.removeprefix("aten::") for name, _ in uncounted.most_common(6))
        yield f"no handle for {uncounted.total():,} elementwise and indexing ops of {len(uncounted)} kinds: {names}"
    if uncalled:
        yield f"{uncalled:,} modules were not called, or by their `forward`, and have no figure of their own"


def _heading(call: IsolatedCall) -> str:
    shapes = ", ".join(str(list(tensor.shape)) for tensor in OnTensors(call).tensors[:3])
    last = f" to {call.paths[-1]}" if len(call.paths) > 1 else ""
    return f"{call.stage}: {call.path}{last}, {call.calls} x, on {shapes}"

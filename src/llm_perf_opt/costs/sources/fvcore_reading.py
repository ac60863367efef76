"""fvcore's analyses of one module call: its own figures by operator and module, its table, and the completed figure.

`FlopCountAnalysis` runs twice, with its own handles and with ours added, and `ActivationCountAnalysis` once. All three
read one trace, which fvcore alone would make three times.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from llm_perf_opt.core.source_figures import BlindSpot, ModuleFigure, OperatorFigure, WorkFamily, family_of
from llm_perf_opt.core.thread_patches import ThreadPatches
from llm_perf_opt.costs.sources.torch_prices import Shape, cause_of_gap, does_matrix_work, flops_of, may_do_matrix_work
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.harness.twins import tensors_in

_SCRIPTED = "prim::CallFunction"


@dataclass(frozen=True, slots=True, kw_only=True)
class FvcoreReading:
    """What fvcore says of one call, in FLOPs; `calls` is how many equal ones it stands for.

    `completed_flops` is the total with our handles in place of those that fvcore has not, None where one is unknown.
    """

    calls: int
    flops: Mapping[str, int]
    activations: Mapping[str, int]
    modules: tuple[ModuleFigure, ...]
    blind_spots: tuple[BlindSpot, ...]
    completed_flops: int | None
    completed_with: tuple[str, ...]
    uncounted: Mapping[str, int]
    uncalled: tuple[str, ...]
    table: str


def read_module(
    module: torch.nn.Module,
    tensors: tuple[torch.Tensor, ...],
    seen: SeenWork,
    *,
    path_of: Callable[[str], str | None],
    table_depth: int,
    calls: int = 1,
) -> FvcoreReading:
    """Trace the module and ask fvcore. `seen` has been told of ops outside the trace by whoever watches the call.

    `path_of` turns fvcore's name of a module into its path in the model; None for what is no module of it.
    """
    from fvcore.nn import ActivationCountAnalysis, FlopCountAnalysis

    with silenced(), _one_trace() as trace:
        own = _quiet(FlopCountAnalysis(module, tensors))
        figures = _flops(own.by_operator())
        unsupported = Counter(own.unsupported_ops())
        watched = watched_operators(figures, unsupported)
        if not trace.scripts_multiply:
            watched = tuple(name for name in watched if name != _SCRIPTED)
        activations = _quiet(ActivationCountAnalysis(module, tensors))
        completed = _quiet(FlopCountAnalysis(module, tensors))
        completed.set_op_handle(**{operator: seen.handle(operator) for operator in watched})
        completed.set_op_handle(**dict.fromkeys(added_operators(figures), lambda inputs, outputs: 0))
        total, unrecorded = round(FLOPS_PER_MAC * completed.total()), seen.unrecorded_flops
        is_known = seen.is_known and unrecorded is not None
        return FvcoreReading(
            calls=calls,
            flops=figures,
            activations={name: int(count) for name, count in activations.by_operator().items()},
            modules=tuple(_modules(own, completed if is_known and not unrecorded else None, activations, path_of)),
            blind_spots=tuple(gaps(figures, seen)),
            completed_flops=total + (unrecorded or 0) if is_known else None,
            completed_with=tuple(name for name in seen.flops if name.removeprefix("aten::") not in figures),
            uncounted={name: count for name, count in unsupported.items() if name not in watched},
            uncalled=tuple(sorted(path for name in own.uncalled_modules() if (path := path_of(name)) is not None)),
            table=_table(own, activations, table_depth),
        )


def _table(flops: Any, activations: Any, depth: int) -> str:
    """Fvcore's own table. Its search for rows of zeros takes minutes on thousands of modules; ours gives the same."""
    from fvcore.nn import flop_count_table

    statistics = importlib.import_module("fvcore.nn.print_model_statistics")
    with ThreadPatches() as patches:
        patches.replace(statistics, "_remove_zero_statistics", _rows_with_work)
        return str(flop_count_table(flops, max_depth=depth, activations=activations))


def _rows_with_work(statistics: Mapping[str, Mapping[str, int]], **_: Any) -> dict[str, dict[str, int]]:
    """Rows with a value that is not zero, those above them, and the root; a row stands after those below it."""
    children: dict[str, list[str]] = {}
    for name in filter(None, statistics):
        children.setdefault(name.rpartition(".")[0], []).append(name)
    chosen: dict[str, dict[str, int]] = {}

    def keep(name: str) -> bool:
        below = [keep(child) for child in children.get(name, ())]
        if any(below) or not name or any(statistics[name].values()):
            chosen[name] = dict(statistics[name])
        return name in chosen

    keep("")
    return chosen


def prefixed(attribute: str, path: str) -> Callable[[str], str | None]:
    """The path of what fvcore finds below `attribute` of a wrapper that stands for the module at `path`."""

    def path_of(name: str) -> str | None:
        first, _, rest = name.partition(".")
        if first != attribute:
            return None
        return ".".join(filter(None, (path, rest)))

    return path_of


@dataclass(slots=True)
class _Trace:
    """The graph that all analyses read. A call of a scripted function is one op in it, whatever the function does."""

    graph: Any = None

    @property
    def scripts_multiply(self) -> bool:
        """Whether a scripted function does matrix work."""
        kinds = self._matrix_ops(self.graph)
        inlined = self.graph.copy()
        torch._C._jit_pass_inline(inlined)
        return self._matrix_ops(inlined) != kinds

    def _matrix_ops(self, graph: Any) -> int:
        kinds = (node.kind() for node in graph.nodes())
        return sum(does_matrix_work(kind) for kind in kinds if kind != _SCRIPTED)


@contextmanager
def _one_trace() -> Iterator[_Trace]:
    """Every analysis of a module reads the first trace of it."""
    shared = _Trace()

    def traced_once(trace: Any) -> Any:
        def traced(module: torch.nn.Module, inputs: Any) -> Any:
            if shared.graph is None:
                shared.graph, _ = trace(module, inputs)
            return shared.graph, None

        return traced

    with ThreadPatches() as patches:
        patches.wrap(importlib.import_module("fvcore.nn.jit_analysis"), "_get_trace_graph", traced_once)
        yield shared


def _quiet(analysis: Any) -> Any:
    """What it would warn of is part of the figures."""
    return analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")


def _flops(macs: Mapping[str, float]) -> dict[str, int]:
    return {name: round(FLOPS_PER_MAC * count) for name, count in macs.items()}


def _modules(
    own: Any, completed: Any | None, activations: Any, path_of: Callable[[str], str | None]
) -> Iterator[ModuleFigure]:
    """`by_module_and_operator` of every module with work that fvcore counted or that we completed."""
    completed_macs = {} if completed is None else completed.by_module()
    put_out = activations.by_module()
    for name, macs in own.by_module_and_operator().items():
        path, flops = path_of(name), Counter(_flops(macs))
        if path is None or not (flops.total() or completed_macs.get(name)):
            continue
        yield ModuleFigure(
            path=path,
            flops=flops.total(),
            completed_flops=None if completed is None else round(FLOPS_PER_MAC * completed_macs[name]),
            activations=int(put_out[name]),
            operators=tuple(flops.most_common()),
        )


def operators_of(readings: Sequence[FvcoreReading]) -> tuple[OperatorFigure, ...]:
    """What `by_operator` of fvcore gives over all calls, the most expensive first."""
    flops, activations = Counter[str](), Counter[str]()
    for reading in readings:
        flops.update({name: count * reading.calls for name, count in reading.flops.items()})
        activations.update({name: count * reading.calls for name, count in reading.activations.items()})
    return tuple(
        OperatorFigure(name=name, family=family_of(name), flops=count, activations=activations.get(name))
        for name, count in flops.most_common()
    )


def modules_of(readings: Sequence[FvcoreReading]) -> tuple[ModuleFigure, ...]:
    """Every module once, with all its calls and the calls of its equals."""
    figures: dict[str, ModuleFigure] = {}
    for reading in readings:
        for module in reading.modules:
            figures[module.path] = _sum(figures.get(module.path), _times(module, reading.calls))
    return tuple(figures.values())


def _times(module: ModuleFigure, calls: int) -> ModuleFigure:
    return replace(
        module,
        flops=module.flops * calls,
        completed_flops=None if module.completed_flops is None else module.completed_flops * calls,
        activations=module.activations * calls,
        operators=tuple((name, flops * calls) for name, flops in module.operators),
    )


def _sum(known: ModuleFigure | None, new: ModuleFigure) -> ModuleFigure:
    if known is None:
        return new
    parts = (known.completed_flops, new.completed_flops)
    return replace(
        known,
        flops=known.flops + new.flops,
        completed_flops=None if parts[0] is None or parts[1] is None else parts[0] + parts[1],
        activations=known.activations + new.activations,
        operators=tuple((Counter(dict(known.operators)) + Counter(dict(new.operators))).most_common()),
    )


def blind_spots_of(readings: Sequence[FvcoreReading]) -> Iterator[BlindSpot]:
    """One blind spot per cause and operator over all calls; one unknown part makes the sum unknown."""
    spots: dict[tuple[str, str], BlindSpot] = {}
    for reading in readings:
        for spot in reading.blind_spots:
            known = spots.get((spot.cause, spot.operator))
            flops = None if spot.flops is None else spot.flops * reading.calls
            if known is not None:
                flops = None if flops is None or known.flops is None else known.flops + flops
            calls = spot.calls * reading.calls + (known.calls if known else 0)
            spots[spot.cause, spot.operator] = replace(spot, calls=calls, flops=flops)
    yield from map(settled, spots.values())


def completed_of(readings: Sequence[FvcoreReading]) -> int | None:
    """The completed figures of all calls together; None where one of them is unknown."""
    total = 0
    for reading in readings:
        if reading.completed_flops is None:
            return None
        total += reading.completed_flops * reading.calls
    return total


def notes_of(readings: Sequence[FvcoreReading]) -> Iterator[str]:
    """What has no handle and multiplies nothing, and the modules without a figure of their own."""
    uncounted = Counter[str]()
    for reading in readings:
        uncounted.update({name: count * reading.calls for name, count in reading.uncounted.items()})
    if uncounted:
        names = ", ".join(name.removeprefix("aten::") for name, _ in uncounted.most_common(6))
        yield f"no handle for {uncounted.total():,} elementwise and indexing ops of {len(uncounted)} kinds: {names}"
    if uncalled := sum(len(reading.uncalled) for reading in readings):
        yield f"{uncalled:,} modules were not called, or by their `forward`, and have no figure of their own"


# What fvcore leaves out of one traced call, adds to it or rounds, and the handles that complete it.
#
# fvcore has no handle for fused attention, grouped matmuls, recurrent layers and whatever a library registers itself.
# It adds norms, gives an einsum in four digits, and reads the batch of a matmul off its left operand. A handle of
# ours prices the op from the shapes in the trace: fvcore calls it as one of its own, so that its totals by module are
# complete too. Which figures are made so stays visible: `SourceFigures.completed_flops`, apart from fvcore's own
# `flops`.

_EINSUM, _MATMUL = "aten::einsum", "aten::matmul"
_ROUNDED = "rounded"  # fvcore gives an einsum in four digits
FLOPS_PER_MAC = 2
Handle = Callable[[list[Any], list[Any]], int]


@dataclass(slots=True)
class SeenWork:
    """FLOPs of chosen ops by the shapes in a trace, and how often each ran; None where the shapes do not tell.

    `unrecorded_flops` is the part that is in no trace, so that no handle can add it; None: of unknown size.
    """

    flops: dict[str, int | None] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    unrecorded_flops: int | None = 0

    def handle(self, operator: str) -> Handle:
        """A handle for fvcore that notes the op down and gives its multiply-adds, 0 where they are unknown."""

        def multiply_adds(inputs: list[Any], outputs: list[Any]) -> int:
            is_einsum = operator == _EINSUM
            flops = _einsum_flops(inputs) if is_einsum else _gap_flops(operator, inputs, outputs)
            self._note(operator, flops)
            return 0 if flops is None else flops // FLOPS_PER_MAC

        return multiply_adds

    def on_op(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        """An op ran that is not in the trace, so that no handle can look at it."""
        tensors = [*tensors_in(list(args)), *tensors_in(dict(kwargs))]
        if may_do_matrix_work(func, tensors):
            inputs, outputs = ([tuple(tensor.shape) for tensor in group] for group in (tensors, tensors_in(output)))
            flops = flops_of(str(func), inputs, outputs)
            self._note(str(func).rpartition(".")[0], flops)
            known = self.unrecorded_flops
            self.unrecorded_flops = None if known is None or flops is None else known + flops

    @property
    def is_known(self) -> bool:
        """Whether every op that was noted has a price."""
        return None not in self.flops.values()

    def _note(self, operator: str, flops: int | None) -> None:
        self.calls[operator] += 1
        known = self.flops.setdefault(operator, 0)
        self.flops[operator] = None if known is None or flops is None else known + flops


def watched_operators(figures: Mapping[str, float], unsupported: Mapping[str, int]) -> tuple[str, ...]:
    """Ops that need a handle of ours: the unsupported ones that multiply, and those that fvcore prices only roughly."""
    uncounted = [name for name in unsupported if does_matrix_work(name) or not name.startswith("aten::")]
    rough = [f"aten::{name}" for name in figures if f"aten::{name}" in (_EINSUM, _MATMUL)]
    return (*uncounted, *rough)


def added_operators(figures: Mapping[str, float]) -> tuple[str, ...]:
    """Ops that fvcore counts although they are no matrix work: norms, pooling, resampling."""
    return tuple(f"aten::{name}" for name, flops in figures.items() if flops and family_of(name) is WorkFamily.OTHER)


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


def _gap_flops(operator: str, inputs: list[Any], outputs: list[Any]) -> int | None:
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

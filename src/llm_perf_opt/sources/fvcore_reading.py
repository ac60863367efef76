"""fvcore's analyses of one module call: its own figures by operator and module, its table, and the completed figure.

`FlopCountAnalysis` runs twice, with its own handles and with ours added, and `ActivationCountAnalysis` once. All three
read one trace, which fvcore alone would make three times.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from llm_perf_opt.core.source_figures import BlindSpot, ModuleFigure, OperatorFigure, family_of
from llm_perf_opt.core.thread_patches import ThreadPatches
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.sources.fvcore_gaps import (
    FLOPS_PER_MAC,
    SeenWork,
    added_operators,
    gaps,
    settled,
    watched_operators,
)
from llm_perf_opt.sources.torch_prices import does_matrix_work

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
    kept: dict[str, dict[str, int]] = {}

    def keep(name: str) -> bool:
        below = [keep(child) for child in children.get(name, ())]
        if any(below) or not name or any(statistics[name].values()):
            kept[name] = dict(statistics[name])
        return name in kept

    keep("")
    return kept


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
    kept = _Trace()

    def traced_once(trace: Any) -> Any:
        def traced(module: torch.nn.Module, inputs: Any) -> Any:
            if kept.graph is None:
                kept.graph, _ = trace(module, inputs)
            return kept.graph, None

        return traced

    with ThreadPatches() as patches:
        patches.wrap(importlib.import_module("fvcore.nn.jit_analysis"), "_get_trace_graph", traced_once)
        yield kept


def _quiet(analysis: Any) -> Any:
    """What it would warn of is part of the figures."""
    return analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")


def _flops(macs: Mapping[str, float]) -> dict[str, int]:
    return {name: round(FLOPS_PER_MAC * count) for name, count in macs.items()}


def _modules(
    own: Any, completed: Any | None, activations: Any, path_of: Callable[[str], str | None]
) -> Iterator[ModuleFigure]:
    """`by_module_and_operator` of every module that did any counted work, and of the others whose work is ours."""
    whole = {} if completed is None else completed.by_module()
    put_out = activations.by_module()
    for name, macs in own.by_module_and_operator().items():
        path, flops = path_of(name), Counter(_flops(macs))
        if path is None or not (flops.total() or whole.get(name)):
            continue
        yield ModuleFigure(
            path=path,
            flops=flops.total(),
            completed_flops=None if completed is None else round(FLOPS_PER_MAC * whole[name]),
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
    """Every module once, with all its calls and those of its equals."""
    found: dict[str, ModuleFigure] = {}
    for reading in readings:
        for module in reading.modules:
            found[module.path] = _sum(found.get(module.path), _times(module, reading.calls))
    return tuple(found.values())


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

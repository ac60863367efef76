"""How the own figures of a box come about: the ops that ran directly in it at their prices, its weights, its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.witness import Witness, worked_out
from llm_perf_opt.costs.ops_witness import ops_witness
from llm_perf_opt.graphs.call_tree import memory_of
from llm_perf_opt.ops.table import price

_OF_OPS = {"flops": "FLOPs", "bytes_moved": "bytes moved"}  # MACs are half of the FLOPs
_WEIGHTS = "distinct weights in the trace; one with several names counts at the first of them that ran"
_MEMORY = "storages in the trace, each at the op that made it"
_UNPRICED = "counted in the trace: no formula and no recorded parts give these a price"


class OwnWitnesses:
    """Looks up what ran directly in calls; the columns are read once, when a figure is first asked for."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph

    def of(self, figure: str, calls: Sequence[int], weights: Mapping[str, int]) -> Witness | None:
        """How the figure of these calls comes about; None where it is 0, or nothing is known of the ops."""
        if figure == "parameters":
            return _of_weights(weights)
        if self._graph.calls is None or self._graph.ops is None:
            return None
        if figure == "activation_bytes":
            return self._of_memory(calls)
        kinds = [self._graph.op_kinds[row] for row in self._rows(calls)]
        if figure == "unpriced_ops":
            names = Counter(kind.name for kind in kinds if price(kind) is None)
            return _sum("ops", (Witness(name, count, "", _UNPRICED) for name, count in names.items()), "")
        return ops_witness(Counter(kinds), _OF_OPS[figure])

    def _rows(self, calls: Iterable[int]) -> Iterable[int]:
        """The kinds of the ops that ran directly in the calls, each as often as it ran."""
        return (kind for call in calls for kind in self._kinds_by_call.get(call, ()))

    @cached_property
    def _kinds_by_call(self) -> dict[int, list[int]]:
        ops, by_call = ops_of(self._graph), dict[int, list[int]]()
        for call, kind in zip(ops.call, ops.kind, strict=True):
            by_call.setdefault(call, []).append(kind)
        return by_call

    def _of_memory(self, calls: Iterable[int]) -> Witness | None:
        made: dict[OpKind, Counter[int]] = {}
        for kind, size in ((kind, size) for call in calls for kind, size in self._made_by_call.get(call, ())):
            made.setdefault(self._graph.op_kinds[kind], Counter())[size] += 1
        terms: dict[str, list[Witness]] = {}
        for op, sizes in made.items():
            terms.setdefault(op.name, []).extend(_times("storages", sizes, "B", _MEMORY))
        return _sum("activation memory", (_sum(name, parts, "B") for name, parts in terms.items()), "B")

    @cached_property
    def _made_by_call(self) -> dict[int, list[tuple[int, int]]]:
        """Call -> the kind of an op and the bytes of each storage that it made."""
        storages, made = memory_of(self._graph), dict[int, list[tuple[int, int]]]()
        ops = ops_of(self._graph)
        for origin, born, size in (
            zip(storages.origin, storages.born_op, storages.bytes, strict=True) if storages else ()
        ):
            if origin == "activation" and born < len(ops.kind) and size:
                made.setdefault(ops.call[born], []).append((ops.kind[born], size))
        return made


def _of_weights(weights: Mapping[str, int]) -> Witness | None:
    sizes = Counter(size for size in weights.values() if size)
    return _sum("parameters", _times("modules", sizes, "", _WEIGHTS), "")


def _times(what: str, sizes: Counter[int], unit: str, origin: str) -> list[Witness]:
    """How many there are of each size."""
    return [
        worked_out("times", what, [Witness(what, count), Witness("each", size, unit, origin)], unit)
        for size, count in sizes.items()
    ]


def _sum(name: str, parts: Iterable[Witness | None], unit: str) -> Witness | None:
    terms = [part for part in parts if part is not None]
    return worked_out("sum", name, terms, unit) if terms else None

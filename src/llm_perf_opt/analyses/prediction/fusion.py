"""The kernels an optimised engine would launch instead: experts as one grouped product, vector work between products.

Three rules, read off the trace. Products do what is necessary (`engine_kernels`). Products of one shape that run in
siblings which do not feed each other (`gate_proj` of every expert of a layer) are one kernel. Vector ops between two
such kernels are one kernel.
"""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import accumulate
from typing import cast

from llm_perf_opt.analyses.necessary.read_once import preparation
from llm_perf_opt.analyses.prediction.engine_kernels import engine_kernels
from llm_perf_opt.analyses.prediction.kernels import Kernel, Work, kernels_of
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of, stage_names, stage_of_ops

_Group = tuple[object, ...]


def fused_kernels(graph: CallGraph) -> dict[str, Counter[Kernel]]:
    """Stage -> the kernels left after fusion, and how many of each."""
    names, siblings = stage_names(graph), _Siblings(graph)
    members: dict[_Group, list[Kernel]] = {}
    last: dict[int, _Group] = {}  # per stage: the product that ran last
    stages, kinds = stage_of_ops(graph), ops_of(graph).kind
    instead = engine_kernels(graph)
    for row in range(preparation(graph).stop, len(kinds)):
        stage = stages[row]
        own = instead.get(row)
        for kernel in kernels_of(graph.op_kinds[kinds[row]]) if own is None else (own,):
            if kernel.work is Work.VECTOR:
                group: _Group = (stage, last.get(stage))
            else:
                group = last[stage] = (stage, *siblings.group_of(row, kernel))
            members.setdefault(group, []).append(kernel)
    fused: dict[str, Counter[Kernel]] = {name: Counter() for name in names}
    for group, kernels in members.items():
        fused[names[cast("int", group[0])]][_as_one(kernels)] += 1
    return fused


class _Siblings:
    """Which products run in modules that are called by one module and do not feed each other.

    A sibling joins when everything its caller handed it existed before the first sibling was called.
    """

    def __init__(self, graph: CallGraph) -> None:
        self._paths = graph.paths
        self._ops = ops_of(graph)
        self._calls = calls_of(graph)
        self._ready = _ready_at(graph)
        self._open: dict[_Group, tuple[int, int]] = {}  # what is alike -> number of the group, op at which it began

    def group_of(self, row: int, kernel: Kernel) -> _Group:
        call = self._ops.call[row]
        sibling = self._calls.parent[call] if call >= 0 else -1
        if sibling < 0:
            return (row,)
        leaf = self._paths[self._calls.path[call]].rpartition(".")[2]
        alike = (self._calls.parent[sibling], leaf, kernel.work, kernel.weights, kernel.dtype)
        number, began = self._open.get(alike, (-1, -1))
        if number < 0 or self._ready[sibling] > began:
            number, began = number + 1, self._calls.first_op[sibling]
            self._open[alike] = (number, began)
        return (*alike, number)


def _ready_at(graph: CallGraph) -> array[int]:
    """Per call: the op at which the last of its inputs came to life; of a trace without memory, its own beginning."""
    calls = calls_of(graph)
    if graph.storages is None:
        return calls.first_op
    starts = list(accumulate(calls.input_count, initial=0))
    born = graph.storages.born_op
    ready = array("q")
    for call, start in enumerate(starts[:-1]):
        storages = calls.input_storages[start : starts[call + 1]]
        ready.append(max((born[storage] for storage in storages if storage >= 0), default=0))
    return ready


def _as_one(kernels: list[Kernel]) -> Kernel:
    """One kernel that does the work of all; its rows are the mean, since a grouped product tiles each part alone."""
    first, bytes_moved = kernels[0], sum(kernel.bytes_moved for kernel in kernels)
    return Kernel(
        work=first.work,
        dtype=first.dtype,
        flops=sum(kernel.flops for kernel in kernels),
        skippable_flops=sum(kernel.skippable_flops for kernel in kernels),
        bytes_moved=bytes_moved,
        avoidable_bytes=bytes_moved if first.work is Work.VECTOR else 0,
        rows=sum(kernel.rows for kernel in kernels) // len(kernels),
        weights=first.weights,
        sequences=first.sequences,
        queries=first.queries,
    )

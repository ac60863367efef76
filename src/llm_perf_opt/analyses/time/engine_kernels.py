"""The kernels that an optimised engine launches in place of those of the code as written.

Three rules, read off the trace. Products do what is necessary: experts run on the tokens that chose them, latent
attention on the latent vectors, the head on the last position, and attention on the pairs that a mask leaves visible.
Products of one shape that run in siblings which do not feed each other (`gate_proj` of every expert of a layer) are one
kernel. Vector ops between two such kernels are one kernel.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import cast

from llm_perf_opt.analyses.necessary.anatomy import Anatomy, anatomy_of
from llm_perf_opt.analyses.necessary.attention_sites import AttentionSite
from llm_perf_opt.analyses.necessary.expert_blocks import routing_policy_of
from llm_perf_opt.analyses.necessary.read_once import preparation
from llm_perf_opt.analyses.necessary.stage_needs import contexts_of
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of, stage_names, stage_of_ops
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.ops.table import kernels_of

_Group = tuple[object, ...]


def fused_kernels(graph: CallGraph) -> dict[str, Counter[Kernel]]:
    """Stage -> the kernels left after fusion, and how many of each."""
    fused: dict[str, Counter[Kernel]] = {name: Counter() for name in stage_names(graph)}
    for stage, kernel in fused_sequence(graph):
        fused[stage][kernel] += 1
    return fused


def fused_sequence(graph: CallGraph) -> list[tuple[str, Kernel]]:
    """The kernels left after fusion with their stages, in the order in which each begins."""
    names, siblings = stage_names(graph), _Siblings(graph)
    members: dict[_Group, list[Kernel]] = {}
    last: dict[int, _Group] = {}  # per stage: the product that ran last
    stages, kinds = stage_of_ops(graph), ops_of(graph).kind
    instead = engine_kernels(graph)
    for row in range(preparation(graph).stop, len(kinds)):
        stage = stages[row]
        own = instead.get(row)
        for kernel in kernels_of(graph.op_kinds[kinds[row]]) if own is None else (own,):
            if kernel.kind is KernelKind.VECTOR:
                group: _Group = (stage, last.get(stage))
            elif kernel.kind is KernelKind.COMMUNICATION:
                group = last[stage] = (stage, row)
            else:
                group = last[stage] = (stage, *siblings.group_of(row, kernel))
            members.setdefault(group, []).append(kernel)
    return [(names[cast("int", group[0])], _as_one(kernels)) for group, kernels in members.items()]


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
        alike = (self._calls.parent[sibling], leaf, kernel.kind, kernel.weights, kernel.dtype)
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
        kind=first.kind,
        dtype=first.dtype,
        flops=sum(kernel.flops for kernel in kernels),
        skippable_flops=sum(kernel.skippable_flops for kernel in kernels),
        bytes_moved=bytes_moved,
        avoidable_bytes=bytes_moved if first.kind is KernelKind.VECTOR else 0,
        rows=sum(kernel.rows for kernel in kernels) // len(kernels),
        weights=first.weights,
        sequences=first.sequences,
        queries=first.queries,
        collective=first.collective,
    )


def engine_kernels(graph: CallGraph) -> dict[int, Kernel]:
    """Row of an op -> the kernel that an engine launches in its place, for the rows where that does less."""
    if not ops_of(graph).input_storages:
        return {}
    anatomy = anatomy_of(graph)
    return dict([*_products(graph, anatomy), *_experts(graph, anatomy), *_attentions(graph, anatomy)])


def _kernel(graph: CallGraph, row: int) -> tuple[OpKind, Kernel] | None:
    """The kernel of an op that launches just one."""
    kind = graph.op_kinds[ops_of(graph).kind[row]]
    kernels = kernels_of(kind)
    return (kind, kernels[0]) if len(kernels) == 1 else None


def _products(graph: CallGraph, anatomy: Anatomy) -> Iterator[tuple[int, Kernel]]:
    for product in anatomy.products:
        found = _kernel(graph, product.row) if product.kept < product.made else None
        if found is None:
            continue
        kind, kernel = found
        weight = max(tensor_bytes(meta) for meta in kind.inputs[1:]) if len(kind.inputs) > 1 else 0
        activations = max(kernel.bytes_moved - weight, 0) * product.kept // product.made
        rows = max(1, kernel.rows * product.kept // product.made)
        yield product.row, replace(kernel, flops=product.necessary_flops, bytes_moved=weight + activations, rows=rows)


def _experts(graph: CallGraph, anatomy: Anatomy) -> Iterator[tuple[int, Kernel]]:
    """Blocks that the code runs on every token, expert by expert, in one product."""
    policy = routing_policy_of(graph)
    for block in anatomy.experts:
        if block.flops <= block.necessary_flops:
            continue
        share, read = block.necessary_flops / block.flops, block.distinct(policy) / max(block.touched, 1)
        for row in block.rows:
            found = _kernel(graph, row)
            if found is not None:
                _, kernel = found
                yield (
                    row,
                    replace(
                        kernel,
                        flops=round(kernel.flops * share),
                        bytes_moved=round(kernel.bytes_moved * min(1.0, read)),
                        rows=max(1, round(kernel.rows * share)),
                    ),
                )


def _attentions(graph: CallGraph, anatomy: Anatomy) -> Iterator[tuple[int, Kernel]]:
    """Fused attention; where the code writes scores out they stay as they are."""
    contexts = contexts_of(graph, anatomy)
    for site in anatomy.attentions:
        found = _kernel(graph, site.row) if len(site.rows) == 1 else None
        if found is None:
            continue
        kind, kernel = found
        needed = site.necessary_flops(contexts.get(anatomy.forward_of_ops[site.row]))
        moved = kernel.bytes_moved if site.latent is None else _latent_bytes(kind, site)
        yield site.row, replace(kernel, flops=needed, skippable_flops=0, bytes_moved=min(moved, kernel.bytes_moved))


def _latent_bytes(kind: OpKind, site: AttentionSite) -> int:
    """Queries and results as they are, and one latent vector per key for each sequence."""
    assert site.latent is not None
    sequences = kind.inputs[0].shape[0]
    number = tensor_bytes(replace(kind.inputs[0], shape=(1,)))
    ends = tensor_bytes(kind.inputs[0]) + tensor_bytes(kind.outputs[0])
    return ends + sequences * site.keys * site.latent.cached_width * number

"""The kernels that an optimised engine launches in place of the kernels of the code as written.

The rules of `fusions.py` and `fused_blocks.py` come first. Of what is left, matmuls of one
shape that run in siblings which do not feed each other are one kernel, and so are the vector ops between two matmuls.

A band of the data sheet has to hold for every engine, also for one that fuses little (`necessary_kernels`): experts run
on the tokens that chose them, latent attention on the latent vectors, the last layer on the last position, and
attention on the pairs that a mask leaves visible; joined matmuls, caches extended in place and the other rules of
`fusions.py` are not granted.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import cast

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, found_once, ops_of, stage_names, stage_of_ops, tensor_offsets
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.costs.necessary.anatomy import Anatomy, anatomy_of
from llm_perf_opt.costs.necessary.attention_sites import AttentionSite
from llm_perf_opt.costs.necessary.expert_blocks import routing_policy_of
from llm_perf_opt.costs.necessary.read_once import preparation
from llm_perf_opt.costs.necessary.stage_needs import contexts_of
from llm_perf_opt.ops.cost import packet_of
from llm_perf_opt.ops.kernel_shape import MatmulShape
from llm_perf_opt.ops.op import AccessPattern, Kernel, KernelKind, OpRole
from llm_perf_opt.ops.table import bytes_read, kernels_of, op_role
from llm_perf_opt.timing.fused_blocks import fused_attention, fused_experts
from llm_perf_opt.timing.fusions import (
    FusedOps,
    Fusion,
    fewer_rows,
    head_matmuls,
    joined_matmuls,
    latent_cache_bytes,
    outer_products,
    prepared_weights,
    single_kernel,
    without_overlap,
)

_NORMS = frozenset({"rsqrt", "rms_norm", "layer_norm", "native_layer_norm", "group_norm", "native_group_norm"})
_ACTIVATIONS = frozenset({"silu", "gelu", "relu", "sigmoid", "tanh", "mish", "hardswish", "leaky_relu", "elu"})


def vector_rule(kinds: Sequence[OpKind], following: KernelKind | None) -> Fusion:
    """The name of what is fused, by its ops and by the kernel behind it."""
    names = {packet_of(kind.name).partition(".")[2].rstrip("_") for kind in kinds}
    if following is KernelKind.ATTENTION:
        return Fusion.ROTARY
    if any(op_role(kind) is OpRole.CHOICE for kind in kinds):
        return Fusion.ROUTER
    if names & _NORMS:
        return Fusion.NORM
    return Fusion.ACTIVATION if names & _ACTIVATIONS else Fusion.VECTOR


class OutsideBytes:
    """What some ops read that others made, and what they make that others read: the rest never leaves one kernel."""

    def __init__(self, graph: CallGraph) -> None:
        assert graph.storages is not None
        self._ops, (self._inputs, self._outputs) = ops_of(graph), tensor_offsets(graph)
        self._kinds, self._storages = graph.op_kinds, graph.storages
        self._last_read = _last_reads(graph)

    def of(self, rows: Sequence[int], kernels: Sequence[Kernel]) -> int:
        """Bytes across the border of these ops; no op counts for more than its kernel has to move."""
        made: dict[int, int] = {}
        read: dict[int, int] = {}
        for row, kernel in zip(rows, kernels, strict=True):
            kind, most = self._kinds[self._ops.kind[row]], kernel.bytes_moved - kernel.avoidable_bytes
            inputs = self._ops.input_storages[self._inputs[row] : self._inputs[row + 1]]
            for storage, size in zip(inputs, bytes_read(kind), strict=True):
                if storage not in made:
                    read[storage] = max(read.get(storage, 0), min(size, most, self._size(storage)))
            outputs = self._ops.output_storages[self._outputs[row] : self._outputs[row + 1]]
            for storage, meta in zip(outputs, kind.outputs, strict=True):
                made[storage] = min(tensor_bytes(meta), most)
        end = rows[-1]
        # A tensor of unknown storage may be read by anyone later, so it counts as written.
        written = sum(size for storage, size in made.items() if storage < 0 or self._is_read_after(storage, end))
        return sum(read.values()) + written

    def _size(self, storage: int) -> int:
        return self._storages.bytes[storage] if storage >= 0 else 2**62  # unknown: it limits nothing

    def _is_read_after(self, storage: int, row: int) -> bool:
        # Tensors that outlive the phase, a cache or the logits, are read by later work.
        return self._last_read[storage] > row or self._storages.freed_op[storage] >= len(self._ops.kind)


def _last_reads(graph: CallGraph) -> array[int]:
    """Per storage the row of the last op that reads it; -1: none does."""
    assert graph.storages is not None
    ops, (starts, _) = ops_of(graph), tensor_offsets(graph)
    last = array("q", [-1]) * len(graph.storages.bytes)
    for row in range(len(ops.kind)):
        for storage in ops.input_storages[starts[row] : starts[row + 1]]:
            if storage >= 0:
                last[storage] = row
    return last


def necessary_kernels(graph: CallGraph) -> dict[int, Kernel]:
    """Row of an op -> the kernel that an engine launches in its place, for the rows where that does less."""
    if not ops_of(graph).input_storages:
        return {}
    anatomy = anatomy_of(graph)
    return dict([*_matmuls(graph, anatomy), *_experts(graph, anatomy), *_attentions(graph, anatomy)])


def _matmuls(graph: CallGraph, anatomy: Anatomy) -> Iterator[tuple[int, Kernel]]:
    for matmul in anatomy.matmuls:
        kernel = single_kernel(graph, matmul.row) if 0 < matmul.kept < matmul.made else None
        if kernel is not None:
            yield matmul.row, fewer_rows(*kernel, needed=matmul.kept, made=matmul.made)


def _experts(graph: CallGraph, anatomy: Anatomy) -> Iterator[tuple[int, Kernel]]:
    """Blocks that the code runs on every token, expert by expert, in one matmul."""
    policy = routing_policy_of(graph)
    for block in anatomy.experts:
        if block.flops <= block.needed_flops:
            continue
        # FLOPs fall with the tokens that chose an expert; its weights are read as soon as one token did.
        share, read = block.needed_flops / block.flops, block.distinct(policy) / max(block.touched, 1)
        for row in block.rows:
            single = single_kernel(graph, row)
            if single is not None:
                _, kernel = single
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
        single = single_kernel(graph, site.row) if len(site.rows) == 1 else None
        if single is None:
            continue
        kind, kernel = single
        needed = site.necessary_flops(contexts.get(anatomy.forward_of_ops[site.row]))
        moved = kernel.bytes_moved if site.latent is None else _latent_bytes(kind, site)
        yield site.row, replace(kernel, flops=needed, skippable_flops=0, bytes_moved=min(moved, kernel.bytes_moved))


def _latent_bytes(kind: OpKind, site: AttentionSite) -> int:
    """Queries and results as they are, and the latent cache."""
    assert site.latent is not None
    query = kind.inputs[0]
    ends = tensor_bytes(query) + tensor_bytes(kind.outputs[0])
    return ends + latent_cache_bytes(query.shape[0], site.keys, site.latent, query)


_Group = tuple[object, ...]
EVERY_RULE = frozenset(Fusion)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleUse:
    """How often a rule applied in a stage, the kernel launches before and after it, and the ops that it replaced."""

    stage: str
    rule: Fusion
    times: int
    before: int
    after: int
    rows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedRun:
    """The kernels left after fusion with their stages, in the order in which each begins, and what was fused."""

    sequence: tuple[tuple[str, Kernel], ...]
    rules: tuple[RuleUse, ...]


@dataclass(slots=True)
class _Members:
    """What becomes one kernel, and where it came from."""

    rows: list[int] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    following: KernelKind | None = None  # of a group of vector ops: the kernel behind it


def fused_kernels(
    graph: CallGraph, *, least: bool = False, rules: frozenset[Fusion] = EVERY_RULE
) -> dict[str, Counter[Kernel]]:
    """Stage -> the kernels left after fusion, and how many of each; `least`: as an engine that fuses little."""
    fused: dict[str, Counter[Kernel]] = {name: Counter() for name in stage_names(graph)}
    for stage, kernel in fused_sequence(graph, least=least) if least else fused_run(graph, rules).sequence:
        fused[stage][kernel] += 1
    return fused


def fused_sequence(graph: CallGraph, *, least: bool = False) -> tuple[tuple[str, Kernel], ...]:
    """The kernels left after fusion with their stages, in the order in which each begins."""
    if not least:
        return fused_run(graph).sequence
    names, instead = stage_names(graph), {row: (kernel,) for row, kernel in necessary_kernels(graph).items()}
    members = _members(graph, instead, alone=False)
    return tuple((names[cast("int", group[0])], _as_one(of_group, None)) for group, of_group in members.items())


@found_once
def fused_run(graph: CallGraph, rules: frozenset[Fusion] = EVERY_RULE) -> FusedRun:
    """Every rule applied to one phase, or only these: what no rule replaces runs as written."""
    names, stages, kinds = stage_names(graph), stage_of_ops(graph), ops_of(graph).kind
    granted = tuple(fused for fused in engine_rules(graph) if fused.rule in rules)
    # The kernels of a rule run where its first op ran; its other ops launch nothing.
    instead: dict[int, tuple[Kernel, ...]] = {row: () for fused in granted for row in fused.rows}
    instead.update((fused.rows[0], fused.kernels) for fused in granted)
    members = _members(graph, instead, alone=True, with_helpers=Fusion.LAYOUT not in rules)
    outside = OutsideBytes(graph) if ops_of(graph).input_storages and graph.storages is not None else None
    uses: dict[tuple[str, Fusion], list[int]] = {}
    rows: dict[tuple[str, Fusion], list[int]] = {}

    def count(stage: str, rule: Fusion, before: int, after: int, replaced: Sequence[int]) -> None:
        use = uses.setdefault((stage, rule), [0, 0, 0])
        for place, more in enumerate((1, before, after)):
            use[place] += more
        rows.setdefault((stage, rule), []).extend(replaced)

    prepared = preparation(graph).stop
    for fused in granted:
        if fused.rows[0] >= prepared:
            before = sum(len(kernels_of(graph.op_kinds[kinds[row]])) for row in fused.rows)
            count(names[stages[fused.rows[0]]], fused.rule, before, len(fused.kernels), fused.rows)
    sequence: list[tuple[str, Kernel]] = []
    for group, of_group in members.items():
        stage = names[cast("int", group[0])]
        is_vector = of_group.kernels[0].kind is KernelKind.VECTOR
        rule = vector_rule(_kinds(graph, of_group.rows), of_group.following) if is_vector else Fusion.SIBLINGS
        if rule not in rules:
            sequence.extend((stage, kernel) for kernel in of_group.kernels)
            continue
        sequence.append((stage, _as_one(of_group, outside)))
        if len(of_group.kernels) > 1:
            count(stage, rule, len(of_group.kernels), 1, of_group.rows)
    return FusedRun(
        sequence=tuple(sequence),
        rules=tuple(
            RuleUse(stage=stage, rule=rule, times=use[0], before=use[1], after=use[2], rows=tuple(rows[stage, rule]))
            for (stage, rule), use in sorted(uses.items(), key=lambda item: list(Fusion).index(item[0][1]))
        ),
    )


@found_once
def engine_rules(graph: CallGraph) -> tuple[FusedOps, ...]:
    """Where the rules apply that need to know which tensors an op took; an op is in one of them at most."""
    if not ops_of(graph).input_storages:
        return ()
    anatomy = anatomy_of(graph)
    # The first rule that wants an op gets it: attention and experts take whole modules, so they come first.
    fusions = chain(
        fused_attention(graph, anatomy),
        fused_experts(graph, anatomy),
        joined_matmuls(graph, anatomy),
        head_matmuls(graph, anatomy),
        prepared_weights(graph),
        outer_products(graph),
    )
    return tuple(without_overlap(fusions))


def _kinds(graph: CallGraph, rows: list[int]) -> list[OpKind]:
    kinds = ops_of(graph).kind
    return [graph.op_kinds[kinds[row]] for row in rows]


def _members(
    graph: CallGraph, instead: Mapping[int, tuple[Kernel, ...]], *, alone: bool, with_helpers: bool = False
) -> dict[_Group, _Members]:
    """What runs together, in the order in which each begins.

    `instead` are kernels in place of an op's own, `alone` where no sibling joins them. Helpers of eager PyTorch are
    left out unless they are asked for: an engine keeps one layout.
    """
    siblings, stages, kinds = _Siblings(graph), stage_of_ops(graph), ops_of(graph).kind
    members: dict[_Group, _Members] = {}
    last: dict[int, _Group] = {}  # per stage: the matmul that ran last
    for row in range(preparation(graph).stop, len(kinds)):
        stage, own = stages[row], instead.get(row)
        for number, kernel in enumerate(kernels_of(graph.op_kinds[kinds[row]]) if own is None else own):
            if kernel.is_helper and not with_helpers:
                continue
            if kernel.kind is KernelKind.VECTOR:
                # Vector ops between two matmuls are one kernel: the matmul before them names their group.
                group: _Group = (stage, last.get(stage))
            else:
                by_itself = (alone and own is not None) or kernel.kind is KernelKind.COMMUNICATION
                group = (stage, row, number) if by_itself else (stage, *siblings.group_of(row, kernel))
                before = members.get((stage, last.get(stage)))
                if before is not None and before.following is None:
                    before.following = kernel.kind
                last[stage] = group
            of_group = members.setdefault(group, _Members())
            of_group.rows.append(row)
            of_group.kernels.append(kernel)
    return members


class _Siblings:
    """Which matmuls run in modules that are called by one module and do not feed each other.

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
        # An input that was made after the group began may come from a member of the group.
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


def _as_one(members: _Members, outside: OutsideBytes | None) -> Kernel:
    """One kernel that does the work of all; its rows are the mean, since a grouped matmul tiles each part alone."""
    kernels, first = members.kernels, members.kernels[0]
    is_vector = first.kind is KernelKind.VECTOR
    if len(kernels) == 1 and not is_vector:
        return first
    moved = sum(kernel.bytes_moved for kernel in kernels)
    avoidable = first.avoidable_bytes
    if is_vector:
        # Without storages it is unknown which bytes stay inside the kernel: any of them may.
        avoidable = moved if outside is None else max(0, moved - outside.of(members.rows, kernels))
    return replace(
        first,
        dtype=next((kernel.dtype for kernel in kernels if kernel.flops), first.dtype),
        flops=sum(kernel.flops for kernel in kernels),
        skippable_flops=sum(kernel.skippable_flops for kernel in kernels),
        bytes_moved=moved,
        avoidable_bytes=avoidable,
        rows=sum(kernel.rows for kernel in kernels) // len(kernels),
        shape=_shape_of_all(kernels),
        pattern=AccessPattern.VECTORISED if is_vector else None,
        is_helper=False,
    )


def _shape_of_all(kernels: list[Kernel]) -> MatmulShape | None:
    """Matmuls of one shape next to each other; None: they differ, or are no matmuls."""
    shapes = {kernel.shape for kernel in kernels}
    shape = next(iter(shapes))
    if len(shapes) > 1 or not isinstance(shape, MatmulShape):
        return None
    return replace(shape, count=shape.count * len(kernels))

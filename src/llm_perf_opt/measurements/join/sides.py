"""The two sides of a join: what the device ran, and what the traced ops launch; both in order, both as words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby, zip_longest

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of, tensor_offsets
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.recordings.recording import DeviceWork, HostOp, Recording
from llm_perf_opt.ops.cost import packet_of
from llm_perf_opt.ops.kernel_names import (
    ATTENTION,
    CONVOLUTION,
    COPY,
    FILL,
    MATMUL,
    KernelMeaning,
    LaunchWords,
    kernel_meaning,
    launch_words,
)

_OWN = "aten::"
_ROUTED = re.compile(r"(?:^|\.)experts\.\d+(?:\.|$)")
Sizes = tuple[int, ...]  # elements of the tensors that an op reads, sorted, single values left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch that a traced op makes. `ops` are rows of the graph: one, or matmuls that an engine does as one.

    `is_routed`: an op of a routed expert. How many tokens reach it, and whether any do, depends on values, and a trace
    without weights has to assume that.
    """

    ops: tuple[int, ...]
    names: frozenset[str]  # "aten.linear"
    words: LaunchWords
    sizes: Sizes
    is_routed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvidence:
    """What the host says of recorded work: torch's ops around it, by name and by the sizes of their tensors."""

    names: tuple[str, ...]  # "aten.linear", in-place ops without their underscore
    sizes: tuple[Sizes | None, ...]  # None: shapes were not recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Recorded work that belongs together: all that one op of the host launched, or a single kernel.

    `meanings` belong to its kernels, the longest first; empty where no rule knows their names.
    """

    work: tuple[int, ...]  # rows of the recording
    meanings: tuple[KernelMeaning, ...]
    seen: HostEvidence | None


def recorded_items(recording: Recording) -> tuple[Item, ...]:
    """The work in order, in groups of what one outermost op launched.

    Only torch's own ops count: an engine's (`vllm::moe_forward`) launch the kernels of many traced ops, and the shapes
    in them differ from the traced code.
    """
    chains = [_own_ops(recording, work) for work in recording.work]
    keys = [(chain[0], -1) if chain else (-1, row) for row, chain in enumerate(chains)]
    groups = groupby(range(len(keys)), key=keys.__getitem__)
    return tuple(_item(recording, tuple(group), chains) for _, group in groups)


def _own_ops(recording: Recording, work: DeviceWork) -> tuple[int, ...]:
    """Rows of the ops around a launch, the outermost first; none where that one is not torch's own."""
    rows: list[int] = []
    row = work.op
    while row >= 0:
        rows.append(row)
        row = recording.ops[row].parent
    return tuple(reversed(rows)) if rows and recording.ops[rows[-1]].name.startswith(_OWN) else ()


def _item(recording: Recording, rows: tuple[int, ...], chains: Sequence[tuple[int, ...]]) -> Item:
    works = [recording.work[row] for row in rows]
    meanings = dict.fromkeys(
        meaning for work in _longest_first(works) if (meaning := kernel_meaning(work.name)) is not None
    )
    ops = dict.fromkeys(op for row in rows for op in chains[row])
    seen = _seen(recording.ops[op] for op in ops) if ops else None
    return Item(work=rows, meanings=tuple(meanings), seen=seen)


def _longest_first(works: Iterable[DeviceWork]) -> list[DeviceWork]:
    return sorted(works, key=lambda work: -work.duration_ns)


def _seen(ops: Iterable[HostOp]) -> HostEvidence:
    ops = tuple(ops)
    return HostEvidence(
        names=tuple(_packet(op.name) for op in ops),
        sizes=tuple(None if op.input_shapes is None else _sizes(op.input_shapes) for op in ops),
    )


def _packet(host_name: str) -> str:
    namespace, _, name = host_name.partition("::")
    return f"{namespace}.{name.rstrip('_') or name}"


def _sizes(shapes: Iterable[Sequence[int]]) -> Sizes:
    return tuple(sorted(size for shape in shapes if (size := math.prod(shape)) > 1))


def traced_rows(graph: CallGraph) -> range:
    """The ops of one forward: of a phase that calls its model several times, the last call."""
    calls, count = calls_of(graph), len(ops_of(graph).kind)
    roots = [call for call, parent in enumerate(calls.parent) if parent < 0]
    paths = [calls.path[call] for call in roots]
    if len(paths) < 2 or len(set(paths)) > 1:
        return range(count)
    return range(calls.first_op[roots[-1]], count)


def traced_launches(graph: CallGraph, *, merges_matmuls: bool = False, has_shapes: bool = False) -> tuple[Launch, ...]:
    """What the ops of one forward launch, in order.

    `has_shapes`: the recording says what each op read, so that routed experts can be told by their weights. With
    `merges_matmuls` the matmuls that read one tensor in one module are one launch, at the place of the first: engines
    store such weights as one (`qkv_proj`, `gate_up_proj`).
    """
    launches = list(_launches(graph, _routed_calls(graph) if has_shapes else frozenset()))
    return tuple(_merged(graph, launches)) if merges_matmuls else tuple(launches)


def is_routed(path: str) -> bool:
    """Whether the module is a routed expert, or in one."""
    return _ROUTED.search(path) is not None


def _routed_calls(graph: CallGraph) -> frozenset[int]:
    """The module calls in routed experts."""
    routed = {row for row, path in enumerate(graph.paths) if is_routed(path)}
    return frozenset(call for call, row in enumerate(calls_of(graph).path) if row in routed)


def _launches(graph: CallGraph, routed: frozenset[int]) -> Iterator[Launch]:
    ops = ops_of(graph)
    kinds = ops.kind
    known: dict[int, tuple[tuple[LaunchWords, ...], frozenset[str], Sizes]] = {}
    for row in traced_rows(graph):
        number = kinds[row]
        if number not in known:
            kind = graph.op_kinds[number]
            known[number] = launch_words(kind), _names(kind), _sizes(meta.shape for meta in kind.inputs)
        words, names, sizes = known[number]
        for word in words:
            yield Launch(ops=(row,), names=names, words=word, sizes=sizes, is_routed=ops.call[row] in routed)


def _names(kind: OpKind) -> frozenset[str]:
    return frozenset(packet_of(part.name).rstrip("_") for part in (kind, *kind.parts))


def _merged(graph: CallGraph, launches: Sequence[Launch]) -> Iterator[Launch]:
    starts, _ = tensor_offsets(graph)
    ops, calls = ops_of(graph), calls_of(graph)
    first: dict[tuple[int, int], int] = {}
    merged: list[Launch | None] = list(launches)
    for place, launch in enumerate(launches):
        row = launch.ops[0]
        if MATMUL not in launch.words.words or starts[row] == starts[row + 1] or ops.call[row] < 0:
            continue
        key = (ops.input_storages[starts[row]], calls.parent[ops.call[row]])
        before = first.setdefault(key, place)
        earlier = merged[before]
        if before != place and earlier is not None:
            both = (*earlier.ops, row)
            sizes = _sizes_of_one([graph.op_kinds[ops.kind[op]] for op in both])
            merged[before] = replace(earlier, ops=both, sizes=sizes)
            merged[place] = None
    return (launch for launch in merged if launch is not None)


def _sizes_of_one(kinds: Sequence[OpKind]) -> Sizes:
    """Sizes of a matmul that does all of `kinds`: one input, and weights and biases put together."""
    shared = math.prod(kinds[0].inputs[0].shape)
    others = zip_longest(*([math.prod(meta.shape) for meta in kind.inputs[1:]] for kind in kinds), fillvalue=0)
    return tuple(sorted(size for size in (shared, *map(sum, others)) if size > 1))


# How well a recorded item fits a traced launch, and what it costs to leave one out.
#
# The figures are stated here once; nothing is fitted to a recording.
#
# A cost of 0 is a perfect fit. Leaving a matmul out of either side costs as much as six small ops: matmuls are
# few, their kernels are known by name, and the two runs are of one model.


class Evidence(StrEnum):
    """Why a kernel was given to an op or a module, the strongest first."""

    OP_AND_SHAPES = "op and shapes"  # the host's op of that name read tensors of these sizes
    ROUTED = "op and weight of a routed expert"  # of the same op and weight, with another number of tokens
    SHAPES = "shapes and kernel name"  # its op has another name: matmul and bmm
    OP_NAME = "op name"  # shapes were not recorded
    KERNEL_NAME = "kernel name in order"
    PLACE = "place between two ops"  # the traced code has no such op; both neighbours are in the module


Fit = tuple[float, Evidence]

_WEIGHTS = {MATMUL: 6.0, ATTENTION: 6.0, CONVOLUTION: 6.0, "softmax": 3.0, "layer_norm": 3.0, COPY: 1.0, FILL: 0.6}
_HEAVY = frozenset({MATMUL, ATTENTION, CONVOLUTION, "softmax"})
_OTHER_WEIGHT = 1.5
_UNKNOWN_WEIGHT = 0.5  # a kernel that no rule knows
_ROUTED_SHARE = 1 / 6  # of the price of leaving out an op: another routing may call other experts
OTHER_ROWS = 0.3  # a routed expert with another number of tokens
OTHER_NAME = 0.25  # the same sizes under another op's name
BY_KERNEL_NAME = 0.5  # the host saw an op of another name, and no shapes
AS_HELPER = 0.3  # a kernel before the op's own one
AS_FOLLOWER = 0.35  # a kernel after it: libraries clear and copy before they compute
FUSED = 0.2  # each further op that a fused kernel does
PARTIAL = 12.0  # at most, for what is missing before or after the recorded part of a forward
FIRST_ITEMS = 256  # while it is open where in a forward the recording begins
FIRST_MARGIN = 20.0  # alignments that are worse than the best one by more are given up
MARGIN = 11.5  # the same later on: below `PARTIAL`, so that another beginning is given up by then


def skip_cost(launch: Launch) -> float:
    """What it costs that a traced launch has no kernel."""
    return _WEIGHTS.get(launch.words.word, _OTHER_WEIGHT) * (_ROUTED_SHARE if launch.is_routed else 1.0)


def extra_cost(item: Item) -> float:
    """What it costs that recorded work has no traced op."""
    if not item.meanings:
        return _UNKNOWN_WEIGHT
    words = [word for meaning in item.meanings for word in (meaning.words or {COPY})]
    return max(_WEIGHTS.get(word, _OTHER_WEIGHT) for word in words)


def fit(item: Item, launch: Launch) -> Fit | None:
    """How well the item is the launch's own kernel; None: it is not."""
    if item.seen is not None:
        return _seen_fit(item.seen, item.meanings, launch)
    meaning = item.meanings[0] if item.meanings else None
    if meaning is None or launch.words.words.isdisjoint(meaning.words | meaning.fuses):
        return None
    return 0.0, Evidence.KERNEL_NAME


def _seen_fit(seen: HostEvidence, meanings: Sequence[KernelMeaning], launch: Launch) -> Fit | None:
    has_kernel = any(not launch.words.words.isdisjoint(meaning.words) for meaning in meanings)
    best: Fit | None = None
    for name, sizes in zip(seen.names, seen.sizes, strict=True):
        if sizes is None:
            candidate = _by_name(name in launch.names, has_kernel)
        elif sizes != launch.sizes:
            candidate = (OTHER_ROWS, Evidence.ROUTED) if _is_same_expert(name, sizes, launch) else None
        elif name in launch.names:
            return 0.0, Evidence.OP_AND_SHAPES
        else:
            candidate = (OTHER_NAME, Evidence.SHAPES) if has_kernel else None
        if candidate is not None and (best is None or candidate < best):
            best = candidate
    return best


def _is_same_expert(name: str, sizes: Sizes, launch: Launch) -> bool:
    """A matmul is known by its weight; an op without one by its name alone."""
    if not launch.is_routed or name not in launch.names or len(sizes) != len(launch.sizes):
        return False
    return MATMUL not in launch.words.words or not set(sizes).isdisjoint(launch.sizes)


def _by_name(is_named: bool, has_kernel: bool) -> Fit | None:
    if is_named:
        return 0.0, Evidence.OP_NAME
    return (BY_KERNEL_NAME, Evidence.KERNEL_NAME) if has_kernel else None


def is_heavy(item: Item) -> bool:
    """Whether it does the work of matmuls or attention, which the place of a kernel alone does not explain."""
    return any(not meaning.words.isdisjoint(_HEAVY) for meaning in item.meanings)


def helps(item: Item, launch: Launch) -> bool:
    """Whether the item is a second kernel of the launch's op. The host tells that by itself."""
    if item.seen is not None or not item.meanings:
        return False
    meaning = item.meanings[0]
    return not launch.words.words.isdisjoint(meaning.helps) or not launch.words.helpers.isdisjoint(meaning.words)


def fuses(item: Item, launch: Launch) -> bool:
    """Whether a fused kernel may do the work of the launch too."""
    meaning = item.meanings[0] if item.meanings else None
    return meaning is not None and not launch.words.words.isdisjoint(meaning.fuses)

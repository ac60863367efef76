"""What an engine runs as one kernel, rule by rule: vLLM, SGLang and TensorRT-LLM do all of these.

A rule replaces the kernels of some ops by others with the same FLOPs, or with fewer where the code does more than an
engine has to. Bytes that the code moves and an engine does not are avoidable. `docs/how/one-step.md` lists the
rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of, tensor_offsets
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.costs.necessary.anatomy import Anatomy, WeightMatmul
from llm_perf_opt.costs.necessary.attention_sites import Latent
from llm_perf_opt.ops.kernel_shape import MatmulShape
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.ops.table import kernels_of

_Reader = tuple[int, int, int, int]  # forward, calling module, storage of the input, how often it was written


class Fusion(StrEnum):
    """A rule, in the words of a report."""

    QKV = "queries, keys and values in one matmul"
    LATENT_INPUTS = "first projections of latent attention in one matmul"
    GATE_UP = "gate and up in one matmul"
    HEAD = "head on the last positions alone"
    ATTENTION = "attention on visible pairs in one kernel"
    ABSORBED = "latent attention without expanded keys and values"
    LAYOUT = "heads and layouts read where they lie, without copies"
    CACHE_IN_PLACE = "new keys and values written into the cache in place"
    EXPERTS = "routed experts of a layer in one grouped kernel"
    OUTER = "matmuls of depth one as vector work"
    PREPARED = "weights converted once, before the run"
    SIBLINGS = "like matmuls of sibling modules in one kernel"
    NORM = "norm with the residual add before it"
    ROTARY = "rotary positions with the cache write"
    ACTIVATION = "activation with its matmul"
    ROUTER = "choice of experts in one kernel"
    VECTOR = "other vector ops between two matmuls"


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedOps:
    """Ops by their rows, and what an engine launches in their place, where the first of them ran."""

    rule: Fusion
    rows: tuple[int, ...]
    kernels: tuple[Kernel, ...]


def single_kernel(graph: CallGraph, row: int) -> tuple[OpKind, Kernel] | None:
    """The kernel of an op that launches just one."""
    kind = graph.op_kinds[ops_of(graph).kind[row]]
    kernels = kernels_of(kind)
    return (kind, kernels[0]) if len(kernels) == 1 else None


def is_vector_work(kernels: Sequence[Kernel]) -> bool:
    """Whether an op launches something, and nothing but vector kernels."""
    return bool(kernels) and all(kernel.kind is KernelKind.VECTOR for kernel in kernels)


def latent_cache_bytes(sequences: int, keys: int, latent: Latent, like: TensorMeta) -> int:
    """One latent vector per key for each sequence, in numbers of the type of `like`."""
    return sequences * keys * latent.cached_width * tensor_bytes(replace(like, shape=(1,)))


def readers_of_one_input(graph: CallGraph, anatomy: Anatomy) -> tuple[tuple[int, ...], ...]:
    """Rows of the matmuls with weights that read one tensor in one forward, called by one module, in order.

    Queries, keys and values; gate and up; the first projections of latent attention. A tensor that is a part of its
    memory is left out: two parts of one memory look alike.
    """
    ops, calls, (starts, ends) = ops_of(graph), calls_of(graph), tensor_offsets(graph)
    with_weight = {matmul.row: matmul for matmul in anatomy.matmuls}
    writes: dict[int, int] = {}  # storage -> how often an op changed it in place
    groups: dict[_Reader, list[int]] = {}
    for row, index in enumerate(ops.kind):
        kind = graph.op_kinds[index]
        if kind.mutates:
            for storage in ops.output_storages[ends[row] : ends[row + 1]]:
                writes[storage] = writes.get(storage, 0) + 1
        matmul = with_weight.get(row)
        storage = ops.input_storages[starts[row]] if matmul is not None and kind.inputs else -1
        if matmul is None or storage < 0 or matmul.weight.storage == storage:
            continue
        if graph.storages is not None and tensor_bytes(kind.inputs[0]) != graph.storages.bytes[storage]:
            continue
        call = ops.call[row]
        caller = calls.parent[call] if call >= 0 else -1
        # A storage that is changed in place between two reads holds two tensors, one after the other.
        reader = (anatomy.forward_of_ops[row], caller, storage, writes.get(storage, 0))
        groups.setdefault(reader, []).append(row)
    return tuple(tuple(rows) for rows in groups.values() if len(rows) > 1)


def joined_matmuls(graph: CallGraph, anatomy: Anatomy) -> Iterator[FusedOps]:
    """Matmuls of one input, side by side in one: `QKV`, `LATENT_INPUTS` and `GATE_UP`."""
    ops, calls = ops_of(graph), calls_of(graph)
    is_latent = {site.call: site.latent is not None for site in anatomy.attentions}
    for rows in readers_of_one_input(graph, anatomy):
        call = ops.call[rows[0]]
        kernels = [single_kernel(graph, row) for row in rows]
        parts = [kernel for kernel in kernels if kernel is not None]
        rule = _rule(is_latent, calls.parent[call] if call >= 0 else -1, [kernel for _, kernel in parts])
        if rule is not None and len(parts) == len(rows) and (kernel := side_by_side(parts)) is not None:
            yield FusedOps(rule=rule, rows=rows, kernels=(kernel,))


def _rule(is_latent: Mapping[int, bool], caller: int, kernels: list[Kernel]) -> Fusion | None:
    """By what the calling module does with the results; None: no engine joins them."""
    if caller in is_latent:
        return Fusion.LATENT_INPUTS if is_latent[caller] else Fusion.QKV
    return Fusion.GATE_UP if len(kernels) == 2 and kernels[0].weights == kernels[1].weights else None


def side_by_side(parts: list[tuple[OpKind, Kernel]]) -> Kernel | None:
    """One matmul with the weights of all, reading its input once; None: they differ in more than their columns."""
    shapes = [kernel.shape for _, kernel in parts if isinstance(kernel.shape, MatmulShape)]
    kernels, first = [kernel for _, kernel in parts], parts[0][1]
    alike = {(shape.rows, shape.depth, shape.count, shape.weight_format) for shape in shapes}
    if len(shapes) < len(parts) or len(alike) > 1 or shapes[0].count > 1 or len({k.dtype for k in kernels}) > 1:
        return None
    read_again = (len(parts) - 1) * tensor_bytes(parts[0][0].inputs[0])
    return replace(
        first,
        flops=sum(kernel.flops for kernel in kernels),
        bytes_moved=sum(kernel.bytes_moved for kernel in kernels) - read_again,
        weights=sum(kernel.weights for kernel in kernels),
        shape=replace(shapes[0], columns=sum(shape.columns for shape in shapes)),
    )


def head_matmuls(graph: CallGraph, anatomy: Anatomy) -> Iterator[FusedOps]:
    """The last matmul of a forward, on the positions that need logits."""
    last = {anatomy.forward_of_ops[matmul.row]: matmul.row for matmul in anatomy.matmuls}
    for matmul in anatomy.matmuls:
        if matmul.kept < matmul.made and last[anatomy.forward_of_ops[matmul.row]] == matmul.row:
            single = single_kernel(graph, matmul.row)
            if single is not None:
                kernel = fewer_rows(*single, needed=matmul.kept, made=matmul.made)
                yield FusedOps(rule=Fusion.HEAD, rows=(matmul.row,), kernels=(kernel,))
                yield from _behind_head(graph, anatomy, matmul)


def _behind_head(graph: CallGraph, anatomy: Anatomy, head: WeightMatmul) -> Iterator[FusedOps]:
    """Vector ops on logits, on the positions that the head was run on."""
    forward = anatomy.forward_of_ops[head.row]
    for row in range(head.row + 1, len(anatomy.forward_of_ops)):
        if anatomy.forward_of_ops[row] != forward:
            return
        single = single_kernel(graph, row) if row in anatomy.positions.tail else None
        if single is not None and single[1].kind is KernelKind.VECTOR:
            needed = single[1].bytes_moved * head.kept // head.made
            kernel = replace(single[1], avoidable_bytes=single[1].bytes_moved - needed)
            yield FusedOps(rule=Fusion.HEAD, rows=(row,), kernels=(kernel,))


def outer_products(graph: CallGraph) -> Iterator[FusedOps]:
    """Every pair of two vectors: no sum, hence no work for matrix engines."""
    ops = ops_of(graph)
    for row in range(len(ops.kind)):
        single = single_kernel(graph, row)
        if single is not None and isinstance(single[1].shape, MatmulShape) and single[1].shape.depth == 1:
            kernel = replace(single[1], kind=KernelKind.VECTOR, rows=0, weights=0, shape=None, pattern=None)
            yield FusedOps(rule=Fusion.OUTER, rows=(row,), kernels=(kernel,))


def fewer_rows(kind: OpKind, kernel: Kernel, *, needed: int, made: int) -> Kernel:
    """A matmul on `needed` of its `made` rows; it reads all of its weight."""
    weight = max(tensor_bytes(meta) for meta in kind.inputs[1:]) if len(kind.inputs) > 1 else 0
    activations = max(kernel.bytes_moved - weight, 0) * needed // made
    shape = kernel.shape
    if isinstance(shape, MatmulShape):
        shape = replace(shape, rows=max(1, shape.rows * needed // made))
    return replace(
        kernel,
        flops=kernel.flops * needed // made,
        bytes_moved=weight + activations,
        rows=max(1, kernel.rows * needed // made),
        shape=shape,
    )


def prepared_weights(graph: CallGraph) -> Iterator[FusedOps]:
    """Vector ops on weights alone; their result is the same in every forward."""
    ops, (starts, _) = ops_of(graph), tensor_offsets(graph)
    weights = {parameter.storage for parameter in graph.parameters if not parameter.is_buffer}
    for row in range(len(ops.kind)):
        inputs = ops.input_storages[starts[row] : starts[row + 1]]
        if not inputs or not weights.issuperset(inputs):
            continue
        if is_vector_work(kernels_of(graph.op_kinds[ops.kind[row]])):
            yield FusedOps(rule=Fusion.PREPARED, rows=(row,), kernels=())


def without_overlap(candidates: Iterable[FusedOps]) -> Iterator[FusedOps]:
    """The first of the rules that want an op."""
    taken: set[int] = set()
    for fused in candidates:
        if taken.isdisjoint(fused.rows):
            taken.update(fused.rows)
            yield fused

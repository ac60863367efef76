"""A trace whose attention runs in flash kernels, by formula: each reads Q, K and V once and writes O once.

Scores, mask and softmax leave memory. The kernel runs over all pairs of query and key, or over the visible ones alone:
`S * (S + 1) / 2` of `S * S` under a causal mask. An attention with an additive bias that is no causal mask keeps its
op, because a flash kernel takes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of, stage_names, stage_of_ops, tensor_offsets
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.costs.necessary.anatomy import anatomy_of
from llm_perf_opt.costs.necessary.attention_sites import AttentionSite
from llm_perf_opt.costs.necessary.stage_needs import contexts_of
from llm_perf_opt.ops.cost import operand
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.ops.table import kernels_of, price
from llm_perf_opt.timing.stage_work import StageWork


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashSite:
    """One attention, and the rows of the trace that it runs in; a kernel takes their place unless it keeps its op."""

    stage: str
    rows: tuple[int, ...]
    keeps_op: bool  # it has an additive bias that no flash kernel takes
    flops: int  # of all pairs, as written
    visible_flops: int
    bytes_moved: int  # Q, K, V and O, each once
    dtype: str
    sequences: int
    queries: int

    def kernel(self, *, visible: bool) -> Kernel:
        """The flash kernel over the visible pairs, or over all."""
        return Kernel(
            kind=KernelKind.ATTENTION,
            dtype=self.dtype,
            flops=self.visible_flops if visible else self.flops,
            skippable_flops=0,
            bytes_moved=self.bytes_moved,
            sequences=self.sequences,
            queries=self.queries,
        )


def flash_sites(graph: CallGraph) -> tuple[FlashSite, ...]:
    """Every attention of the phase, in the order in which they run; empty where the trace follows no memory."""
    if not ops_of(graph).input_storages:
        return ()
    anatomy, names, stages = anatomy_of(graph), stage_names(graph), stage_of_ops(graph)
    contexts = contexts_of(graph, anatomy)
    return tuple(
        _site(graph, site, names[stages[site.row]], contexts.get(anatomy.forward_of_ops[site.row]))
        for site in anatomy.attentions
    )


def _site(graph: CallGraph, site: AttentionSite, stage: str, context: int | None) -> FlashSite:
    shape = _kind(graph, site.row).outputs[0].shape
    pairs = site.span.pairs(site.queries, site.keys, context if site.span.is_limited else None)
    tensors = _tensors(graph, site)
    return FlashSite(
        stage=stage,
        rows=tuple(_rows_of(graph, site)),
        keeps_op=_has_bias(graph, site),
        flops=site.flops,
        visible_flops=2 * pairs * site.lanes * (site.qk_width + site.v_width),
        bytes_moved=sum(map(tensor_bytes, tensors)),
        dtype=site.dtype,
        sequences=shape[0] if len(shape) > 3 else 1,
        queries=site.queries,
    )


def _kind(graph: CallGraph, row: int) -> OpKind:
    return graph.op_kinds[ops_of(graph).kind[row]]


def _tensors(graph: CallGraph, site: AttentionSite) -> tuple[TensorMeta, ...]:
    """Q, K, V and O: those of the op, or of the two products where the scores are written out."""
    kind = _kind(graph, site.row)
    if len(site.rows) == 1:
        return (*(operand(kind, place, name, name[0]) for place, name in enumerate(_OPERANDS)), kind.outputs[0])
    like = kind.outputs[0]
    shapes = (
        (site.lanes, site.queries, site.qk_width),
        (site.lanes, site.keys, site.qk_width),
        (site.lanes, site.keys, site.v_width),
        (site.lanes, site.queries, site.v_width),
    )
    return tuple(replace(like, shape=shape, dtype=site.dtype) for shape in shapes)


_OPERANDS = ("query", "key", "value")


def _has_bias(graph: CallGraph, site: AttentionSite) -> bool:
    """Whether a fused op has a mask that is not the causal one; between written-out products it cannot be told."""
    if len(site.rows) > 1 or site.span.is_causal:
        return False
    kind = _kind(graph, site.row)
    return "attn_mask" in kind.input_names or (not kind.input_names and len(kind.inputs) > len(_OPERANDS))


def _rows_of(graph: CallGraph, site: AttentionSite) -> Iterator[int]:
    """The fused op; or both products and everything between them in the same call that the scores flow through."""
    if len(site.rows) == 1:
        yield site.row
        return
    ops, (input_starts, output_starts) = ops_of(graph), tensor_offsets(graph)
    first, last = site.rows
    scores: set[int] = set()
    for row in range(first, last + 1):
        inputs = ops.input_storages[input_starts[row] : input_starts[row + 1]]
        if row == first or (ops.call[row] == site.call and not scores.isdisjoint(inputs)):
            yield row
            scores.update(ops.output_storages[output_starts[row] : output_starts[row + 1]])


def attention_work(graph: CallGraph, site: FlashSite, visible: bool | None = None) -> tuple[tuple[Kernel, ...], int]:
    """Kernels of one attention and the bytes that they move: as traced, or in a flash kernel over visible or all pairs.

    One that keeps its op has it in every case.
    """
    if visible is not None and not site.keeps_op:
        return (site.kernel(visible=visible),), site.bytes_moved
    kinds = [_kind(graph, row) for row in site.rows]
    costs = [price(kind) for kind in kinds]
    kernels = tuple(kernel for kind in kinds for kernel in kernels_of(kind))
    return kernels, sum(cost.bytes_moved for cost in costs if cost is not None)


def with_flash(
    graph: CallGraph, works: Mapping[str, StageWork], sites: tuple[FlashSite, ...], *, visible: bool
) -> dict[str, StageWork]:
    """Stage -> its work with every attention that can in a flash kernel."""
    changed = {name: (Counter(work.kernels), work.bytes_moved) for name, work in works.items()}
    for site in (site for site in sites if not site.keeps_op and site.stage in changed):
        kernels, moved = changed[site.stage]
        as_traced, traced_bytes = attention_work(graph, site)
        kernels.subtract(as_traced)
        kernels[site.kernel(visible=visible)] += 1
        changed[site.stage] = kernels, moved - traced_bytes + site.bytes_moved
    return {
        name: replace(
            work, kernels=+changed[name][0], launches=(+changed[name][0]).total(), bytes_moved=changed[name][1]
        )
        for name, work in works.items()
    }

"""The least that an engine saves: products do what is necessary, and nothing else is known of its kernels.

A band of the data sheet has to hold for every engine, also for one that fuses little. So experts run on the tokens that
chose them, latent attention on the latent vectors, the last layer on the last position, and attention on the pairs that
a mask leaves visible; joined products, caches extended in place and the other rules of `fusions.py` are not granted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.costs.necessary.anatomy import Anatomy, anatomy_of
from llm_perf_opt.costs.necessary.attention_sites import AttentionSite
from llm_perf_opt.costs.necessary.expert_blocks import routing_policy_of
from llm_perf_opt.costs.necessary.stage_needs import contexts_of
from llm_perf_opt.ops.op import Kernel
from llm_perf_opt.timing.fusions import fewer_rows, latent_cache_bytes, single_kernel


def necessary_kernels(graph: CallGraph) -> dict[int, Kernel]:
    """Row of an op -> the kernel that an engine launches in its place, for the rows where that does less."""
    if not ops_of(graph).input_storages:
        return {}
    anatomy = anatomy_of(graph)
    return dict([*_products(graph, anatomy), *_experts(graph, anatomy), *_attentions(graph, anatomy)])


def _products(graph: CallGraph, anatomy: Anatomy) -> Iterator[tuple[int, Kernel]]:
    for product in anatomy.products:
        found = single_kernel(graph, product.row) if 0 < product.kept < product.made else None
        if found is not None:
            yield product.row, fewer_rows(*found, kept=product.kept, made=product.made)


def _experts(graph: CallGraph, anatomy: Anatomy) -> Iterator[tuple[int, Kernel]]:
    """Blocks that the code runs on every token, expert by expert, in one product."""
    policy = routing_policy_of(graph)
    for block in anatomy.experts:
        if block.flops <= block.necessary_flops:
            continue
        share, read = block.necessary_flops / block.flops, block.distinct(policy) / max(block.touched, 1)
        for row in block.rows:
            found = single_kernel(graph, row)
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
        found = single_kernel(graph, site.row) if len(site.rows) == 1 else None
        if found is None:
            continue
        kind, kernel = found
        needed = site.necessary_flops(contexts.get(anatomy.forward_of_ops[site.row]))
        moved = kernel.bytes_moved if site.latent is None else _latent_bytes(kind, site)
        yield site.row, replace(kernel, flops=needed, skippable_flops=0, bytes_moved=min(moved, kernel.bytes_moved))


def _latent_bytes(kind: OpKind, site: AttentionSite) -> int:
    """Queries and results as they are, and the latent cache."""
    assert site.latent is not None
    query = kind.inputs[0]
    ends = tensor_bytes(query) + tensor_bytes(kind.outputs[0])
    return ends + latent_cache_bytes(query.shape[0], site.keys, site.latent, query)

"""What each stage of a traced phase must compute and read, whatever code computes and reads it."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.analyses.necessary.anatomy import Anatomy, WeightProduct, anatomy_of
from llm_perf_opt.analyses.necessary.expert_blocks import FEWEST, ExpertBlock, routing_policy_of
from llm_perf_opt.analyses.necessary.read_once import StageReads, reads_by_stage
from llm_perf_opt.analyses.necessary.work import ExpertReads, NecessaryWork, Reason
from llm_perf_opt.analyses.pricing import price
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.queries import ops_of, stage_names, stage_of_ops
from llm_perf_opt.callgraph.weight_formats import product_dtype


@dataclass(slots=True)
class _Sums:
    """What is added up for one stage."""

    flops: Counter[str]
    saved: Counter[Reason]
    used: dict[int, int]  # storage of a weight -> the most elements that one product takes of it
    experts: list[ExpertBlock]


def necessary_by_stage(graph: CallGraph, policy: str | None = None) -> dict[str, NecessaryWork]:
    """Stage -> necessary work over all its forwards, for stages that ran.

    `policy` counts experts, in place of the one that the trace was routed by. Where the trace does not say which
    tensors an op took, weights cannot be told from activations: nothing is known.
    """
    ops = ops_of(graph)
    if ops.kind and not ops.input_storages:
        return {}
    anatomy, stages = anatomy_of(graph), stage_of_ops(graph)
    contexts = contexts_of(graph, anatomy)
    reads = reads_by_stage(graph, anatomy, contexts)
    sums = _sums_by_stage(graph, anatomy, stages, contexts)
    forwards = _forwards_by_stage(anatomy, stages)
    routing = policy or routing_policy_of(graph)
    return {
        name: _work(sums[stage], None if reads is None else reads.get(stage, StageReads()), forwards[stage], routing)
        for stage, name in enumerate(stage_names(graph))
        if stage in forwards
    }


def contexts_of(graph: CallGraph, anatomy: Anatomy) -> dict[int, int]:
    """Forward -> positions that its sequences have: the most keys that any autoregressive attention holds.

    Caches that keep only a window hold fewer; a step then stands where the workload says that the context ended.
    """
    told = graph.workload.get("context_tokens") if graph.phase == "decode" else None
    contexts: dict[int, int] = {}
    for site in anatomy.attentions:
        if site.span.is_causal:
            forward = anatomy.forward_of_ops[site.row]
            known = told + forward if isinstance(told, int) else 0
            contexts[forward] = max(contexts.get(forward, 0), site.keys, known)
    return contexts


def _forwards_by_stage(anatomy: Anatomy, stages: array[int]) -> dict[int, int]:
    found: dict[int, set[int]] = defaultdict(set)
    for stage, forward in zip(stages, anatomy.forward_of_ops, strict=True):
        if forward:
            found[stage].add(forward)
    return {stage: len(numbers) for stage, numbers in found.items()}


def _sums_by_stage(
    graph: CallGraph, anatomy: Anatomy, stages: array[int], contexts: Mapping[int, int]
) -> dict[int, _Sums]:
    sums: dict[int, _Sums] = defaultdict(lambda: _Sums(Counter(), Counter(), {}, []))
    for product in anatomy.products:
        into = sums[stages[product.row]]
        into.flops[product_type(product)] += product.necessary_flops
        reason = Reason.LATENT if product.is_expansion else Reason.POSITIONS
        into.saved[reason] += product.flops - product.necessary_flops
        into.used[product.weight.storage] = max(into.used.get(product.weight.storage, 0), product.elements)
    for block in anatomy.experts:
        into = sums[stages[block.row]]
        into.flops[expert_type(graph, block)] += block.necessary_flops
        into.saved[Reason.IDLE_EXPERTS] += block.flops - block.chosen_flops
        into.saved[Reason.POSITIONS] += block.chosen_flops - block.necessary_flops
        into.experts.append(block)
    for site in anatomy.attentions:
        into = sums[stages[site.row]]
        needed = site.necessary_flops(contexts.get(anatomy.forward_of_ops[site.row]))
        into.flops[site.dtype] += needed
        into.saved[Reason.HIDDEN_PAIRS if site.latent is None else Reason.LATENT] += site.flops - needed
    for row in anatomy.activation_products:
        cost = price(graph.op_kinds[ops_of(graph).kind[row]])
        sums[stages[row]].saved[Reason.BETWEEN_ACTIVATIONS] += 0 if cost is None else cost.flops
    return sums


def product_type(product: WeightProduct) -> str:
    """In which type a product runs: its activation's, or that of the weight's stored format."""
    return product_dtype((product.dtype, product.weight.meta.dtype)) or product.dtype


def expert_type(graph: CallGraph, block: ExpertBlock) -> str:
    """The same for the experts of a layer, whose matrices are stored alike."""
    stored = [parameter.meta.dtype for parameter in graph.parameters if parameter.storage in block.storages]
    return product_dtype((block.dtype, *stored)) or block.dtype


def _work(sums: _Sums, reads: StageReads | None, forwards: int, routing: str) -> NecessaryWork:
    expert_bytes, fewest = (
        round(sum(block.distinct(policy) * block.bytes_each for block in sums.experts)) for policy in (routing, FEWEST)
    )
    chosen = sum(block.chosen * block.matrix_elements_each for block in sums.experts)
    return NecessaryWork(
        flops_by_dtype=dict(+sums.flops),
        weight_bytes=None if reads is None else reads.weights + expert_bytes,
        expert_bytes=None if reads is None else expert_bytes,
        fewest_expert_bytes=None if reads is None else fewest,
        cache_bytes=None if reads is None else reads.cache,
        other_bytes=None if reads is None else reads.other,
        forwards=forwards,
        active_matrix_parameters=sum(sums.used.values()) + chosen // max(forwards, 1),
        distinct_experts=tuple(_expert_reads(sums.experts, routing)),
        saved=dict(sums.saved),
    )


def _expert_reads(blocks: Sequence[ExpertBlock], routing: str) -> Iterator[ExpertReads]:
    """Blocks of one forward that are alike, as one entry."""
    alike = Counter((block.experts, block.chosen, block.tokens, block.distinct(routing)) for block in blocks)
    for (experts, chosen, tokens, distinct), layers in alike.items():
        yield ExpertReads(
            layers=layers, experts=experts, chosen=chosen, tokens=tokens, distinct=distinct, policy=routing
        )

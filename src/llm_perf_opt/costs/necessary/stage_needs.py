"""Necessary work: what any implementation of the same function must compute and read, by stage."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import found_once, ops_of, stage_names, stage_of_ops
from llm_perf_opt.core.tensor_formats import product_dtype
from llm_perf_opt.costs.memory.kv_cache import STEPS, new_tokens
from llm_perf_opt.costs.necessary.anatomy import Anatomy, WeightProduct, anatomy_of
from llm_perf_opt.costs.necessary.expert_blocks import FEWEST, UNIFORM, ExpertBlock, routing_policy_of
from llm_perf_opt.costs.necessary.read_once import StageReads, reads_by_stage
from llm_perf_opt.ops.grouped_experts import expected_on_fullest
from llm_perf_opt.ops.table import price


class Reason(StrEnum):
    """Why code may do more than is necessary; the text ends a sentence that begins with how much."""

    POSITIONS = "positions whose result nobody uses: only the last one's logits are asked for"
    UNUSED = "layers whose result feeds nothing that the model returns or keeps"
    HIDDEN_PAIRS = "pairs of query and key that the causal mask or the window hides"
    LATENT = "keys and values that the code expands from the latent cache again at every step"
    IDLE_EXPERTS = "experts that the code runs on tokens which did not choose them"
    WHOLE_ROWS = "rows of tokens that the traced rank gets beyond its expected share: a trace routes whole rows"
    BETWEEN_ACTIVATIONS = "products between activations (scans, mixing, rotary tables), of which no bound is known"


@dataclass(frozen=True, slots=True, kw_only=True)
class NecessaryWork:
    """FLOPs by the type they run in, and bytes that must come from memory, each once in every forward.

    `expert_bytes` are part of `weight_bytes`, and an expectation where a routing policy says so; `fewest_expert_bytes`
    are what no routing can go below, every token choosing the same experts. `cache_bytes` are keys,
    values and states that an earlier forward left. `other_bytes` are inputs and buffers. `saved` is what the code does
    beyond this, in FLOPs by reason. None: the trace follows no memory.
    """

    flops_by_dtype: Mapping[str, int]
    weight_bytes: int | None
    expert_bytes: int | None
    fewest_expert_bytes: int | None
    cache_bytes: int | None
    other_bytes: int | None
    forwards: int = 1
    active_matrix_parameters: int | None = None  # per forward; experts by the number that one token takes
    distinct_experts: tuple[ExpertReads, ...] = ()
    saved: Mapping[Reason, int] = field(default_factory=dict)

    @property
    def flops(self) -> int:
        """In whatever type."""
        return sum(self.flops_by_dtype.values())

    @property
    def bytes(self) -> int | None:
        """Weights, caches and inputs together; None while one of them is unknown."""
        parts = (self.weight_bytes, self.cache_bytes, self.other_bytes)
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    @property
    def fewest_bytes(self) -> int | None:
        """The same if the routers touch as few experts as they can: below this no run can stay."""
        if self.bytes is None or self.expert_bytes is None or self.fewest_expert_bytes is None:
            return None
        return self.bytes - self.expert_bytes + self.fewest_expert_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertReads:
    """Layers whose routers choose alike: how many experts each of them has to read in one forward.

    Of a rank that holds a part of them, `experts` are its own, `tokens` those of all `ranks` that share the experts,
    and `distinct` what is expected of any rank; `on_fullest` is what is expected of the one that reads the most,
    None where nothing is drawn.
    """

    layers: int
    experts: int
    chosen: int
    tokens: int
    distinct: float
    policy: str
    ranks: int = 1
    on_fullest: float | None = None


@dataclass(slots=True)
class _Sums:
    """What is added up for one stage."""

    flops: Counter[str]
    saved: Counter[Reason]
    used: dict[int, int]  # storage of a weight -> the most elements that one product takes of it
    experts: list[ExpertBlock]


@found_once
def necessary_by_stage(graph: CallGraph, policy: str | None = None) -> dict[str, NecessaryWork]:
    """Stage -> necessary work over all its forwards, for stages that ran.

    `policy` counts experts, in place of the one that the trace was routed by. Where the trace does not say which
    tensors an op took, weights cannot be distinguished from activations: nothing is known.
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
    context = graph.workload.get("context_tokens") if graph.phase in STEPS else None
    new = new_tokens(graph)
    contexts: dict[int, int] = {}
    for site in anatomy.attentions:
        if site.span.is_causal:
            forward = anatomy.forward_of_ops[site.row]
            known = context + forward * new if isinstance(context, int) else 0
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
        into.saved[Reason.UNUSED if product.is_unused else reason] += product.flops - product.necessary_flops
        if not product.is_unused:
            into.used[product.weight.storage] = max(into.used.get(product.weight.storage, 0), product.elements)
    for block in anatomy.experts:
        into = sums[stages[block.row]]
        into.flops[expert_type(graph, block)] += block.necessary_flops
        into.saved[Reason.IDLE_EXPERTS] += block.flops - block.whole_row_flops
        into.saved[Reason.WHOLE_ROWS] += block.whole_row_flops - block.chosen_flops
        unneeded = Reason.POSITIONS if block.tokens else Reason.UNUSED
        into.saved[unneeded] += block.chosen_flops - block.necessary_flops
        if block.tokens:
            into.experts.append(block)
    for site in anatomy.attentions:
        into = sums[stages[site.row]]
        needed = site.necessary_flops(contexts.get(anatomy.forward_of_ops[site.row]))
        into.flops[site.dtype] += needed
        hidden = Reason.HIDDEN_PAIRS if site.latent is None else Reason.LATENT
        into.saved[Reason.UNUSED if site.is_unused else hidden] += site.flops - needed
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
    chosen = sum(block.chosen * block.matrix_elements_each // block.ranks for block in sums.experts)
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
    """Blocks that are alike, as one entry; a layer that runs in several forwards is one layer."""
    alike: dict[tuple[int, int, int, int, int, float], set[str]] = defaultdict(set)
    for block in blocks:
        key = (block.experts, block.chosen, block.tokens, block.ranks, block.ranks_alike, block.distinct(routing))
        alike[key].add(block.path)
    for (experts, chosen, tokens, ranks, ranks_alike, distinct), paths in alike.items():
        yield ExpertReads(
            layers=len(paths),
            experts=experts,
            chosen=chosen,
            tokens=-(-tokens * ranks // ranks_alike),
            distinct=distinct,
            policy=routing,
            ranks=ranks,
            on_fullest=expected_on_fullest(experts, ranks, distinct * ranks)
            if ranks > 1 and routing == UNIFORM
            else None,
        )

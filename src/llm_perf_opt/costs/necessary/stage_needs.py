"""Necessary work: what any implementation of the same function must compute and read, by stage.

The table puts it next to the work as written, with a sentence for each difference.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import found_once, ops_of, stage_names, stage_of_ops
from llm_perf_opt.core.callgraph.stored_findings import kept_in_store
from llm_perf_opt.core.report import Column, Kind, Note, Report, Table, table_of
from llm_perf_opt.core.tensor_formats import matmul_dtype
from llm_perf_opt.core.units import format_bytes, format_flops, format_number_of
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.costs.memory.kv_cache import STEPS, new_tokens
from llm_perf_opt.costs.necessary.anatomy import Anatomy, WeightMatmul, anatomy_of
from llm_perf_opt.costs.necessary.expert_blocks import (
    AS_TRACED,
    BALANCED,
    FEWEST,
    UNIFORM,
    ExpertBlock,
    routing_policy_of,
)
from llm_perf_opt.costs.necessary.read_once import StageReads, reads_by_stage
from llm_perf_opt.costs.stage_costs import stage_costs
from llm_perf_opt.ops.grouped_experts import expected_on_fullest
from llm_perf_opt.ops.table import price


class Reason(StrEnum):
    """Why code may do more than is necessary; the text ends a sentence that begins with how much."""

    POSITIONS = "positions with a result that nobody uses: only the last position's logits are read"
    UNUSED = "layers with a result that feeds nothing the model returns or keeps"
    HIDDEN_PAIRS = "pairs of query and key that the causal mask or the window hides"
    LATENT = "keys and values that the code expands from the latent cache again at every step"
    IDLE_EXPERTS = "experts that the code runs on tokens which did not choose them"
    REPEATED = "experts that every rank of the plan runs alike, where each could run a share"
    WHOLE_ROWS = "rows of tokens that the traced rank gets beyond its expected share: a trace routes whole rows"
    BETWEEN_ACTIVATIONS = "matmuls between activations (scans, mixing, rotary tables), of which no bound is known"


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
    """Layers with routers that choose alike: how many experts each of them has to read in one forward.

    Of a rank that holds a part of them, `experts` are its own, `tokens` the tokens of all `ranks` that share the
    experts, and `distinct` what is expected of any rank; `on_fullest` is expected of the rank that reads the most, None
    where nothing is drawn.
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
    used: dict[int, int]  # storage of a weight -> the most elements that one matmul takes of it
    experts: list[ExpertBlock]


@found_once
@kept_in_store("necessary work", dict[str, NecessaryWork])
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
    contexts: dict[int, set[int]] = defaultdict(set)
    for stage, forward in zip(stages, anatomy.forward_of_ops, strict=True):
        if forward:
            contexts[stage].add(forward)
    return {stage: len(numbers) for stage, numbers in contexts.items()}


def _sums_by_stage(
    graph: CallGraph, anatomy: Anatomy, stages: array[int], contexts: Mapping[int, int]
) -> dict[int, _Sums]:
    sums: dict[int, _Sums] = defaultdict(lambda: _Sums(Counter(), Counter(), {}, []))
    for matmul in anatomy.matmuls:
        into = sums[stages[matmul.row]]
        into.flops[matmul_type(matmul)] += matmul.necessary_flops
        # Every FLOP that is not necessary gets one reason, so that the reasons add up to the difference.
        reason = Reason.LATENT if matmul.is_expansion else Reason.POSITIONS
        into.saved[Reason.UNUSED if matmul.is_unused else reason] += matmul.flops - matmul.necessary_flops
        if not matmul.is_unused:
            into.used[matmul.weight.storage] = max(into.used.get(matmul.weight.storage, 0), matmul.elements)
    for block in anatomy.experts:
        into = sums[stages[block.row]]
        into.flops[expert_type(graph, block)] += block.necessary_flops
        into.saved[Reason.IDLE_EXPERTS] += block.flops - block.whole_row_flops
        into.saved[Reason.WHOLE_ROWS] += block.whole_row_flops - block.chosen_flops
        unneeded = Reason.POSITIONS if block.tokens else Reason.UNUSED
        into.saved[unneeded] += block.chosen_flops - block.needed_flops
        into.saved[Reason.REPEATED] += block.needed_flops - block.necessary_flops
        if block.tokens:
            into.experts.append(block)
    for site in anatomy.attentions:
        into = sums[stages[site.row]]
        needed = site.necessary_flops(contexts.get(anatomy.forward_of_ops[site.row]))
        into.flops[site.dtype] += needed
        hidden = Reason.HIDDEN_PAIRS if site.latent is None else Reason.LATENT
        into.saved[Reason.UNUSED if site.is_unused else hidden] += site.flops - needed
    for row in anatomy.activation_matmuls:
        cost = price(graph.op_kinds[ops_of(graph).kind[row]])
        sums[stages[row]].saved[Reason.BETWEEN_ACTIVATIONS] += 0 if cost is None else cost.flops
    return sums


def matmul_type(matmul: WeightMatmul) -> str:
    """In which type a matmul runs: its activation's, or the type of the weight's stored format."""
    return matmul_dtype((matmul.dtype, matmul.weight.meta.dtype)) or matmul.dtype


def expert_type(graph: CallGraph, block: ExpertBlock) -> str:
    """The same for the experts of a layer; all their matrices are stored alike."""
    stored = [parameter.meta.dtype for parameter in graph.parameters if parameter.storage in block.storages]
    return matmul_dtype((block.dtype, *stored)) or block.dtype


def _work(sums: _Sums, reads: StageReads | None, forwards: int, routing: str) -> NecessaryWork:
    expert_bytes, fewest = (
        round(sum(block.distinct(policy) * block.bytes_each for block in sums.experts)) for policy in (routing, FEWEST)
    )
    chosen = sum(block.chosen * block.matrix_elements_each // (block.ranks * block.copies) for block in sums.experts)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNeeds:
    """One stage as written, and what is necessary of it; None where the trace does not show it."""

    name: str
    flops: int | None
    bytes_moved: int | None
    necessary: NecessaryWork | None


WORTH_SAYING = 0.10  # of the work as written
_POLICIES = {
    UNIFORM: "the number expected when every token chooses uniformly",
    BALANCED: "as many as this many tokens can touch",
    "one": "every token chooses the same",
    AS_TRACED: "as many as the trace touched",
}


def difference_notes(stages: Sequence[StageNeeds]) -> Iterator[Note]:
    """Where work as written exceeds what is necessary by more than a tenth: a sentence per stage, and one for bytes."""
    known = [stage for stage in stages if stage.necessary is not None]
    for stage in known:
        yield from _flops_note(stage)
    moved = [text for stage in known for text in _bytes_text(stage)]
    if moved:
        yield Note(
            f"More bytes are moved than must be read once in {', '.join(moved)}: "
            "the rest is intermediate results, and copies of the cache or of weights."
        )


def _flops_note(stage: StageNeeds) -> Iterator[Note]:
    needed = stage.necessary
    if needed is None or stage.flops is None or stage.flops - needed.flops <= WORTH_SAYING * stage.flops:
        return
    reasons = sorted(needed.saved.items(), key=lambda item: -item[1])
    shown = [f"{format_flops(count)} are {reason}" for reason, count in reasons if count > 0.01 * stage.flops]
    yield Note(
        f"{stage.name}: the code runs {format_flops(stage.flops)} where {format_flops(needed.flops)} are necessary. "
        f"{'; '.join(shown)}."
    )


def _bytes_text(stage: StageNeeds) -> Iterator[str]:
    needed = None if stage.necessary is None else stage.necessary.bytes
    if needed is None or stage.bytes_moved is None or stage.bytes_moved - needed <= WORTH_SAYING * stage.bytes_moved:
        return
    yield f"{stage.name} ({format_bytes(stage.bytes_moved)} against {format_bytes(needed)})"


def expert_notes(stage: str, necessary: NecessaryWork) -> Iterator[Note]:
    """The policy next to the figures that depend on it; layers that need fewer tokens are named with the reason."""
    if not necessary.distinct_experts:
        return
    first, *others = sorted(necessary.distinct_experts, key=lambda experts: -experts.layers)
    sentences = [f"{stage}: {_reads_text(first)}."]
    for reads in others:
        why = " as only the last position of each sequence is needed there" if reads.tokens < first.tokens else ""
        sentences.append(f"Besides, {_reads_text(reads)}{why}.")
    policy = _POLICIES.get(first.policy, "as the trace was routed")
    yield Note(" ".join((*sentences, f"Routing policy {first.policy}: {policy}.")))


def _reads_text(reads: ExpertReads) -> str:
    layers = "1 expert layer" if reads.layers == 1 else f"each of {reads.layers} expert layers"
    routed = f"({format_number_of(reads.tokens, 'token')} choosing {reads.chosen})"
    if reads.ranks == 1:
        return f"{layers} reads {reads.distinct:.4g} of its {reads.experts} experts {routed}"
    total, experts = reads.distinct * reads.ranks, reads.experts * reads.ranks
    most = "" if reads.on_fullest is None else f"; the slowest rank, the one with the most, {reads.on_fullest:.4g}"
    return (
        f"{layers} reads {reads.distinct:.4g} of the {reads.experts} experts of a rank, on average over the "
        f"{reads.ranks} ranks that read {total:.4g} of {experts} together {routed}{most}"
    )


def stage_needs(graphs: Sequence[CallGraph]) -> tuple[StageNeeds, ...]:
    """Every stage that ran, in order; nothing of a trace without ops."""
    return tuple(sentence for graph in graphs if graph.ops is not None for sentence in _of_phase(graph))


def _of_phase(graph: CallGraph) -> Iterator[StageNeeds]:
    needs = necessary_by_stage(graph)
    for cost in stage_costs(graph).ran:
        yield StageNeeds(name=cost.name, flops=cost.flops, bytes_moved=cost.bytes_moved, necessary=needs.get(cost.name))


def necessary_table(stages: Sequence[StageNeeds]) -> Table:
    """A row per stage, and the sums; an unknown part makes its sum unknown."""
    table = table_of(
        "As written and necessary",
        [(stage, stage.necessary) for stage in stages],
        {
            Column("stage"): lambda row: row[0].name,
            Column("FLOPs as written", Kind.FLOPS): lambda row: row[0].flops,
            Column("necessary", Kind.FLOPS): lambda row: None if row[1] is None else row[1].flops,
            Column("bytes moved as written", Kind.BYTES): lambda row: row[0].bytes_moved,
            Column("must be read", Kind.BYTES): lambda row: None if row[1] is None else row[1].bytes,
            Column("of it weights", Kind.BYTES): lambda row: None if row[1] is None else row[1].weight_bytes,
            Column("of it cache", Kind.BYTES): lambda row: None if row[1] is None else row[1].cache_bytes,
        },
        origin="what any implementation must compute and read of the traced ops (docs/how/necessary-work.md)",
    )
    columns = [[cell for cell in column if not isinstance(cell, str)] for column in zip(*table.rows, strict=True)]
    return replace(table, footer=("total", *map(known_sum, columns[1:]))) if stages else table


def with_necessary(report: Report, stages: Sequence[StageNeeds], after: str | None = None) -> Report:
    """The report with this table behind its first one, or behind the one with the title `after`.

    As it is where no phase shows what is necessary.
    """
    if not any(stage.necessary is not None for stage in stages):
        return report
    place = 1 + [table.title for table in report.tables].index(after) if after is not None else 1
    first, rest = report.tables[:place], report.tables[place:]
    return replace(
        report, tables=(*first, necessary_table(stages), *rest), notes=(*report.notes, *necessary_notes(stages))
    )


def necessary_notes(stages: Sequence[StageNeeds]) -> Iterator[Note]:
    """Where a stage does more than it must, why; and by which policy its experts are counted."""
    yield Note(
        "As written is what this code runs. Necessary is what any implementation must do: positions that are used, "
        "visible pairs, each used weight and the cache read once as stored."
    )
    yield from difference_notes(stages)
    for stage in stages:
        if stage.necessary is not None:
            yield from expert_notes(stage.name, stage.necessary)

"""Weights that every rank holds whole, because the plan does not spread them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.parallel_plan import layer_pattern, plan_in, replicated_in
from llm_perf_opt.core.report import Column, Kind, Level, Note, Table, table_of
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.costs.memory.need import stored_weights

_SHOWN = 8
_LATENT = ("kv_a_proj", "kv_b_proj", "q_a_proj", "q_b_proj")  # as the code of latent attention names its matrices


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedWeights:
    """Parameters of one name in all layers, which each rank holds whole."""

    name: str  # a `*` stands for the number of a layer
    parameters: int
    bytes: int


def replicated_weights(graph: CallGraph) -> tuple[ReplicatedWeights, ...] | None:
    """The largest first; None: the trace does not say which parameters were spread."""
    patterns = replicated_in(graph.deployment)
    if patterns is None:
        return None
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for parameter, size_bytes in stored_weights(graph):
        if (pattern := layer_pattern(parameter.name)) in patterns:
            sizes[pattern] += size_bytes
            counts[pattern] += 1
    return tuple(
        ReplicatedWeights(name=name, parameters=counts[name], bytes=size) for name, size in sizes.most_common()
    )


def replicated_table(found: Sequence[ReplicatedWeights], weight_bytes: int) -> Table:
    """The largest, and the others in one row."""
    rest = found[_SHOWN:]
    shown = [*found[:_SHOWN]]
    if rest:
        name = f"{len(rest)} more names"
        shown.append(
            ReplicatedWeights(
                name=name, parameters=sum(one.parameters for one in rest), bytes=sum(one.bytes for one in rest)
            )
        )
    whole = ReplicatedWeights(
        name="total", parameters=sum(one.parameters for one in found), bytes=sum(one.bytes for one in found)
    )
    return table_of(
        "Weights that are whole on every rank",
        shown,
        {
            Column("parameters"): lambda one: one.name,
            Column("count", Kind.COUNT): lambda one: one.parameters,
            Column("bytes", Kind.BYTES): lambda one: one.bytes,
            Column("of the rank's weights", Kind.RATIO): lambda one: one.bytes / weight_bytes if weight_bytes else None,
        },
        total=whole,
    )


def spreads_little(replicated_bytes: int | None, weight_bytes: int) -> bool:
    """Whether most weights of a rank are whole on every rank, so that more ranks hardly help."""
    return replicated_bytes is not None and 2 * replicated_bytes > weight_bytes


def replicated_notes(graph: CallGraph, found: Sequence[ReplicatedWeights], weight_bytes: int) -> Iterator[Note]:
    """How much of a rank is not spread, and what serving engines do with it."""
    plan, whole = plan_in(graph.deployment), sum(one.bytes for one in found)
    if plan is None or not whole:
        return
    said = f"{format_bytes(whole)} of the {format_bytes(weight_bytes)} of weights on this rank are whole on all ranks: "
    if spreads_little(whole, weight_bytes):
        fix = "give more rules with --plan FILE, or run an engine's code: --code vllm"
        yield Note(f"{said}the plan spreads only the rest, so more ranks hardly help; {fix}.", Level.WARNING)
    else:
        yield Note(f"{said}the plan does not spread them.")
    if plan.tp > 1 and any(part in one.name for one in found for part in _LATENT):
        yield Note(
            "Latent attention is among them. vLLM and SGLang split its heads over tp (q_b_proj, kv_b_proj, o_proj), or "
            "run attention data parallel beside expert parallel: their ranks hold and compute less than shown here."
        )

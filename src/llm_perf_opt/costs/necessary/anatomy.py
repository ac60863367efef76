"""Every matmul of a run by what it is: a matmul with a weight, routed experts, attention, or none of these."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, forward_of_ops, found_once, ops_of, tensor_offsets
from llm_perf_opt.core.callgraph.records import OpKind, Parameter
from llm_perf_opt.costs.necessary.attention_sites import AttentionSite, attention_sites
from llm_perf_opt.costs.necessary.expert_blocks import ExpertBlock, ExpertFinder
from llm_perf_opt.costs.necessary.needed_positions import NeededPositions, needed_positions
from llm_perf_opt.costs.parameters import weights_by_storage
from llm_perf_opt.ops.cost import elements
from llm_perf_opt.ops.table import price


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightMatmul:
    """A matmul, convolution or the like with a weight. `kept` of `made` rows are needed.

    Of its columns `last_columns` are needed for the last of `tokens` positions alone; engines compute them for all.
    """

    row: int
    weight: Parameter
    elements: int  # of the weight operand
    flops: int  # as written
    kept: int
    made: int
    dtype: str
    is_tail: bool
    is_expansion: bool = False  # of a latent cache: rows beyond the new tokens were computed before
    last_columns: int = 0
    columns: int = 1
    tokens: int = 1

    @property
    def necessary_flops(self) -> int:
        """Of the rows and columns that are needed."""
        columns = (self.columns - self.last_columns) * self.tokens + self.last_columns
        return self.flops * self.kept * columns // (self.made * self.columns * self.tokens)

    @property
    def is_unused(self) -> bool:
        """Whether its result feeds nothing."""
        return self.kept == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """All matrix work of one phase. `activation_matmuls` are rows of matmuls that nothing here explains."""

    matmuls: tuple[WeightMatmul, ...]
    experts: tuple[ExpertBlock, ...]
    attentions: tuple[AttentionSite, ...]
    activation_matmuls: tuple[int, ...]
    positions: NeededPositions
    weights: dict[int, Parameter]
    forward_of_ops: array[int]


@found_once
def anatomy_of(graph: CallGraph) -> Anatomy:
    """Follow every weight, score and choice of experts through the run."""
    positions, weights = needed_positions(graph), weights_by_storage(graph)
    sites = attention_sites(graph, weights, positions)
    in_attention = {row for site in sites for row in site.rows}
    ops, (starts, _) = ops_of(graph), tensor_offsets(graph)
    prices = [price(kind) for kind in graph.op_kinds]
    finder, forwards = ExpertFinder(graph, positions), forward_of_ops(graph)
    matmuls: list[WeightMatmul] = []
    unexplained: list[int] = []
    for row, index in enumerate(ops.kind):
        kind, cost = graph.op_kinds[index], prices[index]
        # The order matters: attention counts by visible pairs, so its rows are taken out first; then experts claim
        # theirs, and what is left has a weight or has no explanation.
        finder.router(kind, ops.call[row])
        if cost is None or not cost.flops or row in in_attention:
            continue
        used = [weights.get(storage) for storage in ops.input_storages[starts[row] : starts[row + 1]]]
        place = _weight_place(kind, used)
        weight = None if place is None else used[place]
        if place is None or weight is None:
            unexplained.append(row)
        elif not finder.claim(row, forwards[row], kind, cost.flops, weight):
            matmuls.append(_matmul(row, kind, place, weight, cost.flops, positions))
    latent = {site.call: site for site in sites if site.latent is not None}
    return Anatomy(
        matmuls=tuple(_without_expansion(graph, matmul, latent) for matmul in matmuls),
        experts=finder.blocks(),
        attentions=sites,
        activation_matmuls=tuple(unexplained),
        positions=positions,
        weights=weights,
        forward_of_ops=forwards,
    )


def _weight_place(kind: OpKind, used: Sequence[Parameter | None]) -> int | None:
    """Which input is the weight that is multiplied: the largest that is a matrix; a vector is a bias or a scale."""
    places = [place for place, weight in enumerate(used) if weight is not None and len(kind.inputs[place].shape) > 1]
    return max(places, key=lambda place: elements(kind.inputs[place]), default=None)


def _matmul(
    row: int, kind: OpKind, place: int, weight: Parameter, flops: int, positions: NeededPositions
) -> WeightMatmul:
    size = elements(kind.inputs[place])
    needed, made = positions.kept_of(row, flops // (2 * size) if size else 1)
    last_columns = positions.last_columns.get(row, 0)
    return WeightMatmul(
        row=row,
        weight=weight,
        elements=size,
        flops=flops,
        kept=needed,
        made=made,
        dtype=kind.inputs[1 if place == 0 and len(kind.inputs) > 1 else 0].dtype,  # weights may come first: `w @ x`
        is_tail=row in positions.tail,
        last_columns=last_columns,
        columns=kind.outputs[0].shape[-1] if last_columns else 1,
        tokens=positions.tokens if last_columns else 1,
    )


def _without_expansion(graph: CallGraph, matmul: WeightMatmul, latent: Mapping[int, AttentionSite]) -> WeightMatmul:
    """A projection of the whole latent cache is needed for the new tokens alone: the others have theirs absorbed.

    `latent` holds the attentions on a latent cache by their module call, inside which the projection runs.
    """
    call = ops_of(graph).call[matmul.row]
    site = latent.get(calls_of(graph).parent[call] if call >= 0 else -1)
    if site is None or site.latent is None or site.keys == site.queries:
        return matmul
    # Only a matmul that takes latent vectors, a row for each key, can be the expansion.
    if matmul.weight.meta.shape[-1:] != (site.latent.rank,) or matmul.flops % (2 * matmul.elements * site.keys):
        return matmul
    return replace(matmul, kept=site.queries, made=site.keys, is_expansion=True)

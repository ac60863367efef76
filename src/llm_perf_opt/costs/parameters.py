"""Weights of a run: which stage owns one, which memory holds it, and how many a forward uses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import (
    forward_of_ops,
    found_once,
    ops_of,
    stage_names,
    stage_of_ops,
    tensor_offsets,
)
from llm_perf_opt.core.callgraph.records import OpKind, Parameter
from llm_perf_opt.core.source_figures import WorkFamily, family_of
from llm_perf_opt.ops.cost import elements, operand
from llm_perf_opt.ops.grouped_experts import groups_used
from llm_perf_opt.ops.op import OpRole
from llm_perf_opt.ops.table import op_role, price


def parameters_by_stage(graph: CallGraph) -> dict[str, int]:
    """Stage -> parameter elements it owns, by name: the stage with the longest matching path, else the phase.

    Ownership does not ask what ran, so an expert without tokens counts. Tied weights count once, where they are named
    first; buffers are not parameters.
    """
    claims = {path: name for name, paths in graph.stages for path in paths}
    owned = dict.fromkeys(stage_names(graph), 0)
    for parameter in untied(graph.parameters):
        owned[_owner(parameter.name, claims, graph.phase)] += elements(parameter.meta)
    return owned


def count_distinct_parameters(graphs: Iterable[CallGraph]) -> int:
    """Parameter elements of all graphs together; phases of one model share their weights by name."""
    by_name = {parameter.name: elements(parameter.meta) for graph in graphs for parameter in untied(graph.parameters)}
    return sum(by_name.values())


def untied(parameters: Iterable[Parameter]) -> Iterator[Parameter]:
    """Every weight once; without storages, names are all there is to tell weights apart."""
    seen: set[int] = set()
    for parameter in parameters:
        if parameter.is_buffer or parameter.storage in seen:
            continue
        if parameter.storage >= 0:
            seen.add(parameter.storage)
        yield parameter


def _owner(name: str, claims: dict[str, str], phase: str) -> str:
    path = name.rpartition(".")[0]
    while path not in claims:
        if not path:
            return phase
        path = path.rpartition(".")[0]
    return claims[path]


@found_once
def gathered_weights(graph: CallGraph) -> dict[int, Parameter]:
    """Row of a storage -> the fully sharded weight that is gathered there, with its whole shape and its own storage.

    FSDP2 copies the shards of a layer into one buffer, gathers it, and splits it again in the same order. A weight that
    a rank has for itself, as its experts, is copied whole.
    """
    roles = [_GATHER_ROLES.get(kind.name.removesuffix(".default")) for kind in graph.op_kinds]
    if _SPLIT not in roles:
        return {}
    shards = {parameter.storage: parameter for parameter in untied(graph.parameters)}
    ops, (starts, _) = ops_of(graph), tensor_offsets(graph)
    sent: dict[int, list[Parameter | None]] = {}  # storage of a buffer -> the weights that it holds shards of, in order
    gathered: dict[int, Parameter] = {}  # with the shape of the shard until an op shows the whole one
    owners: dict[int, Parameter] = {}
    for row, number in enumerate(ops.kind):
        kind, storages = graph.op_kinds[number], ops.input_storages[starts[row] : starts[row + 1]]
        if roles[number] == _COPIED_IN:
            sent[storages[-1]] = [shards.get(storage) for storage in storages[:-1]]
        elif roles[number] == _SPLIT:
            split = zip(storages[1:], sent.pop(storages[0], ()), strict=False)
            gathered.update((storage, weight) for storage, weight in split if weight is not None)
        elif roles[number] == _COPIED:
            weight = shards.get(storages[1])
            if weight is not None and elements(weight.meta) == elements(kind.inputs[0]):
                gathered[storages[0]] = weight
        else:
            for storage, meta in zip(storages, kind.inputs, strict=True):
                weight = gathered.get(storage)
                if weight is not None and len(meta.shape) == len(weight.meta.shape):
                    owners[storage] = replace(gathered.pop(storage), meta=meta)
    return owners


_COPIED_IN, _SPLIT, _COPIED = "copied in", "split", "copied"
_GATHER_ROLES = {"fsdp.all_gather_copy_in": _COPIED_IN, "fsdp.split_with_sizes_copy": _SPLIT, "aten.copy_": _COPIED}


def serves_gather(kind: OpKind) -> bool:
    """Whether an op copies shards of weights before or after they are gathered: others then read the weights."""
    return kind.name.startswith("fsdp.")


def weights_by_storage(graph: CallGraph) -> dict[int, Parameter]:
    """Row of a storage -> the weight that it holds the values of; views share the weight's own storage."""
    by_storage = {parameter.storage: parameter for parameter in untied(graph.parameters) if parameter.storage >= 0}
    by_storage.update(gathered_weights(graph))
    ops = ops_of(graph)
    input_starts, output_starts = tensor_offsets(graph)
    hands_on = [hands_weight_on(kind) for kind in graph.op_kinds]
    for row, kind in enumerate(ops.kind):
        if not hands_on[kind]:
            continue
        weight = by_storage.get(ops.input_storages[input_starts[row]])
        if weight is not None:
            for made in ops.output_storages[output_starts[row] : output_starts[row + 1]]:
                by_storage.setdefault(made, weight)
    return by_storage


def hands_weight_on(kind: OpKind) -> bool:
    """A cast, a copy, or a gather of whole matrices (`weight[expert_of]`); rows of a table are a lookup."""
    if not kind.inputs or not kind.outputs:
        return False
    cost = price(kind)
    if cost is None or cost.flops:
        return False
    return len(kind.inputs) == 1 or (op_role(kind) is OpRole.GATHER and len(kind.inputs[0].shape) > 2)


def active_parameters(graph: CallGraph) -> dict[str, int | None]:
    """Stage -> elements of weights that enter its matmuls, per forward of the phase.

    A weight that is cast or transposed first is followed, and so are experts picked from a stack of them. Of the stack
    in a grouped matmul those experts count that got rows; where the trace does not tell, as many as there are rows.
    A lookup reads a few rows of its table and multiplies nothing, so an embedding is not active; scales of norms and
    biases are not either. Within one forward a weight counts once however often it is used; parts of one that are
    multiplied apart are taken to be different parts.

    None where the trace cannot tell: it does not say which tensors an op took, or an op without a price took a weight.
    """
    names, ops = stage_names(graph), ops_of(graph)
    if ops.kind and not ops.input_storages:
        return dict.fromkeys(names)
    uses = _uses(graph)
    forwards = max(1, graph.runtime.get("decode_steps", 0) if graph.phase == "decode" else 1)
    totals: Counter[int] = Counter()
    for (stage, _, _), size in uses.whole_weights().items():
        totals[stage] += size
    return {
        name: None if stage in uses.unclear_stages else totals[stage] // forwards for stage, name in enumerate(names)
    }


@dataclass(frozen=True, slots=True)
class _Share:
    """What a storage holds of a weight: the weight's own storage, and how many of its elements are here."""

    weight: int
    size: int


class _Uses:
    """Which storages hold weights, and how much of each a forward multiplies with."""

    def __init__(self, graph: CallGraph) -> None:
        gathered = gathered_weights(graph)
        self._sizes = {p.storage: elements(p.meta) for p in untied(graph.parameters) if p.storage >= 0}
        self._sizes.update((weight.storage, elements(weight.meta)) for weight in gathered.values())
        self.shares = {storage: _Share(storage, size) for storage, size in self._sizes.items()}
        self.shares.update(
            (made, _Share(weight.storage, self._sizes[weight.storage])) for made, weight in gathered.items()
        )
        self.unclear_stages: set[int] = set()
        self._entered: Counter[tuple[int, int, int]] = Counter()

    def enter(self, stage: int, forward: int, storage: int, size: int) -> None:
        """`size` elements of what `storage` holds are an operand of a matmul."""
        self._entered[stage, forward, storage] += size

    def pass_on(self, storage: int, made: int, size: int) -> None:
        """An op made `made`, of `size` elements, of nothing but values in `storage`."""
        share = self.shares[storage]
        self.shares.setdefault(made, _Share(share.weight, min(share.size, size)))

    def whole_weights(self) -> dict[tuple[int, int, int], int]:
        """(stage, forward, weight) -> elements used: never more than a storage holds, nor than the weight has."""
        used: Counter[tuple[int, int, int]] = Counter()
        for (stage, forward, storage), size in self._entered.items():
            share = self.shares[storage]
            used[stage, forward, share.weight] += min(size, share.size)
        return {key: min(size, self._sizes[key[2]]) for key, size in used.items()}


def _uses(graph: CallGraph) -> _Uses:
    """Every op in order: a matmul uses weights, a cast or a gather hands them on, an unknown op leaves a doubt."""
    ops, stages, forward_of_op = ops_of(graph), stage_of_ops(graph), forward_of_ops(graph)
    offsets, output_offsets = tensor_offsets(graph)
    prices = [price(kind) for kind in graph.op_kinds]
    operand_sizes = [_operand_sizes(kind) for kind in graph.op_kinds]
    hands_on = [hands_weight_on(kind) for kind in graph.op_kinds]
    uses = _Uses(graph)
    for row, kind in enumerate(ops.kind):
        inputs = ops.input_storages[offsets[row] : offsets[row + 1]]
        cost = prices[kind]
        if cost is None or cost.flops:
            for storage, size in zip(inputs, operand_sizes[kind], strict=True):
                if storage in uses.shares and size:
                    uses.enter(stages[row], forward_of_op[row], storage, size)
                    uses.unclear_stages.update([stages[row]] if cost is None else [])
        elif hands_on[kind] and inputs[0] in uses.shares:
            outputs = ops.output_storages[output_offsets[row] : output_offsets[row + 1]]
            for made, meta in zip(outputs, graph.op_kinds[kind].outputs, strict=True):
                uses.pass_on(inputs[0], made, elements(meta))
    return uses


def _operand_sizes(kind: OpKind) -> tuple[int, ...]:
    """Per input, the elements that a matmul multiplies with; a vector is a bias or a scale.

    In a grouped matmul of a matrix and a stack, the rows (or columns) of the one are split between the matrices of the
    other: those without rows are not used.
    """
    sizes = [elements(meta) if len(meta.shape) > 1 else 0 for meta in kind.inputs]
    if family_of(kind.name) is not WorkFamily.GROUPED or len(kind.inputs) < 2:
        return tuple(sizes)
    left, right = operand(kind, 0, "self", "input"), operand(kind, 1, "mat2", "weight")
    if len(left.shape) == len(right.shape):
        return tuple(sizes)
    used = groups_used(kind)
    return tuple(
        min(used, meta.shape[0]) * math.prod(meta.shape[1:]) if len(meta.shape) == 3 else size
        for meta, size in zip(kind.inputs, sizes, strict=True)
    )

"""How many weights a forward really uses: those that enter a matrix product, an idle expert's not among them."""

from __future__ import annotations

from llm_perf_opt.analyses.parameter_owners import untied
from llm_perf_opt.analyses.pricing import price
from llm_perf_opt.analyses.pricing.op_cost import elements
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.queries import ops_of, stage_names, stage_of_ops, tensor_offsets


def active_parameters(graph: CallGraph) -> dict[str, int]:
    """Stage -> elements of weights that enter its matrix products, per forward of the phase.

    A weight that is cast or transposed first is followed. A lookup reads a few rows of its table and multiplies
    nothing, so an embedding is not active; scales of norms and biases are not either. Within one forward a weight
    counts once however often it is used.
    """
    names = stage_names(graph)
    used = _weights_in_products(graph)
    forwards = max(1, graph.runtime.get("decode_steps", 0) if graph.phase == "decode" else 1)
    totals = dict.fromkeys(names, 0)
    for (stage, _, _), size in used.items():
        totals[names[stage]] += size
    return {name: total // forwards for name, total in totals.items()}


def _weights_in_products(graph: CallGraph) -> dict[tuple[int, int, int], int]:
    """(stage, forward, storage) -> elements. A forward is a call that no module made."""
    ops, stages = ops_of(graph), stage_of_ops(graph)
    offsets, output_offsets = tensor_offsets(graph)
    weights = {p.storage: (p.storage, elements(p.meta)) for p in untied(graph.parameters) if p.storage >= 0}
    does_products = [bool(cost and cost.flops) for cost in map(price, graph.op_kinds)]
    forward_of_op = _forward_of_ops(graph)
    used: dict[tuple[int, int, int], int] = {}
    for row, kind in enumerate(ops.kind):
        inputs = ops.input_storages[offsets[row] : offsets[row + 1]]
        if does_products[kind]:
            for storage, meta in zip(inputs, graph.op_kinds[kind].inputs, strict=True):
                if storage in weights and len(meta.shape) > 1:
                    origin, size = weights[storage]
                    used[stages[row], forward_of_op[row], origin] = size
        elif len(inputs) == 1 and inputs[0] in weights:
            for output in ops.output_storages[output_offsets[row] : output_offsets[row + 1]]:
                weights.setdefault(output, weights[inputs[0]])
    return used


def _forward_of_ops(graph: CallGraph) -> list[int]:
    """Per op, the number of the outermost call it ran in."""
    forward, numbers = -1, []
    calls = graph.calls
    starts = set() if calls is None else {calls.first_op[i] for i, parent in enumerate(calls.parent) if parent < 0}
    for row in range(len(ops_of(graph).kind)):
        forward += row in starts
        numbers.append(forward)
    return numbers

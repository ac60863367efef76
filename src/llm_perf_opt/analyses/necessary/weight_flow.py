"""Which memory holds a weight: the parameter itself, a cast or copy of it, or experts picked from a stack."""

from __future__ import annotations

from llm_perf_opt.analyses.parameter_owners import untied
from llm_perf_opt.analyses.pricing import price
from llm_perf_opt.analyses.pricing.packet import packet_of
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.queries import ops_of, tensor_offsets
from llm_perf_opt.callgraph.records import OpKind, Parameter

_GATHERS = ("aten.index", "aten.index_select")


def weights_by_storage(graph: CallGraph) -> dict[int, Parameter]:
    """Row of a storage -> the weight whose values it holds; views share the weight's own storage."""
    held = {parameter.storage: parameter for parameter in untied(graph.parameters) if parameter.storage >= 0}
    ops = ops_of(graph)
    input_starts, output_starts = tensor_offsets(graph)
    hands_on = [hands_weight_on(kind) for kind in graph.op_kinds]
    for row, kind in enumerate(ops.kind):
        if not hands_on[kind]:
            continue
        weight = held.get(ops.input_storages[input_starts[row]])
        if weight is not None:
            for made in ops.output_storages[output_starts[row] : output_starts[row + 1]]:
                held.setdefault(made, weight)
    return held


def hands_weight_on(kind: OpKind) -> bool:
    """A cast, a copy, or a gather of whole matrices (`weight[expert_of]`); rows of a table are a lookup."""
    if not kind.inputs or not kind.outputs:
        return False
    cost = price(kind)
    if cost is None or cost.flops:
        return False
    return len(kind.inputs) == 1 or (packet_of(kind.name) in _GATHERS and len(kind.inputs[0].shape) > 2)

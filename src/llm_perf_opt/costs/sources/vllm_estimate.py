"""What vLLM itself says a step costs: the estimate behind its MFU metric, made from its configuration alone.

It is computed where vLLM is, and kept in the trace of vLLM's code. The trace shows what it leaves out: the matmuls of
routers; a latent decode step as it runs, on latent vectors; experts padded to the tiles of a kernel. Under expert
parallelism it counts dense and shared layers replicated on every rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of
from llm_perf_opt.core.protocols import ModelAdapter
from llm_perf_opt.core.source_figures import BlindSpot, Method, OperatorFigure, SourceFigures, WorkFamily
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.ops.table import op_family, price

SOURCE = "vllm-estimate"
KEY = "vllm_estimate"  # in the runtime facts of a trace
_ROUTERS = frozenset({"gate", "router"})  # the last word of the path of a module that scores experts
_LATENT = "vllm.unified_mla_attention_with_output"
_EXPERTS = "vllm_moe.routed_experts"
_LINEAR = "aten.linear"


class VllmEstimate:
    """Reads the estimate from a trace of vLLM's code; for any other code there is none."""

    runs_model = False

    def figures(self, adapter: ModelAdapter, workload: Workload) -> tuple[SourceFigures, ...]:
        """One record that says where the estimate comes from: an adapter runs the model's own code."""
        return (_failed("total", f"vLLM makes it with a trace of its own code, not of {adapter.title}"),)

    def of_trace(self, graphs: Sequence[CallGraph]) -> tuple[SourceFigures, ...]:
        """The figures of every phase as a whole."""
        return tuple(_of_phase(graph) for graph in graphs)


def _failed(phase: str, reason: str) -> SourceFigures:
    return SourceFigures(source=SOURCE, phase=phase, stage=phase, method=Method.CLOSED_FORM, failure=reason)


def _of_phase(graph: CallGraph) -> SourceFigures:
    estimate = graph.runtime.get(KEY)
    parts = estimate.get("flops") if isinstance(estimate, Mapping) else None
    if not isinstance(parts, Mapping) or not parts:
        reason = estimate.get("reason") if isinstance(estimate, Mapping) else "the trace is not of vLLM's code"
        return _failed(graph.phase, str(reason or "vLLM gave no figures"))
    operators = tuple(
        OperatorFigure(name=name, family=_family(name), flops=int(count)) for name, count in parts.items()
    )
    return SourceFigures(
        source=SOURCE,
        phase=graph.phase,
        stage=graph.phase,
        method=Method.CLOSED_FORM,
        flops=sum(operator.flops or 0 for operator in operators),
        operators=operators,
        blind_spots=tuple(_gaps(graph, operators)),
        version=str(graph.deployment.get("engine", "")) or None,
    )


def _family(part: str) -> WorkFamily:
    """Of a component as vLLM names it; what expands latent vectors runs inside the op of attention."""
    name = part.rpartition(".")[2]
    if name.startswith("attn_") or name == "kv_b_proj":
        return WorkFamily.ATTENTION
    return WorkFamily.GROUPED if name == "routed_ffn" else WorkFamily.MATMUL


def _gaps(graph: CallGraph, operators: Sequence[OperatorFigure]) -> Iterator[BlindSpot]:
    """What the trace shows beyond the estimate, by cause; each is the whole of what it names, whatever the sum says."""
    ran = _work_of(graph)
    theirs = Counter[WorkFamily]()
    for operator in operators:
        theirs[operator.family] += operator.flops or 0
    routers, calls = ran.routers
    if routers:
        yield BlindSpot(cause="router-uncounted", operator=_LINEAR, calls=calls, flops=routers)
    if ran.latent_calls and (gap := ran.attention - theirs[WorkFamily.ATTENTION]) > 0:
        yield BlindSpot(cause="latent-attention-expanded", operator=_LATENT, calls=ran.latent_calls, flops=gap)
    if ran.expert_calls and (gap := ran.experts - theirs[WorkFamily.GROUPED]) > 0:
        yield BlindSpot(cause="padded-experts", operator=_EXPERTS, calls=ran.expert_calls, flops=gap)
    if ran.is_expert_parallel and (gap := theirs[WorkFamily.MATMUL] - (ran.matmuls - routers)) > 0:
        yield BlindSpot(cause="whole-on-expert-ranks", operator=_LINEAR, calls=0, flops=gap)


class _Work:
    """Matrix work of a trace by who does it."""

    def __init__(self, *, is_expert_parallel: bool) -> None:
        self.is_expert_parallel = is_expert_parallel
        self.matmuls = self.attention = self.experts = self.latent_calls = self.expert_calls = 0
        self.routers = (0, 0)  # FLOPs and calls


def _work_of(graph: CallGraph) -> _Work:
    work = _Work(is_expert_parallel=graph.deployment.get("parallel", {}).get("ep", 1) > 1)
    ops, calls = ops_of(graph), calls_of(graph)
    for (kind_index, call), count in Counter(zip(ops.kind, ops.call, strict=True)).items():
        kind = graph.op_kinds[kind_index]
        cost = price(kind)
        if cost is None or not cost.flops:
            continue
        family, flops = op_family(kind.name), cost.flops * count
        if family is WorkFamily.ATTENTION:
            work.attention += flops
            work.latent_calls += count if kind.name.startswith(_LATENT) else 0
        elif family is WorkFamily.GROUPED:
            work.experts += flops
            work.expert_calls += count
        else:
            work.matmuls += flops
            path = graph.paths[calls.path[call]] if call >= 0 else ""
            if path.rpartition(".")[2] in _ROUTERS:
                work.routers = (work.routers[0] + flops, work.routers[1] + count)
    return work

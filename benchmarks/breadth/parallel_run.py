"""The same plans as weightless traces: what `llm-perf-opt trace FOLDER --tp 8` runs, prefill and one decode step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.collectives import collective_of
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.models.huggingface.resolved import HuggingFaceWorkload

from .fork_pool import Record, resident_bytes
from .parallel_plans import MESSAGE_LENGTH, PLANS, PlannedType, cause, planned_type, plans_of


def run_weightless(model_type: str, rules: Mapping[str, object], only: Collection[str] = PLANS) -> Record:
    """The record of one model type: the outcome of each plan among `only` that its rules allow to try."""
    with planned_type(model_type) as planned:
        outcomes = {name: _outcome(planned, plan) for name, plan in plans_of(rules, only).items()}
        return {"status": "ok", "plans": outcomes, "rss_bytes": resident_bytes()}


def _outcome(planned: PlannedType, plan: ParallelPlan) -> Record:
    """`runs` with what a rank holds and exchanges, or `refused` with the message."""
    started = time.process_time()
    try:
        adapter = HuggingFaceAdapter(planned.folder, False).on_rank(plan)
        graphs = [WeightlessTracer().trace(target) for target in adapter.targets(HuggingFaceWorkload())]
    except PerfOptError as error:
        why = f"{error.what} {error.why or ''}"[:MESSAGE_LENGTH]
        return {"status": "refused", "message": why, "cause": cause(planned.config, plan, why)}
    except Exception as error:  # noqa: BLE001  not one of ours: a mistake of this house, and recorded as one
        return {"status": "crash", "message": f"{type(error).__name__}: {error}"[:MESSAGE_LENGTH]}
    prefill, *later = graphs
    return {
        "status": "runs",
        "weight_bytes": _weight_bytes(prefill),
        "collectives": _collectives(prefill),
        "phases": len(graphs),
        "decode_collectives": sum(_collectives(later[0]).values()) if later else None,
        "seconds": round(time.process_time() - started, 2),
    }


def _weight_bytes(graph: CallGraph) -> int:
    assert graph.storages is not None, "a weightless trace knows its storages"
    held = {parameter.storage for parameter in graph.parameters if not parameter.is_buffer}
    return sum(graph.storages.bytes[storage] for storage in held)


def _collectives(graph: CallGraph) -> dict[str, int]:
    assert graph.ops is not None, "a weightless trace has ops"
    counts: Counter[str] = Counter()
    for row in graph.ops.kind:
        kind = graph.op_kinds[row]
        if (found := collective_of(kind)) is not None:
            counts[f"{kind.name} {found.payload_bytes}"] += 1
    return dict(sorted(counts.items()))

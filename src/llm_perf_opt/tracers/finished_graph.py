"""The last step of every tracer: the builder's columns under the header that the target gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_perf_opt.callgraph import CallGraph, CallGraphBuilder, Json
from llm_perf_opt.execution.library_versions import library_versions
from llm_perf_opt.execution.runtime_facts import RuntimeFacts
from llm_perf_opt.plugins import Target


def finished_graph(
    builder: CallGraphBuilder,
    target: Target,
    facts: RuntimeFacts,
    tracer: str,
    settings: Mapping[str, Json],
    *,
    notes: Sequence[str] = (),
    stopped_in: str | None = None,
) -> CallGraph:
    """The call graph; `settings` are the tracer's own part of the workload, such as routing, weights and device."""
    return builder.finish(
        model=target.model,
        phase=target.phase,
        tracer=tracer,
        workload={**target.workload, **settings},
        stages=[(stage.name, stage.paths) for stage in target.stages],
        runtime=facts.runtime(),
        library_versions=library_versions(),
        notes=(*target.notes, *facts.notes(), *notes),
        stopped_in=stopped_in,
    )

"""What the whole report holds for, in one table on top: devices, plan, stored formats, whose code, who launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.api.prediction import PredictionAnswer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.parallel_plan import plan_in
from llm_perf_opt.core.report import Column, Table
from llm_perf_opt.costs.memory.kv_cache import kv_cache
from llm_perf_opt.costs.run_description import rank_text, weights_sentence
from llm_perf_opt.timing.datasheet_rates import Execution

_EXECUTIONS = {
    Execution.EAGER: "eager: PyTorch launches every op of the trace, one after the other",
    Execution.FUSED: "fused: an engine with grouped experts, fused vector ops and captured graphs",
}


def deployment_table(graphs: Sequence[CallGraph], predictions: Sequence[PredictionAnswer]) -> Table:
    """One row for each part of the deployment; what was not named says so."""
    rows = tuple(_rows(graphs, predictions))
    return Table(title="Deployment", columns=(Column("part"), Column("as it is here")), rows=rows)


def _rows(graphs: Sequence[CallGraph], predictions: Sequence[PredictionAnswer]) -> Iterator[tuple[str, str]]:
    yield "devices", ", ".join(one.machine for one in predictions) or "none named: figures of any device, no times"
    if not graphs:
        return
    first = graphs[0]
    plan = plan_in(first.deployment)
    yield "plan", "one device" if plan is None else rank_text(plan)
    yield "weights", weights_sentence(first).removeprefix("Weights: ").removesuffix(".")
    if (cache := kv_cache(graphs)) is not None:
        formats = ", ".join(dict.fromkeys(meta.dtype for meta in cache.tensors))
        origin = first.deployment.get("cache_from")
        yield "cache", f"{formats} ({origin})" if origin else formats
    code = first.deployment.get("code")
    yield "code", "the model's own" if code is None else f"{first.deployment.get('engine', code)}, its classes"
    yield from _semantics(predictions)


def _semantics(predictions: Sequence[PredictionAnswer]) -> Iterator[tuple[str, str]]:
    """Who launches kernels, and where their times come from."""
    if not predictions:
        return
    one = predictions[0]
    engine = f"; kernels of {one.engine}" if one.engine else ""
    yield "execution", f"{_EXECUTIONS[Execution(one.execution)]}{engine}"
    sources = dict.fromkeys(one.rates for one in predictions)
    named = (f"{source} ({', '.join(one.machine for one in predictions if one.rates == source)})" for source in sources)
    yield "times from", next(iter(sources)) if len(sources) == 1 else "; ".join(named)

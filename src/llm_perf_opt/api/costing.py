"""What a model costs, from its name: `lpo.cost(...)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llm_perf_opt.api.cost import Sources, check_sources, cost_of
from llm_perf_opt.api.cost_answer import CostAnswer
from llm_perf_opt.api.tracing import trace
from llm_perf_opt.tracing.origin import find_origin


def cost(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    sources: Sources = "all",
    weights: str | None = None,
    cache: str | None = None,
    routing: str | None = None,
    torch_device: str | None = None,
    trust_remote_code: bool = False,
    code: str = "reference",
    **workload: Any,
) -> CostAnswer:
    """What a model costs from every source, or from those that are named. The options are those of `lpo.trace`.

    The same as `lpo.trace(...).cost(sources)`, but nothing is traced where `counted` is not among the sources. A phase
    in which the model raises is unknown, and the others are counted.
    """
    check_sources(sources)
    if code != "reference":
        formats: dict[str, Any] = {"weights": weights, "cache": cache, "routing": routing}
        traced = trace(model, args, kwargs, code=code, trust_remote_code=trust_remote_code, **formats, **workload)
        return traced.cost(None if sources == "all" else sources)
    origin = find_origin(
        model,
        args,
        kwargs,
        weights=weights,
        cache=cache,
        routing=routing,
        torch_device=torch_device,
        trust_remote_code=trust_remote_code,
        **workload,
    )
    return cost_of(origin, sources)

"""The options that say how weights and cache are stored; they mean the same in every verb."""

from __future__ import annotations

from typing import Annotated

import typer

from llm_perf_opt.callgraph.weight_formats import CACHE_NAMES, WHAT_IF_NAMES, cache_dtype, stored_dtype
from llm_perf_opt.plugins import Deployment

WeightsOption = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help=f"Stored format of the weights: {', '.join(WHAT_IF_NAMES)}, ... Default: as the checkpoint says.",
    ),
]
CacheOption = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT", help=f"Type of the cached keys and values: {', '.join(CACHE_NAMES)}. Default: as traced."
    ),
]


def deployment_of(weights: str | None, cache: str | None) -> Deployment:
    """What was asked for; a name that is no format is refused here, before any work."""
    if weights is not None:
        stored_dtype(weights)
    if cache is not None:
        cache_dtype(cache)
    return Deployment(weights=weights, cache=cache)

"""Traces as a deployment stores them: what the checkpoint itself says, then what was asked for in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.stored_findings import identify
from llm_perf_opt.core.protocols import KnowsStoredFormats, ModelAdapter
from llm_perf_opt.core.target import Json
from llm_perf_opt.core.tensor_formats import StoredFormats, cache_dtype, stored_dtype
from llm_perf_opt.core.workload import Deployment
from llm_perf_opt.costs.run_description import CHECKPOINT, WHAT_IF
from llm_perf_opt.costs.stored_formats import can_store_cache, store_cache, store_weights, what_if_formats


def deployed(adapter: ModelAdapter, graphs: Sequence[CallGraph], wanted: Deployment) -> tuple[CallGraph, ...]:
    """The phases of a run that was just traced, as the adapter's checkpoint stores them and `wanted` changes that."""
    if not graphs:
        return ()
    stored = formats_of(adapter, graphs[0])
    own = tuple(as_checkpoint(graph, stored) for graph in graphs)
    if stored.cache is not None and wanted.cache is None and can_store_cache(own):
        own = _with_cache(own, stored.cache, CHECKPOINT)
    return redeployed(own, wanted)


def redeployed(graphs: Sequence[CallGraph], wanted: Deployment) -> tuple[CallGraph, ...]:
    """The phases of any run, a saved one too, for the device and in the formats that were asked for."""
    changed = tuple(graphs)
    if wanted.device is not None:
        changed = tuple(_on_device(graph, wanted.device) for graph in changed)
    if wanted.weights is not None:
        name = stored_dtype(wanted.weights)
        changed = tuple(
            identify(_with_weights(graph, name), graph.content_digest, "weights", name) for graph in changed
        )
    if wanted.cache is not None:
        changed = _with_cache(changed, cache_dtype(wanted.cache), WHAT_IF)
    return changed


def deployed_device(graphs: Sequence[CallGraph]) -> str | None:
    """The id of the hardware that a trace was made for; None where it was made for none."""
    device = graphs[0].deployment.get("device") if graphs else None
    return device if isinstance(device, str) else None


def formats_of(adapter: ModelAdapter, graph: CallGraph) -> StoredFormats:
    """What the adapter tells of its checkpoint; nothing where it has none."""
    return adapter.stored_formats(graph) if isinstance(adapter, KnowsStoredFormats) else StoredFormats()


def as_checkpoint(graph: CallGraph, stored: StoredFormats) -> CallGraph:
    """One phase with the weights as the checkpoint stores them; `deployment` says who said so and what was not read."""
    if not stored.origin:
        return graph
    header: dict[str, Json] = {"weights_from": f"{CHECKPOINT}: {stored.origin}"}
    if stored.weights:
        header["weights"] = " + ".join(dict.fromkeys(stored.weights.values()))
    if stored.warnings:
        header["warnings"] = list(stored.warnings)
    return replace(store_weights(graph, stored.weights), deployment={**graph.deployment, **header})


def _on_device(graph: CallGraph, device: str) -> CallGraph:
    changed = replace(graph, deployment={**graph.deployment, "device": device})
    return identify(changed, graph.content_digest, "on a device")


def _with_weights(graph: CallGraph, name: str) -> CallGraph:
    header = {key: value for key, value in graph.deployment.items() if key != "warnings"}
    changed = store_weights(graph, what_if_formats(graph, name))
    return replace(changed, deployment={**header, "weights": name, "weights_from": WHAT_IF})


def _with_cache(graphs: Sequence[CallGraph], dtype: str, origin: str) -> tuple[CallGraph, ...]:
    return tuple(
        replace(graph, deployment={**graph.deployment, "cache": dtype, "cache_from": origin})
        for graph in store_cache(graphs, dtype)
    )

"""Decode steps of models cut to a few layers, whole or one rank of a plan, and figures carried on to full depth.

Layers repeat with a period: dense layers first, then layers with experts; windows and full attention in turn. Of two
depths that differ by whole periods every further period adds the same, so the figures of all layers follow exactly.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import llm_perf_opt as lpo
from benchmarks.bounds.traced_models import CONFIGS, smallest_stored_form
from llm_perf_opt.analyses.collectives import collectives_by_call
from llm_perf_opt.analyses.necessary.decoder_needs import DecoderNeeds, decoder_needs
from llm_perf_opt.analyses.stored_formats import store_cache, store_weights
from llm_perf_opt.analyses.time.engine_kernels import fused_kernels
from llm_perf_opt.analyses.time.rank_bound import least_exchanges
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import Role, weight_matrices
from llm_perf_opt.core.collectives import Collective
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.tensor_formats import FP8
from llm_perf_opt.ops.op import KernelKind

BATCH, PROMPT = 16, 64  # of the traces: figures of other batches and contexts follow
_LISTS = ("layer_types", "mlp_layer_types", "indexer_types")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFigures:
    """One decode step of a model with some of its layers.

    `kernels` counts what an engine launches. `vector_bytes`, `collectives` and `least`, those of them that no engine
    can do without, are those of `BATCH` sequences; they grow with the batch.
    """

    layers: int
    needs: DecoderNeeds
    kernels: dict[KernelKind, int]
    vector_bytes: int
    collectives: dict[Collective, int]
    least: dict[Collective, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoDepths:
    """A model at two depths that differ by a whole number of periods."""

    shallow: DecodeFigures
    deep: DecodeFigures
    layers: int  # of the model as released

    def of_all_layers(self, shallow: float, deep: float) -> float:
        """A figure of both depths carried on to all layers."""
        further = (self.layers - self.shallow.layers) / (self.deep.layers - self.shallow.layers)
        return shallow + further * (deep - shallow)

    def exchanges(self, batch: int, *, least: bool = False) -> dict[Collective, float]:
        """The collectives of all layers for another batch; with `least` those that no engine can do without."""
        shallow, deep = (one.least if least else one.collectives for one in (self.shallow, self.deep))
        return {
            replace(one, payload_bytes=max(1, one.payload_bytes * batch // BATCH)): self.of_all_layers(
                shallow.get(one, 0), deep.get(one, 0)
            )
            for one in {*shallow, *deep}
        }


def configuration(model: str) -> dict[str, Any]:
    """The decoder's part of a configuration."""
    found: dict[str, Any] = json.loads((CONFIGS / model / "config.json").read_text(encoding="utf-8"))
    return {**found, **found.get("text_config", {})}


def period(model: str) -> tuple[int, int]:
    """Layers before the repetition begins, and layers of one period."""
    config = configuration(model)
    kinds = config.get("layer_types") or [""]
    every = next(size for size in range(1, len(kinds) + 1) if kinds[size:] == kinds[:-size])
    return int(config.get("first_k_dense_replace") or 0), every


def two_depths(model: str, precision: str, *, is_smallest: bool = False, **plan: int) -> TwoDepths | None:
    """The decode step of a model, whole or rank 0 of a plan; None: the model's own code refuses the plan.

    With `is_smallest` everything is stored as small as any checkpoint of the precision stores it, head and cache too.
    """
    before, every = period(model)
    try:
        shallow, deep = (
            figures_of(model, before + every * periods, precision, is_smallest=is_smallest, **plan)
            for periods in (1, 2)
        )
    except PerfOptError:
        return None
    return TwoDepths(shallow=shallow, deep=deep, layers=configuration(model)["num_hidden_layers"])


def figures_of(model: str, depth: int, precision: str, *, is_smallest: bool = False, **plan: int) -> DecodeFigures:
    """The figures of the model with `depth` layers."""
    graph = _stored(decode_graph(model, depth, **plan), model, precision, is_smallest=is_smallest)
    fused = fused_kernels(graph, least=True)
    counts = {
        kind: sum(n for stage in fused.values() for one, n in stage.items() if one.kind is kind) for kind in KernelKind
    }
    vector = sum(
        one.bytes_moved * n for stage in fused.values() for one, n in stage.items() if one.kind is KernelKind.VECTOR
    )
    return DecodeFigures(
        layers=depth,
        needs=decoder_needs(graph),
        kernels=counts,
        vector_bytes=vector,
        collectives=_together(collectives_by_call(graph).values()),
        least=_together(least_exchanges(graph).values()),
    )


def _together(parts: Iterable[Mapping[Collective, int]]) -> dict[Collective, int]:
    counts: Counter[Collective] = Counter()
    for part in parts:
        counts.update(part)
    return dict(counts)


def _stored(graph: CallGraph, model: str, precision: str, *, is_smallest: bool) -> CallGraph:
    """With weights as checkpoints of the precision store them; head and cache in 16 bits unless `is_smallest`."""
    if precision == "bf16":
        return graph
    smallest = smallest_stored_form(model, precision)
    formats = {role: form for role, form in smallest.items() if is_smallest or role is not Role.HEAD}
    roles = weight_matrices(graph)
    stored = store_weights(graph, {name: formats[role] for name, role in roles.items() if role in formats})
    return store_cache((stored,), FP8)[0] if is_smallest else stored


@cache
def decode_graph(model: str, depth: int, **plan: int) -> CallGraph:
    """One traced step of the model with `depth` layers."""
    config = json.loads((CONFIGS / model / "config.json").read_text(encoding="utf-8"))
    decoder = config.get("text_config", config)
    decoder["num_hidden_layers"] = depth
    for name in _LISTS:
        if decoder.get(name):
            decoder[name] = decoder[name][:depth]
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        options: dict[str, Any] = {"batch": BATCH, "prompt_tokens": PROMPT, **plan}
        trace = lpo.trace(folder, **options)
    return next(graph for graph in trace.graphs if graph.phase == "decode")

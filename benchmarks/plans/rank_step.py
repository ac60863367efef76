"""The time of one decode step of one rank, from figures of a trace: a band, whose middle orders plans.

Products with weights, routed experts, attention and vector kernels are each counted as so many equal kernels, and timed
by the rates that `predict` uses for an optimised engine. Collectives go beside them as in `predict`: behind other work
at the low edge, after it at the high edge. Nothing here was fitted to a served model.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import llm_perf_opt as lpo
from benchmarks.bounds.evaluation import stored
from benchmarks.bounds.floors import PRODUCT_TYPES
from benchmarks.records import CONFIGS, configuration
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.collectives import Collective
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.costs.collectives import collectives_by_call
from llm_perf_opt.costs.necessary.decoder_needs import DecoderNeeds, ExpertLayers, decoder_needs
from llm_perf_opt.costs.necessary.stage_needs import ExpertReads
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.collective_time import band_of, beside, collective_time
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution, kernel_time
from llm_perf_opt.timing.engine_kernels import fused_kernels
from llm_perf_opt.timing.lower_bound import fastest_peak, is_known, lower_bound
from llm_perf_opt.timing.rank_bound import least_exchanges
from llm_perf_opt.timing.rates import NOTHING, Band

_EXPERT_KERNELS = 2  # of a layer: up with gate, and down
# The largest of so many normal variables, in standard deviations above their mean.
_LARGEST_OF = {1: 0.0, 2: 0.5642, 4: 1.0294, 8: 1.4236, 16: 1.7660}


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """By what the ranks of a plan divide the whole model's work; 1 everywhere for figures that are a rank's already.

    `batch` divides sequences, `weights` what every token meets, `heads` attention's products, `cache` what it reads,
    `experts` the routed ones. `whole_experts` are the ranks among which experts are dealt out whole, instead of each
    being split: the rank that most tokens choose is the slowest.
    """

    batch: int = 1
    weights: int = 1
    heads: int = 1
    cache: int = 1
    experts: int = 1
    whole_experts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a step serves, on what, and in which precision."""

    batch: int  # sequences of all ranks
    context: int
    precision: str
    cluster: Cluster

    @property
    def dtype(self) -> str:
        """The fastest type of the precision that the device multiplies."""
        device = self.cluster.device
        known = [dtype for dtype in PRODUCT_TYPES[self.precision] if is_known(dtype, device)]
        return max(known, key=lambda dtype: fastest_peak(dtype, device))


def step_band(depths: TwoDepths, load: Load, share: Share, exchanges: Mapping[Collective, float]) -> Band:
    """A step of all layers with these collectives."""
    device = load.cluster.device
    rates = DataSheetRates(device, Execution.FUSED)
    kernels = list(_kernels(depths, load, share))
    busy = NOTHING
    for kernel, count in kernels:
        busy += kernel_time(kernel, device, rates.priors).band.times(count)
    flops = sum(kernel.flops * count for kernel, count in kernels)
    read = sum(kernel.bytes_moved * count for kernel, count in kernels if kernel.kind is not KernelKind.VECTOR)
    busy = busy.at_least(rates.least_s(lower_bound({load.dtype: round(flops)}, round(read), device)))
    return beside(Band(busy.low, busy.high), links_band(exchanges, load.cluster))


def links_band(exchanges: Mapping[Collective, float], cluster: Cluster) -> Band:
    """All collectives one after the other, as an engine runs them."""
    band = NOTHING
    for collective, count in exchanges.items():
        each = band_of(collective_time(collective, cluster, by_engine=True))
        band += (NOTHING if each is None else each).times(count)
    return Band(band.low, band.high)


def _kernel(**fields: Any) -> Kernel:
    return Kernel(skippable_flops=0, **fields)


def _kernels(depths: TwoDepths, load: Load, share: Share) -> Iterator[tuple[Kernel, float]]:
    """Equal kernels of each kind, and how many, of all layers."""
    batch = max(1, round(load.batch / share.batch))

    def whole(figure: Callable[[DecodeFigures], float]) -> float:
        return depths.of_all_layers(figure(depths.shallow), figure(depths.deep))

    products = whole(_product_kernels)
    macs = whole(lambda one: sum(product.macs for product in one.needs.products)) / share.weights / products
    yield (
        _kernel(
            kind=KernelKind.MATMUL,
            dtype=load.dtype,
            flops=round(2 * macs * batch),
            bytes_moved=round(whole(lambda one: one.needs.weight_bytes) / share.weights / products),
            rows=batch,
            weights=round(macs),
        ),
        products,
    )
    if (layers := whole(_expert_layers)) > 0:
        block = depths.deep.needs.experts[0]
        read = depths.deep.needs.step(batch=load.batch, context=1).distinct_experts[0]
        yield _experts(block, read, load, share), _EXPERT_KERNELS * layers
    attentions = whole(lambda one: sum(layer.layers for layer in one.needs.attentions))
    pairs = whole(lambda one: sum(layer.macs(batch, 1, load.context) for layer in one.needs.attentions))
    cache = whole(
        lambda one: sum(layer.cache_bytes(load.context) for layer in one.needs.attentions) + one.needs.state_bytes
    )
    yield (
        _kernel(
            kind=KernelKind.ATTENTION,
            dtype="bfloat16",
            flops=round(2 * pairs / share.heads / attentions),
            bytes_moved=round(batch * cache / share.cache / attentions),
            sequences=batch,
            queries=1,
        ),
        attentions,
    )
    vectors = whole(lambda one: one.kernels[KernelKind.VECTOR])
    moved = round(whole(lambda one: one.vector_bytes) / BATCH * batch / vectors)
    yield (
        _kernel(
            kind=KernelKind.VECTOR,
            dtype="bfloat16",
            flops=0,
            bytes_moved=moved,
            avoidable_bytes=moved,
        ),
        vectors,
    )


def _experts(block: ExpertLayers, read: ExpertReads, load: Load, share: Share) -> Kernel:
    """One of the two products of a layer's routed experts, on the rank that gets most under uniform routing."""
    rows, touched = read.tokens * read.chosen / share.experts, read.distinct / share.experts
    ranks = share.whole_experts
    if ranks > 1:
        chance = read.distinct / block.experts
        rows += _LARGEST_OF[ranks] * math.sqrt(rows * (1 - 1 / ranks))
        touched += _LARGEST_OF[ranks] * math.sqrt(block.experts / ranks * chance * (1 - chance))
        touched = min(touched, block.experts / ranks)
    return _kernel(
        kind=KernelKind.MATMUL,
        dtype=load.dtype,
        flops=round(2 * rows * block.macs_each / _EXPERT_KERNELS),
        bytes_moved=round(touched * block.bytes_each / _EXPERT_KERNELS),
        rows=max(1, round(read.tokens * read.chosen / max(read.distinct, 1))),
        weights=round(touched * block.macs_each / _EXPERT_KERNELS),
    )


def _expert_layers(figures: DecodeFigures) -> int:
    return sum(block.layers for block in figures.needs.experts)


def _product_kernels(figures: DecodeFigures) -> int:
    return max(1, figures.kernels[KernelKind.MATMUL] - _EXPERT_KERNELS * _expert_layers(figures))


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
    graph = stored(decode_graph(model, depth, **plan), model, precision, is_smallest=is_smallest)
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

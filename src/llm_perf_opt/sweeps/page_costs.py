"""What a page costs: pixels, crops, tokens, FLOPs, cache and time; and what one more crop adds to each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.records import Json
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.costs.memory.kv_cache import DECODE, kv_cache
from llm_perf_opt.costs.stage_costs import stage_costs
from llm_perf_opt.timing.predict import predict, total_wall
from llm_perf_opt.timing.rates import Band, RateSource

Grid = tuple[int, int]  # columns, rows
NOT_CUT: Grid = (1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """One workload as traced. `vision_flops` are those of all stages before the decoder, projector included.

    Times are the ends of a band on one device, and None without a device; a decode step is one at this context.
    """

    grid: Grid | None  # None: the model does not cut pages
    image_tokens: int | None
    context_tokens: int | None
    vision_flops: int | None
    prefill_flops: int | None  # of the decoder
    cache_bytes: int | None
    prefill_low_s: float | None
    prefill_high_s: float | None
    decode_step_low_s: float | None
    decode_step_high_s: float | None

    @property
    def crops(self) -> int | None:
        """Tiles beside the global view; a grid of one is a page that is not cut."""
        if self.grid is None:
            return None
        return 0 if self.grid == NOT_CUT else self.grid[0] * self.grid[1]

    @property
    def flops(self) -> int | None:
        """Of the whole prefill."""
        return known_sum((self.vision_flops, self.prefill_flops))


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCost:
    """One page. Pages that are cut alike share one run."""

    name: str
    pixels: int | None  # None: only its crops were given
    run: RunCost


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedCrops:
    """The last row of crops of a grid, or its last column if there is one row: what it adds to the smaller grid.

    The figures are for each of the `crops` in it: differences of two runs, divided.
    """

    smaller: Grid
    grid: Grid
    crops: int
    image_tokens: float | None
    vision_flops: float | None
    prefill_flops: float | None
    cache_bytes: float | None
    prefill_low_s: float | None
    prefill_high_s: float | None


def run_cost(graphs: Sequence[CallGraph], rates: RateSource | None) -> RunCost:
    """The figures of one traced workload: its prefill, and a decode step if there is one."""
    prefill = graphs[0]
    stages = stage_costs(prefill).ran
    decode = next((graph for graph in graphs if graph.phase == DECODE), None)
    cache = kv_cache(graphs)
    header = prefill.workload
    whole = None if rates is None else _ends(total_wall(predict(prefill, rates)))
    step = None if rates is None or decode is None else _step(decode, rates)
    return RunCost(
        grid=_grid(header),
        image_tokens=_count(header, "image_tokens"),
        context_tokens=_count(header, "context_tokens"),
        vision_flops=known_sum((stage.flops for stage in stages if stage.name != prefill.phase), empty=0),
        prefill_flops=known_sum((stage.flops for stage in stages if stage.name == prefill.phase), empty=0),
        cache_bytes=None if cache is None else cache.bytes,
        prefill_low_s=None if whole is None else whole[0],
        prefill_high_s=None if whole is None else whole[1],
        decode_step_low_s=None if step is None else step[0],
        decode_step_high_s=None if step is None else step[1],
    )


def _grid(header: Mapping[str, Json]) -> Grid | None:
    found = header.get("crops")
    if isinstance(found, (list, tuple)) and len(found) == 2 and all(type(side) is int for side in found):
        return found[0], found[1]
    return None


def _count(header: Mapping[str, Json], name: str) -> int | None:
    found = header.get(name)
    return found if type(found) is int else None


def _ends(band: Band) -> tuple[float, float]:
    return band.low, band.high


def _step(decode: CallGraph, rates: RateSource) -> tuple[float, float] | None:
    steps = decode.runtime.get("decode_steps")
    return _ends(total_wall(predict(decode, rates)).times(1 / steps)) if type(steps) is int and steps else None


def smaller_grid(grid: Grid) -> Grid | None:
    """The grid without its last row of crops, or without its last column if there is one row; None: it is not cut."""
    columns, rows = grid
    if grid == NOT_CUT:
        return None
    return (columns, rows - 1) if rows > 1 else (columns - 1, 1)


def added_crops(smaller: RunCost, larger: RunCost) -> AddedCrops | None:
    """What one crop of the last row or column adds; None where the two runs do not differ in crops."""
    if smaller.grid is None or larger.grid is None or smaller.crops is None or larger.crops is None:
        return None
    crops = larger.crops - smaller.crops
    if crops <= 0:
        return None

    def each(before: float | None, after: float | None) -> float | None:
        return None if before is None or after is None else (after - before) / crops

    return AddedCrops(
        smaller=smaller.grid,
        grid=larger.grid,
        crops=crops,
        image_tokens=each(smaller.image_tokens, larger.image_tokens),
        vision_flops=each(smaller.vision_flops, larger.vision_flops),
        prefill_flops=each(smaller.prefill_flops, larger.prefill_flops),
        cache_bytes=each(smaller.cache_bytes, larger.cache_bytes),
        prefill_low_s=each(smaller.prefill_low_s, larger.prefill_low_s),
        prefill_high_s=each(smaller.prefill_high_s, larger.prefill_high_s),
    )

"""Whether a deployment serves a batch of sequences of some length, the most of either, and the table of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.collectives import Collective, CollectiveKind, collective_of
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.report import Column, Kind, Note, Report, Table, table_of
from llm_perf_opt.core.units import format_bytes, format_ratio
from llm_perf_opt.serving.engines import (
    DEFAULT_SERVING_ENGINE,
    BatchLimits,
    MemoryTerm,
    ServingEngine,
    default_limits,
    total_bytes,
    visible_bytes,
)
from llm_perf_opt.serving.held_memory import (
    CachePerSequence,
    cache_per_sequence,
    engine_weights,
    stage_of,
    traced_plan,
    trained_context,
)
from llm_perf_opt.serving.working_memory import (
    FORWARD,
    SAMPLING,
    EncoderItem,
    WorkingMemory,
    forward_widths,
    working_memory,
)

BY_MEMORY, BY_TRAINING, BY_NOTHING = "memory", "trained length", "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """The account of one rank's memory: what it has to hold, whatever the batch. None: the trace does not tell."""

    plan: ParallelPlan  # of which it is a rank
    engine: ServingEngine
    limits: BatchLimits
    weights: tuple[MemoryTerm, ...]
    working: WorkingMemory | None
    cache: CachePerSequence | None
    trained_context: int | None

    @property
    def devices(self) -> int:
        """The devices that hold the model together."""
        return self.plan.replica_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFit:
    """The answer for one deployment. All bytes are per device; None is unknown.

    `room_bytes` is what is left for the cache, negative where the weights alone are too much. `largest_context` is at
    most the trained length where that is known; `context_limit` says what ends it, and with `nothing` it is None.
    """

    device: Device
    devices: int
    batch: int
    context: int
    utilisation: float
    memory_bytes: int
    budget_bytes: int
    weights_bytes: int | None
    working_bytes: int | None
    outside_torch_bytes: int | None
    room_bytes: int | None
    cache_tokens: int | None  # that the room holds, in whole blocks, in sequences of this context
    cache_bytes: int | None  # of the whole batch at this context
    fits: bool | None
    largest_batch: int | None  # at this context
    largest_context: int | None  # for this batch
    context_limit: str | None


def rank_memory(
    graphs: Sequence[CallGraph],
    device: Device,
    *,
    plan: ParallelPlan | None = None,
    engine: ServingEngine = DEFAULT_SERVING_ENGINE,
    limits: BatchLimits | None = None,
    encoder: EncoderItem | None = None,
) -> RankMemory:
    """Read from the traced phases of one run what a rank of a plan holds, by default of the plan that was traced.

    A trace of the whole model answers for every plan, a trace of a rank for its own. Without a decode step neither the
    cache nor the working memory is known. Where weights are fully sharded, two layers are there whole: one runs while
    the next is gathered.
    """
    graph, decode = graphs[0], _decode_step(graphs)
    plan, limits = plan or traced_plan(graph), limits or default_limits(device)
    is_last = plan.stage_of(plan.rank or 0) == plan.pp - 1
    widths = None if decode is None else forward_widths(decode, plan=plan, is_last=is_last)
    weights = engine_weights(graph, device, engine=engine, plan=plan, decode=decode)
    gathered = 2 * max(
        (collective.payload_bytes for collective in _collectives(graph) if _gathers_weights(collective, plan)),
        default=0,
    )
    terms = (MemoryTerm(name="weights of two layers, gathered", bytes=gathered),) if gathered else ()
    return RankMemory(
        plan=plan,
        engine=engine,
        limits=limits,
        weights=(*weights, *terms),
        working=None
        if widths is None
        else working_memory(widths, engine=engine, limits=limits, device=device, encoder=encoder),
        cache=None if decode is None else cache_per_sequence(decode, plan=plan, stage=stage_of(decode, plan)),
        trained_context=trained_context(graph),
    )


def memory_of_ranks(
    graphs: Sequence[CallGraph], device: Device, plan: ParallelPlan, *, limits: BatchLimits
) -> tuple[RankMemory, ...]:
    """What each kind of rank of a plan holds, whatever the length of a sequence."""
    ranks = (plan.of_rank(rank) for rank in plan.kinds_of_rank())
    return tuple(rank_memory(graphs, device, plan=rank, limits=limits) for rank in ranks)


def fullest_fit(memory: Sequence[RankMemory], device: Device, *, context: int) -> ServingFit:
    """The rank of a plan with room for the fewest tokens: it sets how many blocks every rank hands out."""
    return min((fit_of(rank, device, batch=1, context=context) for rank in memory), key=_tokens)


def _tokens(fit: ServingFit) -> int:
    return -1 if fit.cache_tokens is None else fit.cache_tokens


def _decode_step(graphs: Sequence[CallGraph]) -> CallGraph | None:
    return next((graph for graph in graphs if graph.phase == "decode" and graph.storages is not None), None)


def fit_of(
    needs: RankMemory, device: Device, *, batch: int, context: int, utilisation: float | None = None
) -> ServingFit:
    """The fit of needs that were read from a trace; by default at the engine's own share of the memory."""
    return serving_fit(
        weights_bytes=total_bytes(needs.weights),
        working_bytes=None if needs.working is None else needs.working.bytes,
        cache=needs.cache,
        device=device,
        devices=needs.devices,
        batch=batch,
        context=context,
        utilisation=needs.engine.utilisation if utilisation is None else utilisation,
        outside_torch_bytes=needs.engine.outside_torch(needs.plan),
        trained_context=needs.trained_context,
    )


def serving_fit(
    *,
    weights_bytes: int | None,
    working_bytes: int | None,
    cache: CachePerSequence | None,
    device: Device,
    batch: int,
    context: int,
    devices: int = 1,
    utilisation: float = DEFAULT_SERVING_ENGINE.utilisation,
    outside_torch_bytes: int | None = 0,
    memory_bytes: int | None = None,
    trained_context: int | None = None,
) -> ServingFit:
    """Share of the memory - weights - working memory - what is outside PyTorch = room; the cache has to fit in it.

    Every figure is per device. `memory_bytes` is what a program sees of it, by default the device's own figure
    less the driver's reserve.
    """
    _require(batch, context, devices, utilisation)
    memory_bytes = visible_bytes(device) if memory_bytes is None else memory_bytes
    budget_bytes = int(memory_bytes * utilisation)
    room = _left(budget_bytes, weights_bytes, working_bytes, outside_torch_bytes)
    cache_bytes = None if cache is None else batch * cache.bytes_at(context)
    longest, limit = (None, None) if cache is None or room is None else _longest(cache, room, batch, trained_context)
    return ServingFit(
        device=device,
        devices=devices,
        batch=batch,
        context=context,
        utilisation=utilisation,
        memory_bytes=memory_bytes,
        budget_bytes=budget_bytes,
        weights_bytes=weights_bytes,
        working_bytes=working_bytes,
        outside_torch_bytes=outside_torch_bytes,
        room_bytes=room,
        cache_tokens=None if room is None or cache is None else cache.tokens_in(room, context),
        cache_bytes=cache_bytes,
        fits=None if room is None or cache_bytes is None else cache_bytes <= room,
        largest_batch=None if room is None or cache is None else _most(cache, room, context),
        largest_context=longest,
        context_limit=limit,
    )


def _require(batch: int, context: int, devices: int, utilisation: float) -> None:
    if min(batch, context, devices) < 1 or not 0 < utilisation <= 1:
        raise UsageError(
            f"Cannot tell whether {batch} sequences of {context} tokens fit on {devices} devices at {utilisation}.",
            why="batch, context and devices begin at 1, and the share of the memory is above 0 and at most 1",
            fix="give positive whole numbers, and a utilisation such as 0.9",
        )


def _left(budget_bytes: int, *parts: int | None) -> int | None:
    known = [part for part in parts if part is not None]
    return budget_bytes - sum(known) if len(known) == len(parts) else None


def _most(cache: CachePerSequence, room: int, context: int) -> int | None:
    """Sequences that fit; None where a sequence takes nothing, so that memory sets no limit."""
    each = cache.bytes_at(context)
    if not each:
        return None
    return max(0, room // each)


def _longest(cache: CachePerSequence, room: int, batch: int, trained: int | None) -> tuple[int | None, str]:
    """The longest context for which `batch` sequences fit, and what ends it."""

    def fits(context: int) -> bool:
        return batch * cache.bytes_at(context) <= room

    if trained is not None and fits(trained):
        return trained, BY_TRAINING
    longest_window = max((layer.window or 1 for layer in cache.layers), default=1)
    if trained is None and cache.is_bounded and fits(longest_window):
        return None, BY_NOTHING
    return _last_true(fits), BY_MEMORY


def _last_true(holds: Callable[[int], bool]) -> int:
    """The largest number for which a condition holds that ends somewhere; 0 where it never holds."""
    if not holds(1):
        return 0
    high = 1
    while holds(2 * high):
        high *= 2
    low, end = high, 2 * high
    while end - low > 1:
        middle = (low + end) // 2
        low, end = (middle, end) if holds(middle) else (low, middle)
    return low


_MOMENTS = {SAMPLING: "sampling", FORWARD: "the forward of a whole chunk"}


def serving_fit_table(fits: Sequence[ServingFit]) -> Table:
    """One row per deployment of the same batch and context; bytes are per device."""
    questions = {(fit.batch, fit.context) for fit in fits}
    if len(questions) != 1:
        raise ValueError(f"a table of serving fits is about one batch and one context, not about {sorted(questions)}")
    batch, context = questions.pop()
    return table_of(
        f"Does it serve {batch:,} {'sequence' if batch == 1 else 'sequences'} of {context:,} tokens?",
        fits,
        {
            Column("devices"): lambda fit: f"{fit.devices} x {fit.device.name}" if fit.devices > 1 else fit.device.name,
            Column("serves"): lambda fit: None if fit.fits is None else "yes" if fit.fits else "no",
            Column("largest batch", Kind.COUNT): lambda fit: fit.largest_batch,
            Column("largest context", Kind.COUNT): lambda fit: fit.largest_context,
            Column("memory seen", Kind.BYTES): lambda fit: fit.memory_bytes,
            Column("share in use", Kind.BYTES): lambda fit: fit.budget_bytes,
            Column("engine weights", Kind.BYTES): lambda fit: fit.weights_bytes,
            Column("working memory", Kind.BYTES): lambda fit: fit.working_bytes,
            Column("outside PyTorch", Kind.BYTES): lambda fit: fit.outside_torch_bytes,
            Column("room for cache", Kind.BYTES): lambda fit: fit.room_bytes,
            Column("cache asked for", Kind.BYTES): lambda fit: fit.cache_bytes,
        },
        formulas={
            "room for cache": ("difference", "share in use", "engine weights", "working memory", "outside PyTorch")
        },
        origin="what an engine keeps on each GPU (docs/how/memory.md)",
    )


TracedFit = tuple[RankMemory, ServingFit]


def traced_fit(graphs: Sequence[CallGraph], device: Device) -> TracedFit | None:
    """The needs of a traced run, and whether `device` serves its batch and context; None where nothing was decoded."""
    decode = _decode_step(graphs)
    context = None if decode is None else decode.workload.get("context_tokens")
    if decode is None or not isinstance(context, int) or context < 1:
        return None
    steps = decode.runtime.get("decode_steps", 1)
    needs = rank_memory(graphs, device)
    return needs, fit_of(needs, device, batch=decode.workload.get("batch", 1), context=context + steps)


def fullest_traced_fit(kinds: Sequence[Sequence[CallGraph]], device: Device) -> TracedFit | None:
    """The traced fit of the rank that holds the fewest tokens, among all kinds of rank."""
    fits = [traced_fit(graphs, device) for graphs in kinds]
    known = [fit for fit in fits if fit is not None]
    return min(known, key=lambda fit: _tokens(fit[1])) if len(known) == len(fits) else None


def _collectives(graph: CallGraph) -> Iterator[Collective]:
    return (collective for kind in graph.op_kinds if (collective := collective_of(kind)) is not None)


def _gathers_weights(collective: Collective, plan: ParallelPlan) -> bool:
    """Fully sharded ranks are as far apart as there are ranks of tensor parallelism."""
    is_fully_sharded = collective.group.size == plan.fsdp > 1 and collective.group.stride == plan.tp
    return collective.kind is CollectiveKind.ALL_GATHER and is_fully_sharded


def with_serving_fit(report: Report, traced: TracedFit | None) -> Report:
    """The report with the answer for the traced batch and context; as it is where nothing was decoded."""
    if traced is None:
        return report
    needs, fit = traced
    return replace(
        report,
        tables=(*report.tables, serving_fit_table([fit])),
        notes=(*report.notes, *serving_notes(needs, fit)),
    )


def serving_notes(needs: RankMemory, fit: ServingFit) -> Iterator[Note]:
    """What the answer rests on, and what ends the context."""
    by_memory = ", both by memory alone" if fit.context_limit == BY_MEMORY else ""
    yield Note(
        f"{needs.engine.name} uses {format_ratio(fit.utilisation)} of the {format_bytes(fit.memory_bytes)} it sees; "
        f"prefill in chunks of {needs.limits.chunk_tokens:,} tokens, at most {needs.limits.sequences:,} sequences at a "
        f"time. Largest batch at this context, largest context for this batch{by_memory}."
    )
    if fit.cache_tokens is not None and needs.cache is not None:
        yield Note(
            f"The room holds {fit.cache_tokens:,} tokens of such sequences, in blocks of {needs.cache.block_tokens}."
        )
    if needs.devices > 1:
        yield Note(
            f"Bytes are per rank; {needs.devices} ranks hold the model together. Weight matrices are sharded, and so "
            "is the cache as far as there are key-value heads."
        )
    if needs.working is not None:
        yield Note(f"The working memory is largest in {_MOMENTS[needs.working.moment]}.")
    if fit.context_limit == BY_TRAINING:
        yield Note("The largest context is the trained length; the memory would hold more.")
    if fit.context_limit == BY_NOTHING:
        yield Note("The cache stops growing, so the memory does not limit the context.")

"""How much memory a device needs for a phase, part by part, whether a given one has it, and what helps if not.

What helps is sharding: how many devices hold the run at least, and which weights the plan replicates on every rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, deepest_claim, found_once, stage_names, stage_of_calls
from llm_perf_opt.core.callgraph.records import Parameter
from llm_perf_opt.core.callgraph.stored_findings import kept_in_store
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.parallel_plan import layer_pattern, plan_in, replicated_in
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Table, table_of
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.costs.memory.kv_cache import TracedKvCache, cached_storages, kv_cache
from llm_perf_opt.costs.memory.live_memory import GIVEN, Peak, Timeline, living_storages, peak_of, timeline

_WEIGHTS = ("parameter", "buffer")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """One stage of one phase. `input_bytes` is what its modules are given; the peak counts whatever is alive then.

    `kv_bytes` is the part of the peak that belongs to the cache, None where no phase shows what the cache is.
    """

    phase: str
    stage: str
    weight_bytes: int
    input_bytes: int | None
    kv_bytes: int | None
    peak: Peak


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """What a device must hold at once to run one phase: all weights, constants, and what is alive at the peak.

    `peak_kv_bytes` and `peak_input_bytes` are parts of the peak's bytes and not added to them again: the cache, be it
    what the phase began with or what it made of it, and the other inputs. `constant_bytes` is what the code brings
    along that is no weight: tables it made before, inputs that were not prepared for the phase.
    """

    phase: str
    weight_bytes: int
    buffer_bytes: int
    constant_bytes: int | None
    peak: Peak | None  # None: the trace follows no memory
    peak_kv_bytes: int | None
    peak_input_bytes: int | None
    stages: tuple[StageMemory, ...]
    timeline: Timeline | None

    @property
    def input_bytes(self) -> int | None:
        """Inputs that are alive at the peak and constants, the cache apart."""
        if self.peak_input_bytes is None or self.constant_bytes is None:
            return None
        return self.peak_input_bytes + self.constant_bytes

    @property
    def peak_other_bytes(self) -> int | None:
        """Activations at the peak, inputs and cache apart; None where no phase shows what the cache is."""
        if self.peak is None or self.peak_kv_bytes is None or self.peak_input_bytes is None:
            return None
        return self.peak.bytes - self.peak_kv_bytes - self.peak_input_bytes

    @property
    def total_bytes(self) -> int | None:
        """Weights, buffers, constants and the peak together; None while one of them is unknown."""
        if self.peak is None or self.constant_bytes is None:
            return None
        return self.weight_bytes + self.buffer_bytes + self.constant_bytes + self.peak.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMemory:
    """All phases of one run, and the cache that they share."""

    phases: tuple[PhaseMemory, ...]
    cache: TracedKvCache | None

    @property
    def total_bytes(self) -> int | None:
        """What the most demanding phase needs; None while one phase is unknown."""
        totals = [phase.total_bytes for phase in self.phases]
        known = [total for total in totals if total is not None]
        return max(known) if known and len(known) == len(totals) else None


@found_once
@kept_in_store("memory of a run", RunMemory)
def run_memory(graphs: Sequence[CallGraph]) -> RunMemory:
    """The memory of every phase of a run."""
    cache = kv_cache(graphs)
    return RunMemory(phases=tuple(_phase(graph, cache) for graph in graphs), cache=cache)


def resident_bytes(graph: CallGraph) -> int | None:
    """What a device holds from the first op of a phase to the last: weights, buffers and constants; None: not known."""
    if graph.storages is None:
        return None
    return sum(size_bytes for _, size_bytes, _ in _weights(graph)) + _constant_bytes(graph)


def stored_weights(graph: CallGraph) -> Iterator[tuple[Parameter, int]]:
    """Every weight and its bytes, tied ones once and buffers apart."""
    return ((parameter, size_bytes) for parameter, size_bytes, origin in _weights(graph) if origin == "parameter")


def weight_bytes(graph: CallGraph) -> int:
    """Bytes of all weights of a phase, tied ones once and buffers apart."""
    return sum(size_bytes for _, size_bytes in stored_weights(graph))


def _phase(graph: CallGraph, cache: TracedKvCache | None) -> PhaseMemory:
    curve = timeline(graph)
    peak = None if curve is None else peak_of(graph, curve.whole)
    weights = {origin: sum(size for _, size, kind in _weights(graph) if kind == origin) for origin in _WEIGHTS}
    return PhaseMemory(
        phase=graph.phase,
        weight_bytes=weights["parameter"],
        buffer_bytes=weights["buffer"],
        constant_bytes=None if peak is None else _constant_bytes(graph),
        peak=peak,
        peak_kv_bytes=None if peak is None else _kv_bytes(graph, cache, peak.op_row),
        peak_input_bytes=None if peak is None else _input_bytes(graph, cache, peak.op_row),
        stages=() if curve is None else tuple(_stages(graph, curve, cache)),
        timeline=curve,
    )


def _stages(graph: CallGraph, curve: Timeline, cache: TracedKvCache | None) -> Iterator[StageMemory]:
    owned = weight_bytes_by_stage(graph)
    given = _given_by_stage(graph)
    for stage in curve.stages:
        peak = peak_of(graph, stage)
        yield StageMemory(
            phase=graph.phase,
            stage=stage.stage,
            weight_bytes=owned[stage.stage],
            input_bytes=given[stage.stage],
            kv_bytes=_kv_bytes(graph, cache, peak.op_row),
            peak=peak,
        )


def weight_bytes_by_stage(graph: CallGraph) -> dict[str, int]:
    """Stage -> bytes of the weights and buffers it owns by name; tied ones count once, where they are named first."""
    claims = {path: name for name, paths in graph.stages for path in paths}
    owned = dict.fromkeys(stage_names(graph), 0)
    for parameter, size_bytes, _ in _weights(graph):
        owned[deepest_claim(parameter.name.rpartition(".")[0], claims) or graph.phase] += size_bytes
    return owned


def _weights(graph: CallGraph) -> Iterator[tuple[Parameter, int, str]]:
    """Every weight and buffer once, its bytes, and which of the two it is."""
    seen: set[int] = set()
    for parameter in graph.parameters:
        if parameter.storage in seen:
            continue
        is_stored = parameter.storage >= 0 and graph.storages is not None
        if is_stored:
            seen.add(parameter.storage)
        size_bytes = graph.storages.bytes[parameter.storage] if graph.storages and is_stored else None
        yield (
            parameter,
            tensor_bytes(parameter.meta) if size_bytes is None else size_bytes,
            "buffer" if parameter.is_buffer else "parameter",
        )


def _constant_bytes(graph: CallGraph) -> int:
    """Memory that was there before the run and is neither a weight nor prepared for it."""
    assert graph.storages is not None, "a graph that has a peak has storages"
    rows = zip(graph.storages.origin, graph.storages.bytes, strict=True)
    return sum(size_bytes for origin, size_bytes in rows if origin == "external")


def _input_bytes(graph: CallGraph, cache: TracedKvCache | None, op_row: int) -> int:
    """Bytes of inputs alive while an op runs; what the cache holds of them counts there."""
    assert graph.storages is not None, "a graph that has a peak has storages"
    storages, cached = graph.storages, frozenset() if cache is None else cached_storages(graph, cache)
    alive = (row for row in living_storages(storages, op_row) if row not in cached)
    return sum(storages.bytes[row] for row in alive if storages.origin[row] == GIVEN)


def _given_by_stage(graph: CallGraph) -> dict[str, int]:
    """Stage -> bytes behind the tensors that come in where a call enters the stage from another, weights apart."""
    assert graph.storages is not None, "a graph that has a timeline has storages"
    calls, names, stages = calls_of(graph), stage_names(graph), stage_of_calls(graph)
    given: dict[str, set[int]] = {name: set() for name in names}
    start = 0
    for call, (parent, count) in enumerate(zip(calls.parent, calls.input_count, strict=True)):
        if parent < 0 or stages[parent] != stages[call]:
            given[names[stages[call]]].update(calls.input_storages[start : start + count])
        start += count
    return {
        name: sum(graph.storages.bytes[row] for row in rows if graph.storages.origin[row] not in _WEIGHTS)
        for name, rows in given.items()
    }


def _kv_bytes(graph: CallGraph, cache: TracedKvCache | None, op_row: int) -> int | None:
    if cache is None or graph.storages is None:
        return None
    rows = cached_storages(graph, cache)
    return sum(graph.storages.bytes[row] for row in living_storages(graph.storages, op_row) if row in rows)


_PHASE = Column("phase")
_ANSWER = (Column("fits"), Column("of the device", Kind.RATIO), Column("device memory", Kind.BYTES))
_NEED = (
    Column("needed in all", Kind.BYTES),
    Column("weights", Kind.BYTES),
    Column("buffers", Kind.BYTES),
    Column("inputs", Kind.BYTES),
    Column("KV cache at the peak", Kind.BYTES),
    Column("other activations at the peak", Kind.BYTES),
)


_LIVE = "storages that live at the peak of the trace, with the weights and buffers of the model (docs/how/memory.md)"
_FORMULAS = {
    "needed in all": ("sum", *(column.name for column in _NEED[1:])),
    "of the device": ("quotient", "needed in all", "device memory"),
}


def need_table(memory: RunMemory, device: Device | None = None) -> Table:
    """A row per phase, the answer first; a device adds whether it fits, the share that is needed, and its memory."""
    if device is None:
        rows = tuple((phase.phase, *_need(phase)) for phase in memory.phases)
        return Table(
            title="Memory that a device needs", columns=(_PHASE, *_NEED), rows=rows, formulas=_FORMULAS, origin=_LIVE
        )
    rows = tuple((phase.phase, *_answer(phase, device), *_need(phase)) for phase in memory.phases)
    return Table(
        title=f"Does this forward fit on {device.name}?",
        columns=(_PHASE, *_ANSWER, *_NEED),
        rows=rows,
        formulas=_FORMULAS,
        origin=f"{_LIVE}; the memory of the device is its data sheet's",
    )


def _need(phase: PhaseMemory) -> tuple[Cell, ...]:
    return (
        phase.total_bytes,
        phase.weight_bytes,
        phase.buffer_bytes,
        phase.input_bytes,
        phase.peak_kv_bytes,
        phase.peak_other_bytes,
    )


def _answer(phase: PhaseMemory, device: Device) -> tuple[Cell, ...]:
    if phase.total_bytes is None:
        return None, None, device.memory_bytes
    fits = "yes" if phase.total_bytes <= device.memory_bytes else "no"
    return fits, phase.total_bytes / device.memory_bytes, device.memory_bytes


_SHOWN = 8
_LATENT = ("kv_a_proj", "kv_b_proj", "q_a_proj", "q_b_proj")  # as the code of latent attention names its matrices


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedWeights:
    """Parameters of one name in all layers, which each rank holds whole."""

    name: str  # a `*` stands for the number of a layer
    parameters: int
    bytes: int


def replicated_weights(graph: CallGraph) -> tuple[ReplicatedWeights, ...] | None:
    """The largest first; None: the trace does not say which parameters were spread."""
    patterns = replicated_in(graph.deployment)
    if patterns is None:
        return None
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for parameter, size_bytes in stored_weights(graph):
        if (pattern := layer_pattern(parameter.name)) in patterns:
            sizes[pattern] += size_bytes
            counts[pattern] += 1
    return tuple(
        ReplicatedWeights(name=name, parameters=counts[name], bytes=size) for name, size in sizes.most_common()
    )


def replicated_table(replicated: Sequence[ReplicatedWeights], weight_bytes: int) -> Table:
    """The largest, and the others in one row."""
    rest = replicated[_SHOWN:]
    shown = [*replicated[:_SHOWN]]
    if rest:
        name = f"{len(rest)} more names"
        shown.append(
            ReplicatedWeights(
                name=name, parameters=sum(row.parameters for row in rest), bytes=sum(row.bytes for row in rest)
            )
        )
    total = ReplicatedWeights(
        name="total", parameters=sum(row.parameters for row in replicated), bytes=sum(row.bytes for row in replicated)
    )
    return table_of(
        "Weights that are replicated on every rank",
        shown,
        {
            Column("parameters"): lambda row: row.name,
            Column("count", Kind.COUNT): lambda row: row.parameters,
            Column("bytes", Kind.BYTES): lambda row: row.bytes,
            Column("of the rank's weights", Kind.RATIO): lambda row: row.bytes / weight_bytes if weight_bytes else None,
        },
        total=total,
    )


def spreads_little(replicated_bytes: int | None, weight_bytes: int) -> bool:
    """Whether most weights of a rank are replicated on every rank, so that more ranks hardly help."""
    return replicated_bytes is not None and 2 * replicated_bytes > weight_bytes


def replicated_notes(graph: CallGraph, replicated: Sequence[ReplicatedWeights], weight_bytes: int) -> Iterator[Note]:
    """How much of a rank the plan replicates, and what serving engines do with it."""
    plan, same_bytes = plan_in(graph.deployment), sum(weights.bytes for weights in replicated)
    if plan is None or not same_bytes:
        return
    text = f"{format_bytes(same_bytes)} of the {format_bytes(weight_bytes)} of weights on this rank are replicated: "
    if spreads_little(same_bytes, weight_bytes):
        fix = "give more rules with --plan FILE, or run an engine's code: --code vllm"
        yield Note(f"{text}the plan splits only the rest, so more ranks hardly help; {fix}.", Level.WARNING)
    else:
        yield Note(f"{text}the plan does not split them.")
    if plan.tp > 1 and any(part in weights.name for weights in replicated for part in _LATENT):
        yield Note(
            "Latent attention is among them. vLLM and SGLang split its heads over tp (q_b_proj, kv_b_proj, o_proj), or "
            "run data-parallel attention with expert parallel: their ranks hold and compute less than shown here."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A run of which one rank needs more memory than a device has. Without a plan there is one rank.

    `devices` split the weights evenly, except those that the plan replicates, while each holds inputs, cache and
    activations as large as now: no plan takes fewer unless it splits more. All replicas count. None: without the split
    weights it is too much for one already. `formats` are weight formats in which every rank fits, with what it then
    needs, the widest first.
    """

    ranks: int
    needed_bytes: int  # of the rank that needs most
    memory_bytes: int
    devices: int | None
    formats: tuple[tuple[str, int], ...] = ()

    @property
    def short_bytes(self) -> int:
        """What is missing on one device."""
        return self.needed_bytes - self.memory_bytes


def largest_need(kinds: Sequence[Sequence[CallGraph]]) -> RunMemory:
    """The memory of the rank that needs most, of one rank of each kind; one of unknown need comes first."""
    memories = [run_memory(graphs) for graphs in kinds]
    unknown = [memory for memory in memories if memory.total_bytes is None]
    return unknown[0] if unknown else max(memories, key=lambda memory: memory.total_bytes or 0)


def shortage_of(kinds: Sequence[Sequence[CallGraph]], device: Device) -> Shortage | None:
    """From the phases of one rank of each kind; None where every rank fits, or where the need of one is not known."""
    needed = largest_need(kinds).total_bytes
    if needed is None or needed <= device.memory_bytes:
        return None
    plan = plan_in(kinds[0][0].deployment)
    return Shortage(
        ranks=1 if plan is None else plan.ranks,
        needed_bytes=needed,
        memory_bytes=device.memory_bytes,
        devices=_fewest(kinds, device),
    )


def _fewest(kinds: Sequence[Sequence[CallGraph]], device: Device) -> int | None:
    """Split weights of all ranks / what a device has left for them.

    Where a trace does not say what is replicated, all weights count as split: that gives the smaller number.
    """
    plans = [plan_in(graphs[0].deployment) for graphs in kinds]
    first, split_bytes, room = plans[0], 0, device.memory_bytes
    counts = (1,) if first is None else first.ranks_of_kinds([(plan or first).rank or 0 for plan in plans])
    for graphs, ranks in zip(kinds, counts, strict=True):
        memory = run_memory(graphs)
        weights = max(phase.weight_bytes for phase in memory.phases)
        replicated = sum(weights.bytes for weights in replicated_weights(graphs[0]) or ())
        split_bytes += ranks * (weights - replicated)
        room = min(room, device.memory_bytes - ((memory.total_bytes or 0) - weights + replicated))
    return -(-split_bytes // room) if room > 0 else None


def fit_text(memory: RunMemory, device: Device) -> str:
    """`fits, 6.65 of 22.5 GiB`."""
    needed = memory.total_bytes
    if needed is None:
        return "whether it fits is not known"
    return f"{'fits' if needed <= device.memory_bytes else 'does not fit'}, {_of(needed, device.memory_bytes)}"


def shortage_text(shortage: Shortage, device: Device) -> str:
    """That it does not fit, how many devices hold it at least, and in which format those that were asked about do."""
    parts = [] if shortage.devices is None else [f"{shortage.devices:,} x {device.id} at least"]
    is_spread = shortage.ranks > 1
    if shortage.formats:
        parts.append(f"{f'these {shortage.ranks:,}' if is_spread else 'one'} with --weights {shortage.formats[0][0]}")
    helps = (
        ", or ".join(parts)
        or "no number of devices is enough, because activations and cache alone are too large for one"
    )
    where = f"{shortage.ranks:,} x {device.name}" if is_spread else device.name
    need = f"{'a rank needs ' if is_spread else ''}{_of(shortage.needed_bytes, shortage.memory_bytes)}"
    return f"Does not fit on {where}: {need}; {helps}."


def _of(needed: int, memory: int) -> str:
    """`6.65 of 22.5 GiB`, with one unit where both have it."""
    (number, unit), (_, unit_of_memory) = format_bytes(needed).split(" "), format_bytes(memory).split(" ")
    return f"{number if unit == unit_of_memory else f'{number} {unit}'} of {format_bytes(memory)}"

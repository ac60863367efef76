"""A joined recording added up: by stage, by module and by kind of op, with rates and shares of the device's peaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of, stage_names, stage_of_calls
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.measurements.correction import centre
from llm_perf_opt.measurements.join.attribution import JoinedRecording, JoinedWork
from llm_perf_opt.measurements.join.sides import Evidence, traced_rows
from llm_perf_opt.ops.kernel_names import ATTENTION, COPY, FILL, GATHER, MATMUL, SCATTER, launch_words
from llm_perf_opt.ops.op import compute_dtype
from llm_perf_opt.ops.table import kernels_of, price
from llm_perf_opt.timing.lower_bound import BoundBy
from llm_perf_opt.timing.rates import Band, RateSource
from llm_perf_opt.timing.rates import total as total_band

_NS_PER_S = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedTotal:
    """A stage, a module or a kind of op, over all forwards of the recording. None is unknown.

    FLOPs and bytes count the ops that have kernels here, as the traced code is written; what a fused kernel
    moves is unknown. `peak_ns` is how long the matrix work takes at the peaks of the device, and `memory_ns` the bytes
    at its bandwidth: MFU and MBU are their shares of the time of the kernels. `predicted` is the time that a source of
    rates gives the kernels of these ops, the ends of its band added up; `bound_by` is the bottleneck of most of it.
    """

    name: str
    calls: int  # of the module; of a kind of op, how often it ran; of a stage, the calls of its modules
    kernels: int
    device_ns: int
    flops: int | None
    bytes_moved: int | None
    peak_ns: float | None = None
    memory_ns: float | None = None
    predicted: Band | None = None
    bound_by: BoundBy | None = None

    @property
    def gap_ns(self) -> float | None:
        """How much longer the kernels took than is expected of them; None: there is no prediction."""
        return None if self.predicted is None else self.device_ns - centre(self.predicted) * _NS_PER_S

    @property
    def times_predicted(self) -> float | None:
        """Measured over predicted time."""
        expected_s = 0.0 if self.predicted is None else centre(self.predicted)
        return self.device_ns / (expected_s * _NS_PER_S) if expected_s else None

    @property
    def flops_per_s(self) -> float | None:
        """FLOPs over the time of the kernels."""
        return None if self.flops is None or not self.device_ns else self.flops * _NS_PER_S / self.device_ns

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes, as written, over the time of the kernels."""
        return None if self.bytes_moved is None or not self.device_ns else self.bytes_moved * _NS_PER_S / self.device_ns

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: the share of the peak rate; None without a device or its peak."""
        return None if self.peak_ns is None or not self.device_ns else self.peak_ns / self.device_ns

    @property
    def mbu(self) -> float | None:
        """Memory bandwidth utilisation. Above 1 where a cache served what the code is written to move."""
        return None if self.memory_ns is None or not self.device_ns else self.memory_ns / self.device_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceShare:
    """How much was attributed for one reason; of None: how much was not."""

    evidence: Evidence | None
    kernels: int
    device_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnattributedKernel:
    """A kernel that no traced op explains; `place` is the class of the module it was given to, if its place told."""

    name: str
    label: str
    launched_by: str | None  # the op of the host and its shapes; None: not recorded
    place: str | None
    kernels: int
    device_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTotals:
    """Stages, modules and kinds of ops; each adds up to what was attributed. Modules hold their own work alone."""

    stages: tuple[JoinedTotal, ...]
    modules: tuple[JoinedTotal, ...]
    op_kinds: tuple[JoinedTotal, ...]
    total: JoinedTotal
    evidence: tuple[EvidenceShare, ...]
    without_op: tuple[UnattributedKernel, ...]
    traced_flops: int | None  # of one forward: all of its ops, also those without a kernel


@dataclass(frozen=True, slots=True)
class _Price:
    flops: int | None
    bytes_moved: int | None
    peak_ns: float | None
    memory_ns: float | None
    predicted: Band | None
    bound_by: BoundBy | None


@dataclass(frozen=True, slots=True)
class _Part:
    """What one op has of one kernel. The kernel counts once, with its first op."""

    op: int | None  # row; None: given by its place
    call: int
    forward: int
    label: str
    is_fused: bool
    kernels: int
    device_ns: int


def join_totals(
    joined: JoinedRecording, graph: CallGraph, device: Device | None, rates: RateSource | None = None
) -> JoinTotals:
    """Everything added up; without a device there is no MFU and no MBU, without rates no prediction."""
    prices = [_price(graph, number, device, rates) for number in range(len(graph.op_kinds))]
    parts = [part for work in joined.work if work.evidence is not None for part in _parts(work, graph, prices)]
    calls, kinds = calls_of(graph), ops_of(graph).kind
    stages, names = stage_of_calls(graph), stage_names(graph)
    own_stage = names.index(graph.phase)
    counts = _Counts(graph, joined.forwards)

    def total(name: str, chosen: Sequence[_Part], number: int) -> JoinedTotal:
        return _total(name, chosen, number, lambda op: prices[kinds[op]])

    by_stage = _grouped(parts, lambda part: names[stages[part.call] if part.call >= 0 else own_stage])
    by_module = _grouped(parts, lambda part: graph.paths[calls.path[part.call]] if part.call >= 0 else "(outside)")
    by_kind = _grouped(parts, lambda part: _op_word(part, graph))
    return JoinTotals(
        stages=tuple(total(name, by_stage[name], counts.of_stage(name)) for name in names if name in by_stage),
        modules=_longest(total(name, parts, counts.of_module(name)) for name, parts in by_module.items()),
        op_kinds=_longest(total(name, parts, _runs(parts)) for name, parts in by_kind.items()),
        total=total("total", parts, counts.all),
        evidence=tuple(_evidence(joined.work)),
        without_op=tuple(_without_op(joined.work, graph)),
        traced_flops=known_sum((prices[kinds[row]].flops for row in traced_rows(graph)), empty=0),
    )


class _Counts:
    """How often modules were called, in all forwards of the recording."""

    def __init__(self, graph: CallGraph, forwards: int) -> None:
        calls, rows = calls_of(graph), traced_rows(graph)
        chosen = [call for call, first in enumerate(calls.first_op) if first >= rows.start]
        names, stages = stage_names(graph), stage_of_calls(graph)
        self._modules = Counter(graph.paths[calls.path[call]] for call in chosen)
        self._stages = Counter(names[stages[call]] for call in chosen)
        self._forwards = forwards

    def of_module(self, path: str) -> int:
        return self._modules[path] * self._forwards

    def of_stage(self, name: str) -> int:
        return self._stages[name] * self._forwards

    @property
    def all(self) -> int:
        return self._modules.total() * self._forwards


def _price(graph: CallGraph, number: int, device: Device | None, rates: RateSource | None) -> _Price:
    kind = graph.op_kinds[number]
    predicted, bound_by = _predicted(kind, rates)
    cost = price(kind)
    if cost is None:
        return _Price(None, None, None, None, predicted, bound_by)
    peak_ns = None if device is None else 0.0
    if device is not None and cost.flops:
        try:
            peak_ns = cost.flops * _NS_PER_S / device.peak(compute_dtype(kind))
        except PerfOptError:  # the device has no figure for the type: its MFU is unknown
            peak_ns = None
    memory_ns = None if device is None else cost.bytes_moved * _NS_PER_S / device.bandwidth_bytes_per_s
    return _Price(cost.flops, cost.bytes_moved, peak_ns, memory_ns, predicted, bound_by)


def _predicted(kind: OpKind, rates: RateSource | None) -> tuple[Band | None, BoundBy | None]:
    """The time of one run of the op, by its kernels; and the bottleneck of the longest kernel."""
    if rates is None:
        return None, None
    durations = [rates.duration(kernel) for kernel in kernels_of(kind)]
    times = [time for duration in durations if duration is not None for time in duration]
    if not times or None in durations:
        return None, None
    return total_band(time.band for time in times), max(times, key=lambda time: centre(time.band)).bound_by


def _parts(work: JoinedWork, graph: CallGraph, prices: Sequence[_Price]) -> Iterator[_Part]:
    """A kernel that does several ops is shared out by the bytes they would move by themselves, first to matrix work."""
    if not work.ops:
        yield _Part(None, work.call, work.forward, work.label, False, 1, work.duration_ns)
        return
    ops = ops_of(graph)
    priced = [prices[ops.kind[row]] for row in work.ops]
    has_matmuls = any(part.flops for part in priced)
    weights = [1 + (part.bytes_moved or 0) if part.flops or not has_matmuls else 0 for part in priced]
    given, taken = 0, 0
    for place, (row, weight) in enumerate(zip(work.ops, weights, strict=True)):
        taken += weight
        upto = work.duration_ns * taken // sum(weights)
        yield _Part(row, ops.call[row], work.forward, work.label, work.is_fused, int(place == 0), upto - given)
        given = upto


def _op_word(part: _Part, graph: CallGraph) -> str:
    if part.op is None:
        return f"{part.label} (not in the trace)"
    words = launch_words(graph.op_kinds[ops_of(graph).kind[part.op]])
    return words[0].word if words else part.label


def _grouped(parts: Iterable[_Part], key: Callable[[_Part], str]) -> dict[str, list[_Part]]:
    groups: dict[str, list[_Part]] = {}
    for part in parts:
        groups.setdefault(key(part), []).append(part)
    return groups


def _runs(parts: Iterable[_Part]) -> int:
    all_parts = list(parts)
    return len({(part.forward, part.op) for part in all_parts if part.op is not None}) + sum(
        part.op is None for part in all_parts
    )


def _total(name: str, parts: Sequence[_Part], calls: int, price_of: Callable[[int], _Price]) -> JoinedTotal:
    runs = Counter(op for op, _ in {(part.op, part.forward) for part in parts if part.op is not None})
    prices: Mapping[int, _Price] = {op: price_of(op) for op in runs}
    limits: Counter[BoundBy | None] = Counter()
    for op, count in runs.items():
        if (band := prices[op].predicted) is not None:
            limits[prices[op].bound_by] += round(centre(band) * count * _NS_PER_S)
    is_fused = any(
        part.is_fused for part in parts
    )  # then some intermediate results do not move, and it is unknown which
    return JoinedTotal(
        name=name,
        calls=calls,
        kernels=sum(part.kernels for part in parts),
        device_ns=sum(part.device_ns for part in parts),
        flops=known_sum((_times(prices[op].flops, count) for op, count in runs.items()), empty=0),
        bytes_moved=None
        if is_fused
        else known_sum((_times(prices[op].bytes_moved, count) for op, count in runs.items()), empty=0),
        peak_ns=known_sum(_scaled(prices[op].peak_ns, count) for op, count in runs.items()),
        memory_ns=None if is_fused else known_sum(_scaled(prices[op].memory_ns, count) for op, count in runs.items()),
        predicted=sum_of_bands(
            None if (band := prices[op].predicted) is None else band.times(count) for op, count in runs.items()
        ),
        bound_by=limits.most_common(1)[0][0] if limits else None,
    )


def sum_of_bands(bands: Iterable[Band | None]) -> Band | None:
    """Low and high added up; None where one is not known, or there is none."""
    all_bands = list(bands)
    known = [band for band in all_bands if band is not None]
    return total_band(known) if known and len(known) == len(all_bands) else None


def _times(value: int | None, count: int) -> int | None:
    return None if value is None else value * count


def _scaled(value: float | None, count: int) -> float | None:
    return None if value is None else value * count


def _longest(totals: Iterable[JoinedTotal]) -> tuple[JoinedTotal, ...]:
    return tuple(sorted(totals, key=lambda total: (-total.device_ns, total.name)))


def _evidence(work: Sequence[JoinedWork]) -> Iterator[EvidenceShare]:
    for evidence in (*Evidence, None):
        times_ns = [kernel.duration_ns for kernel in work if kernel.evidence is evidence]
        if times_ns:
            yield EvidenceShare(evidence=evidence, kernels=len(times_ns), device_ns=sum(times_ns))


def _without_op(work: Sequence[JoinedWork], graph: CallGraph) -> Iterator[UnattributedKernel]:
    calls = calls_of(graph)
    groups: dict[tuple[str, str, str | None, str | None], list[int]] = {}
    for kernel in work:
        if not kernel.ops:
            path = None if kernel.call < 0 else graph.paths[calls.path[kernel.call]]
            place = None if path is None else graph.module_types.get(path, path)
            groups.setdefault((kernel.name, kernel.label, kernel.launched_by, place), []).append(kernel.duration_ns)
    for (name, label, launched_by, place), times in sorted(groups.items(), key=lambda group: -sum(group[1])):
        yield UnattributedKernel(
            name=name, label=label, launched_by=launched_by, place=place, kernels=len(times), device_ns=sum(times)
        )


# Whether the join can be true: no op computes faster than the peak of its device, or moves faster than its memory.
#
# Names in order cannot tell a model from another one of the same structure, nor a workload from a larger one. Times
# can: ops that would have run faster than the device allows are not the ops that ran. The opposite, kernels that are
# slower than they should be, is no proof of anything.

TOO_MUCH = 0.05  # of the FLOPs or bytes, above which the join is of something else
_BY_CHOICE = frozenset({MATMUL, ATTENTION, COPY, FILL, GATHER, SCATTER, "cat"})
_TOLERANCE = 1.3  # a part of what is written may still be in a cache
_CACHES = 2  # an op that moves twice what the largest cache holds must take it from memory
_USUAL_CACHE_BYTES = 2**25  # of a device without a known cache size


def too_fast(joined: JoinedRecording, graph: CallGraph, device: Device | None) -> float | None:
    """The share of the FLOPs, or of the bytes of large ops, that no kernel of the device could have done in its time.

    The larger of the two; None: without a device nothing bounds a time. The bytes of a fused kernel's ops do not count.
    An engine that merges matmuls may store weights in another format, and need not copy its cache: there the bytes of
    matmuls and copies do not count either.
    """
    if device is None:
        return None
    spent = _spent_ns(joined)
    fused = {row for work in joined.work if len(work.ops) > 1 for row in work.ops}
    cache_bytes = _CACHES * (device.cache_bytes or _USUAL_CACHE_BYTES)
    flops, moved = _Share(), _Share()
    kinds = ops_of(graph).kind
    for (_, row), duration_ns in spent.items():
        kind = graph.op_kinds[kinds[row]]
        cost = price(kind)
        if cost is None:
            continue
        if cost.flops and (peak := _peak(device, compute_dtype(kind))) is not None:
            flops.add(cost.flops, is_over=cost.flops * _NS_PER_S > peak * duration_ns)
        is_as_written = row not in fused and not (joined.merges_matmuls and _is_an_engines_choice(kind))
        if is_as_written and cost.bytes_moved > cache_bytes:
            limit = device.bandwidth_bytes_per_s * duration_ns * _TOLERANCE
            moved.add(cost.bytes_moved, is_over=cost.bytes_moved * _NS_PER_S > limit)
    return max(flops.over, moved.over)


def _is_an_engines_choice(kind: OpKind) -> bool:
    return all(launch_word.word in _BY_CHOICE for launch_word in launch_words(kind))


def _spent_ns(joined: JoinedRecording) -> Counter[tuple[int, int]]:
    """Forward and op -> time of its kernels; of a kernel that does several ops each has all of it."""
    spent: Counter[tuple[int, int]] = Counter()
    for work in joined.work:
        for row in work.ops:
            spent[work.forward, row] += work.duration_ns
    return spent


def _peak(device: Device, dtype: str) -> int | None:
    try:
        return device.peak(dtype)
    except PerfOptError:
        return None


class _Share:
    """How much of a sum is over a limit."""

    def __init__(self) -> None:
        self._all = self._over = 0

    def add(self, amount: int, *, is_over: bool) -> None:
        self._all += amount
        self._over += amount if is_over else 0

    @property
    def over(self) -> float:
        return self._over / self._all if self._all else 0.0

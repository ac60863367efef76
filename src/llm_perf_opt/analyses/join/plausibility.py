"""Whether the join can be true: no op computes faster than the peak of its device, or moves faster than its memory.

Names in order cannot tell a model from another one of the same structure, nor a workload from a larger one. Times can:
ops that would have run faster than the device allows are not the ops that ran. The opposite, kernels that are slower
than they should be, is no proof of anything.
"""

from __future__ import annotations

from collections import Counter

from llm_perf_opt.analyses.join.attribution import JoinedRecording
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.ops.kernel_names import ATTENTION, COPY, FILL, GATHER, PRODUCT, SCATTER, launch_words
from llm_perf_opt.ops.op import compute_dtype
from llm_perf_opt.ops.table import price

TOO_MUCH = 0.05  # of the FLOPs or bytes, above which the join is of something else
_NS_PER_S = 10**9
_BY_CHOICE = frozenset({PRODUCT, ATTENTION, COPY, FILL, GATHER, SCATTER, "cat"})
_TOLERANCE = 1.3  # a part of what is written may still be in a cache
_CACHES = 2  # an op that moves twice what the largest cache holds must take it from memory
_USUAL_CACHE_BYTES = 2**25  # of a device whose cache is not known


def too_fast(joined: JoinedRecording, graph: CallGraph, device: Device | None) -> float | None:
    """The share of the FLOPs, or of the bytes of large ops, that no kernel of the device could have done in its time.

    The larger of the two; None: without a device nothing bounds a time. The bytes of a fused kernel's ops do not count.
    An engine that merges products may store weights in another format, and need not copy its cache: there the bytes of
    products and copies do not count either.
    """
    if device is None:
        return None
    spent = _times(joined)
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
        is_as_written = row not in fused and not (joined.merges_products and _is_an_engines_choice(kind))
        if is_as_written and cost.bytes_moved > cache_bytes:
            limit = device.bandwidth_bytes_per_s * duration_ns * _TOLERANCE
            moved.add(cost.bytes_moved, is_over=cost.bytes_moved * _NS_PER_S > limit)
    return max(flops.over, moved.over)


def _is_an_engines_choice(kind: OpKind) -> bool:
    return all(one.word in _BY_CHOICE for one in launch_words(kind))


def _times(joined: JoinedRecording) -> Counter[tuple[int, int]]:
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

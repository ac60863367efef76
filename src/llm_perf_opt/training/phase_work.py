"""The work of each phase: FLOPs, bytes, kernels, and the shapes of its matmuls and attention kernels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from llm_perf_opt.core.callgraph.queries import calls_of, ops_of, path_pattern
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.recorded_step import PHASES, RecordedTrainingStep
from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.ops.cost import OpCost, elements, operand
from llm_perf_opt.ops.op import compute_dtype
from llm_perf_opt.ops.table import kernels_of, op_family, price
from llm_perf_opt.training.step_record import AttentionGroup, MatmulGroup, PhaseWork

_BATCHED = ("aten.bmm", "aten.baddbmm")
_GROUPED = "_grouped_mm"
_BACKWARD_NAME = "backward"


@dataclass(slots=True)
class _Tally:
    """What is added up for one phase."""

    counts: Counter[tuple[int, str]] = field(default_factory=Counter)  # (kind, module family) -> ops
    recomputed: Counter[int] = field(default_factory=Counter)


Times = Callable[[int], int]  # op -> how often it runs in the step that is described


def phase_work(step: RecordedTrainingStep, times: Times) -> tuple[PhaseWork, ...]:
    """The work of every phase; `times` says how often an op of the recording runs in the whole step."""
    graph = step.graph
    ops, families = ops_of(graph), _families(step)
    again = {row for rows in step.recomputed for row in rows}
    tallies = {phase: _Tally() for phase in PHASES}
    for phase, rows in step.ranges():
        tally = tallies[phase]
        for row in rows:
            kind, call, runs = ops.kind[row], ops.call[row], times(row)
            tally.counts[kind, families[call]] += runs
            if row in again:
                tally.recomputed[kind] += runs
    return tuple(_work(phase, tallies[phase], graph.op_kinds) for phase in PHASES)


def _families(step: RecordedTrainingStep) -> Mapping[int, str]:
    """Call -> its module with `*` for numbers; -1, outside any call, has none."""
    patterns = [path_pattern(path) for path in step.graph.paths]
    return {-1: "", **{row: patterns[path] for row, path in enumerate(calls_of(step.graph).path)}}


def _work(phase: str, tally: _Tally, kinds: tuple[OpKind, ...]) -> PhaseWork:
    work = _Sums()
    for (row, family), count in tally.counts.items():
        work.add(kinds[row], family, count)
    costs = ((price(kinds[row]), count) for row, count in tally.recomputed.items())
    return PhaseWork(
        name=phase,
        flops=sum(work.flops_by_dtype.values()),
        flops_by_dtype=dict(work.flops_by_dtype),
        recomputed_flops=sum(cost.flops * count for cost, count in costs if cost is not None),
        bytes_read=work.bytes_moved - work.bytes_written,
        bytes_written=work.bytes_written,
        launches=work.launches,
        matmuls=tuple(sorted(work.matmuls(), key=lambda group: -group.flops)),
        attention=tuple(sorted(work.attention(), key=lambda group: -group.flops)),
        vector_bytes=work.vector_bytes,
        vector_flops=work.vector_flops,
        ops=sum(tally.counts.values()),
        unpriced=dict(work.unpriced),
    )


class _Sums:
    """Adds up the ops of one phase."""

    def __init__(self) -> None:
        self.flops_by_dtype: Counter[str] = Counter()
        self.unpriced: Counter[str] = Counter()
        self.bytes_moved = self.bytes_written = self.vector_bytes = self.vector_flops = self.launches = 0
        self._matmuls: Counter[tuple[OpKind, str]] = Counter()
        self._attention: Counter[tuple[OpKind, str]] = Counter()

    def add(self, kind: OpKind, family: str, count: int) -> None:
        cost = price(kind)
        self.launches += count * len(kernels_of(kind))
        if cost is None:
            self.unpriced[kind.name] += count
            return
        self.bytes_moved += count * cost.bytes_moved
        self.bytes_written += count * min(_written(kind), cost.bytes_moved)
        self.vector_flops += count * cost.vector_flops
        if not cost.flops:
            self.vector_bytes += count * cost.bytes_moved
            return
        self.flops_by_dtype[compute_dtype(kind)] += count * cost.flops
        is_attention = op_family(kind.name) is WorkFamily.ATTENTION
        (self._attention if is_attention else self._matmuls)[kind, family] += count

    def matmuls(self) -> Iterator[MatmulGroup]:
        for (kind, family), count in self._matmuls.items():
            yield _matmul_group(kind, _priced(kind), family, count)

    def attention(self) -> Iterator[AttentionGroup]:
        for (kind, family), count in self._attention.items():
            yield _attention_group(kind, _priced(kind), family, count)


def _priced(kind: OpKind) -> OpCost:
    cost = price(kind)
    assert cost is not None, "only ops with a price are grouped"
    return cost


def _written(kind: OpKind) -> int:
    """Bytes of the results; an op on lists that returns nothing writes the list that it is called on."""
    if kind.outputs or not kind.mutates:
        return sum(map(tensor_bytes, kind.outputs))
    return sum(tensor_bytes(meta) for meta, name in zip(kind.inputs, kind.input_names, strict=False) if name == "self")


def _matmul_group(kind: OpKind, cost: OpCost, family: str, count: int) -> MatmulGroup:
    """`m * n * k * batch` is half of the FLOPs; of a grouped matmul `m` or `k` is a mean over its groups."""
    result = kind.outputs[0]
    n = result.shape[-1] if result.shape else 1
    batch = math.prod(result.shape[:-2]) if kind.name.startswith(_BATCHED) else 1
    if _GROUPED in kind.name:
        batch, rows, k = _grouped_shape(kind)
    else:
        rows = max(1, elements(result) // max(1, n * batch))
        k = cost.flops // max(1, 2 * n * rows * batch)
    return MatmulGroup(
        m=rows,
        n=n,
        k=k,
        batch=batch,
        dtype=compute_dtype(kind),
        count=count,
        family=family,
        flops=count * cost.flops,
        bytes_moved=count * cost.bytes_moved,
    )


def _grouped_shape(kind: OpKind) -> tuple[int, int, int]:
    """Groups, rows of a group, and the summed length."""
    left, right = operand(kind, 0, "self"), operand(kind, 1, "mat2")
    if len(left.shape) == 2 and len(right.shape) == 2:  # the gradient of the weights: rows are summed
        groups = kind.outputs[0].shape[0]
        return groups, left.shape[0], max(1, left.shape[1] // max(1, groups))
    groups = right.shape[0] if len(right.shape) == 3 else left.shape[0]
    rows = left.shape[-2] // max(1, groups) if len(left.shape) == 2 else left.shape[-2]
    return groups, max(1, rows), left.shape[-1]


def _attention_group(kind: OpKind, cost: OpCost, family: str, count: int) -> AttentionGroup:
    is_backward = _BACKWARD_NAME in kind.name
    first = int(is_backward)  # the gradient of the result comes first
    query, key, value = (operand(kind, first + place, name) for place, name in enumerate(("query", "key", "value")))
    is_causal = bool(kind.arguments.get("is_causal"))
    queries = query.shape[-2]
    return AttentionGroup(
        sequences=math.prod(query.shape[:-3]),
        queries=queries,
        keys=key.shape[-2],
        heads=query.shape[-3] if len(query.shape) > 2 else 1,
        key_heads=key.shape[-3] if len(key.shape) > 2 else 1,
        width=query.shape[-1],
        value_width=value.shape[-1],
        is_causal=is_causal,
        is_backward=is_backward,
        dtype=query.dtype,
        count=count,
        family=family,
        flops=count * cost.flops,
        skippable_flops=count * (cost.flops * (queries - 1) // (2 * queries)) if is_causal else 0,
        bytes_moved=count * cost.bytes_moved,
    )

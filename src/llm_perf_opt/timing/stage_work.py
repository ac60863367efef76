"""The work of each stage of a trace as a device sees it: FLOPs by dtype, kernels to launch, and what is necessary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds, count_kinds_by_stage, found_once
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.costs.necessary.read_once import preparation
from llm_perf_opt.costs.necessary.stage_needs import NecessaryWork, necessary_by_stage
from llm_perf_opt.ops.op import Kernel
from llm_perf_opt.ops.table import kernels_of, price


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """One stage of a trace: what its code runs, and what any implementation must do.

    `flops`, `bytes_moved`, `launches` and `kernels` are as written. `necessary` is None where the trace does not record
    which tensors an op took. `unpriced_ops` are in no sum.
    """

    name: str
    ops: int
    launches: int
    flops: int
    flops_by_dtype: Mapping[str, int]
    bytes_moved: int
    kernels: Mapping[Kernel, int]
    unpriced_ops: int
    necessary: NecessaryWork | None

    @property
    def must_read_bytes(self) -> int | None:
        """Weights, caches and inputs that every forward must read once; None: the trace follows no memory."""
        return None if self.necessary is None else self.necessary.bytes

    @property
    def required_by_dtype(self) -> Mapping[str, int] | None:
        """FLOPs that no implementation can leave out, by the type they run in; None: not known."""
        return None if self.necessary is None else self.necessary.flops_by_dtype

    @property
    def skippable_flops(self) -> int | None:
        """FLOPs that the code runs and no implementation has to."""
        return None if self.necessary is None else self.flops - self.necessary.flops

    @property
    def forwards(self) -> int:
        """How often the stage ran; 0 where the trace does not record that."""
        return 0 if self.necessary is None else self.necessary.forwards


@found_once
def stage_works(graph: CallGraph, *, with_necessary: bool = True) -> tuple[StageWork, ...]:
    """The stages of one phase that ran anything, in order."""
    by_stage = count_kinds_by_stage(graph)
    by_stage[graph.phase] = Counter(by_stage[graph.phase]) - Counter(count_kinds(graph, preparation(graph)))
    needs = necessary_by_stage(graph) if with_necessary else {}
    return tuple(work_of(name, counts, needs.get(name)) for name, counts in by_stage.items() if counts)


def work_of(name: str, counts: Mapping[OpKind, int], necessary: NecessaryWork | None = None) -> StageWork:
    """Any set of ops as one piece of work; without `necessary` there is no bound."""
    kernels: Counter[Kernel] = Counter()
    for kind, count in counts.items():
        for kernel in kernels_of(kind):
            kernels[kernel] += count
    flops: Counter[str] = Counter()
    for kernel, count in kernels.items():
        flops[kernel.dtype] += kernel.flops * count
    costs = {kind: price(kind) for kind in counts}
    return StageWork(
        name=name,
        ops=sum(counts.values()),
        launches=kernels.total(),
        flops=flops.total(),
        flops_by_dtype=dict(+flops),
        bytes_moved=sum(cost.bytes_moved * counts[kind] for kind, cost in costs.items() if cost is not None),
        kernels=kernels,
        unpriced_ops=sum(counts[kind] for kind, cost in costs.items() if cost is None),
        necessary=necessary,
    )

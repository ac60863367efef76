"""How long the forwards of a serving engine take on one rank, from tables of measured kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from llm_perf_opt.core.hardware import Device, find_device
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.ops.kernel_shape import (
    AdapterShape,
    AttentionShape,
    ExpertsShape,
    LatentModuleShape,
    MatmulShape,
    StateShape,
)
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.timing.kernel_rates import KernelTableRates, SheetKernels, require_tables, table_rates
from llm_perf_opt.timing.kernels.tables import tables_label, tables_stamp
from llm_perf_opt.timing.kernels.times import LAUNCH_GAP_S, TimeOrigin
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks
from llm_perf_opt.timing.step.engine_step import Counted, Forward, forward_kernels, whole_modules


class WorkKind(StrEnum):
    """What a share of a forward's time is spent on."""

    MATMULS = "matmuls"
    ATTENTION = "attention"
    EXPERTS = "experts"
    STATES = "recurrent states"
    VECTOR = "vector kernels"
    LORA = "LoRA adapters"
    LINKS = "collectives"
    GAPS = "gaps between kernels"


_BY_SHAPE: Mapping[type, WorkKind] = {
    MatmulShape: WorkKind.MATMULS,
    AttentionShape: WorkKind.ATTENTION,
    LatentModuleShape: WorkKind.ATTENTION,
    ExpertsShape: WorkKind.EXPERTS,
    StateShape: WorkKind.STATES,
    AdapterShape: WorkKind.LORA,
}


_NO_WORK = dict.fromkeys(WorkKind, 0.0)  # in the order in which times are added up
_NO_ORIGIN = dict.fromkeys(TimeOrigin, 0.0)


def kind_of(kernel: Kernel) -> WorkKind:
    """What a kernel of an engine's forward does."""
    if kernel.kind is KernelKind.COMMUNICATION:
        return WorkKind.LINKS
    return _BY_SHAPE.get(type(kernel.shape), WorkKind.VECTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardTime:
    """One forward of a rank. `unknown` kernels are in no table and in no sum."""

    by_kind: Mapping[WorkKind, float]
    by_origin: Mapping[TimeOrigin, float]
    kernels: int
    unknown: int

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(self.by_kind.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RankForward:
    """A forward and who runs it; `is_by_sequence`: of its kernels attention and states alone."""

    blocks: EngineBlocks
    forward: Forward
    plan: ParallelPlan
    is_by_sequence: bool = False

    def kernels(self, knows: Callable[[Kernel], bool] | None = None) -> Iterator[Counted]:
        """The kernels of one rank, and how often each runs."""
        return forward_kernels(self.blocks, self.forward, self.plan, knows, is_by_sequence=self.is_by_sequence)


class TimesForwards(Protocol):
    """Knows how long forwards take: tables, a data sheet or a calibration."""

    def times(self, forwards: Sequence[RankForward]) -> list[ForwardTime]:
        """The time of each forward."""
        ...


class EngineTimer:
    """Times the forwards of an engine on a device, many at once, since tables answer columns."""

    def __init__(self, rates: KernelTableRates | SheetKernels) -> None:
        self._rates = rates

    @property
    def identity(self) -> list[str]:
        """All that its answers depend on besides this program: device, links, and the tables in use."""
        rates = self._rates
        tables = [] if isinstance(rates, SheetKernels) else [rates.tables.system.system, str(rates.tables.engine)]
        return [repr(rates.below), *tables, tables_stamp()]

    @property
    def is_measured(self) -> bool:
        """Whether it reads tables of measured kernels; else every time comes from a data sheet."""
        return isinstance(self._rates, KernelTableRates)

    @property
    def tables(self) -> str:
        """The set of tables behind it, with its version and licence; empty: none is."""
        return tables_label() if self.is_measured else ""

    @classmethod
    def of(cls, device: str | Device, engine: str | None, cluster: Cluster | None = None) -> EngineTimer:
        """On a device that tables describe; `engine` runs the kernels, None: the fastest of any engine.

        Collectives that no table has are timed by the links of the `cluster`.
        """
        hardware = find_device(device) if isinstance(device, str) else device
        require_tables(hardware)
        rates = table_rates(DataSheetRates(hardware, Execution.FUSED, cluster=cluster), engine)
        assert rates is not None, "tables are there"
        return cls(rates)

    @classmethod
    def of_any(cls, device: Device, engine: str | None, cluster: Cluster | None = None) -> EngineTimer:
        """By tables where they describe the device, by its data sheet where none does."""
        sheet = DataSheetRates(device, Execution.FUSED, cluster=cluster)
        return cls(table_rates(sheet, engine) or SheetKernels(sheet))

    def times(self, forwards: Sequence[RankForward]) -> list[ForwardTime]:
        """The time of each forward."""
        rates = self._rates
        # Whole modules first: whether a table has them decides which other kernels a forward launches.
        rates.learn(
            kernel for forward in forwards for kernel, _ in whole_modules(forward.blocks, forward.forward, forward.plan)
        )
        kernels_of_forwards = [list(forward.kernels(rates.knows)) for forward in forwards]
        rates.learn(kernel for kernels in kernels_of_forwards for kernel, _ in kernels)
        return [self._sum(kernels) for kernels in kernels_of_forwards]

    def _sum(self, kernels: Sequence[tuple[Kernel, int]]) -> ForwardTime:
        by_kind, by_origin = dict(_NO_WORK), dict(_NO_ORIGIN)
        launches = unknown = 0
        for kernel, count in kernels:
            time = self._rates.measured(kernel)
            if time is None:
                unknown += count
                launches += count
                continue
            launches += count * time.launches
            by_kind[kind_of(kernel)] += count * time.seconds
            by_origin[time.origin] += count * time.seconds
        by_kind[WorkKind.GAPS] = LAUNCH_GAP_S * launches
        return ForwardTime(
            by_kind={kind: seconds for kind, seconds in by_kind.items() if seconds},
            by_origin={origin: seconds for origin, seconds in by_origin.items() if seconds},
            kernels=launches,
            unknown=unknown,
        )

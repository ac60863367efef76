"""How long the forwards of a serving engine take on one rank, by tables of measured kernels or by a data sheet."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from llm_perf_opt.core.hardware import Device, find_device
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.recent import Recent
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
from llm_perf_opt.timing.kernel_rates import KernelTableRates, require_tables, table_rates
from llm_perf_opt.timing.kernels.tables import tables_label, tables_stamp
from llm_perf_opt.timing.kernels.times import CODE, LAUNCH_GAP_S, ORIGINS, TimeOrigin
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks
from llm_perf_opt.timing.step.engine_step import Counted, Forward, forward_kernels, whole_modules
from llm_perf_opt.timing.step.kernel_columns import ForwardKernels, LaunchColumns


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


_KINDS = tuple(WorkKind)  # in the order in which times are added up
_PLACE = {kind: place for place, kind in enumerate(_KINDS)}
_MOST_KEPT = 32  # lists of kernels


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


KeptKernels = Recent[Hashable, ForwardKernels]


def kept_kernels() -> KeptKernels:
    """Lists of kernels that several timers may share."""
    return Recent(_MOST_KEPT)


class EngineTimer:
    """Times the forwards of an engine on a device, many at once, since tables answer columns."""

    def __init__(self, rates: KernelTableRates | DataSheetRates, kept: KeptKernels | None = None) -> None:
        self._rates, self._kept = rates, kept_kernels() if kept is None else kept

    @property
    def identity(self) -> list[str]:
        """All that its answers depend on besides this program: device, links, and the tables in use."""
        rates = self._rates
        if isinstance(rates, DataSheetRates):
            return [repr(rates), tables_stamp()]
        return [repr(rates.below), rates.tables.system.system, str(rates.tables.engine), tables_stamp()]

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
    def of_any(
        cls, device: Device, engine: str | None, cluster: Cluster | None = None, kept: KeptKernels | None = None
    ) -> EngineTimer:
        """By tables where they describe the device, by its data sheet where none does.

        Timers that share `kept` list the kernels of a plan once for all devices without tables.
        """
        sheet = DataSheetRates(device, Execution.FUSED, cluster=cluster)
        return cls(table_rates(sheet, engine) or sheet, kept)

    def times(self, forwards: Sequence[RankForward]) -> list[ForwardTime]:
        """The time of each forward."""
        rates = self._rates
        if isinstance(rates, DataSheetRates):
            kernels = self._kept.of(_asked(forwards), lambda: ForwardKernels([list(ran.kernels()) for ran in forwards]))
            return _summed(kernels, kernels.by_data_sheet(rates))
        # Whole modules first: whether a table has them decides which other kernels a forward launches.
        rates.learn(
            kernel for forward in forwards for kernel, _ in whole_modules(forward.blocks, forward.forward, forward.plan)
        )
        kernels = ForwardKernels([list(forward.kernels(rates.knows)) for forward in forwards])
        rates.learn(kernels.kernels)
        return _summed(kernels, _in_tables(kernels, rates))


def _asked(forwards: Sequence[RankForward]) -> Hashable:
    """The forwards, with blocks that many share compared once."""
    blocks = {id(ran.blocks): ran.blocks for ran in forwards}
    number_of = {shared: number for number, shared in enumerate(blocks)}
    return (
        tuple(blocks.values()),
        tuple((number_of[id(ran.blocks)], ran.forward, ran.plan, ran.is_by_sequence) for ran in forwards),
    )


def _in_tables(kernels: ForwardKernels, rates: KernelTableRates) -> LaunchColumns:
    times = [rates.measured(kernel) for kernel in kernels.kernels]
    return LaunchColumns(
        np.array([np.nan if time is None else time.seconds for time in times]),
        np.array([0 if time is None else CODE[time.origin] for time in times], dtype=np.int64),
        np.array([1 if time is None else time.launches for time in times], dtype=np.int64),
    )


def _summed(kernels: ForwardKernels, each: LaunchColumns) -> list[ForwardTime]:
    is_unknown = np.isnan(each.seconds)
    seconds = np.where(is_unknown, 0.0, kernels.counts * each.seconds)
    nothing = np.zeros(len(seconds), dtype=np.int64)
    kinds = np.array([_PLACE[kind_of(kernel)] for kernel in kernels.kernels], dtype=np.int64)
    columns = (
        kernels.sums(seconds, kinds, len(_KINDS)),
        kernels.sums(seconds, each.origin_codes, len(ORIGINS)),
        kernels.sums(kernels.counts * each.launches, nothing, 1),
        kernels.sums(kernels.counts * is_unknown, nothing, 1),
    )
    return [_forward_time(*row) for row in zip(*columns, strict=True)]


def _forward_time(
    by_kind: list[float], by_origin: list[float], launches: list[float], unknown: list[float]
) -> ForwardTime:
    by_kind[_PLACE[WorkKind.GAPS]] = LAUNCH_GAP_S * launches[0]
    return ForwardTime(
        by_kind={kind: seconds for kind, seconds in zip(_KINDS, by_kind, strict=True) if seconds},
        by_origin={origin: seconds for origin, seconds in zip(ORIGINS, by_origin, strict=True) if seconds},
        kernels=int(launches[0]),
        unknown=int(unknown[0]),
    )

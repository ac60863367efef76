"""Step times of one model on any device and plan: from the cache where they were worked out before, else from kernels.

A table of steps is a function of the blocks of the model, the device with its links, the plan and the engine. It takes
seconds to make and a millisecond to read, and holds for every demand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.recent import Recent
from llm_perf_opt.core.store import stored_record
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks
from llm_perf_opt.timing.step.engine_step import Forward
from llm_perf_opt.timing.step.step_table import StepTable

if TYPE_CHECKING:
    from llm_perf_opt.timing.step.engine_time import EngineTimer, KeptKernels

KIND = "shares of a step"
_MOST_TABLES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedForwards:
    """Seconds of some forwards by kind of work, for shares of a step."""

    by_kind: tuple[dict[str, float], ...]


class StepTimes:
    """The step times of one model and engine. A timer is made only where something was not worked out before."""

    def __init__(self, blocks: Callable[[], EngineBlocks], name: str, engine: str) -> None:
        self._make_blocks, self._name, self._engine = blocks, name, engine
        self._timers: dict[str, EngineTimer] = {}
        self._kept: KeptKernels | None = None  # of all timers
        self._tables: dict[str, dict[ParallelPlan, StepTable]] = {}
        self._timed = Recent[tuple[str, ParallelPlan], StepTable](_MOST_TABLES)
        self._measured: dict[str, bool] = {}
        self._shared: set[str] = set()  # places with shares that were asked for before

    @cached_property
    def blocks(self) -> EngineBlocks:
        """What an engine launches for each token."""
        return self._make_blocks()

    def table(self, device: Device, plan: ParallelPlan, cluster: Cluster | None) -> StepTable:
        """The steps of a plan on this device, with the links of the cluster."""
        return self._timed.of((_place(device, cluster), plan), lambda: self._made(device, plan, cluster))

    def is_measured(self, device: Device, cluster: Cluster | None) -> bool:
        """Whether the times of a device come from measured kernels; else from its data sheet."""
        place = _place(device, cluster)
        if place not in self._measured:
            self._measured[place] = self._timer(device, cluster).is_measured
        return self._measured[place]

    def let_go(self) -> None:
        """Drop what is needed only to make a table; tables and blocks stay."""
        self._timers.clear()
        self._kept = None
        self._tables.clear()

    def forwards(
        self, device: Device, plan: ParallelPlan, cluster: Cluster, forwards: Sequence[Forward]
    ) -> tuple[Mapping[str, float], ...]:
        """Seconds of each forward by kind of work.

        The first at a place come from the cache, where they are. After that the kernels are at hand, and each is
        worked out: a process that asks many times would only fill the cache.
        """
        from llm_perf_opt.timing.step.engine_time import RankForward

        def made() -> TimedForwards:
            packed = [RankForward(blocks=self.blocks, forward=forward, plan=plan) for forward in forwards]
            times = self._timer(device, cluster).times(packed)
            return TimedForwards(
                by_kind=tuple({str(kind): seconds for kind, seconds in time.by_kind.items()} for time in times)
            )

        if (place := _place(device, cluster)) in self._shared:
            return made().by_kind
        self._shared.add(place)
        about = f"{self._name} on {device.id}, {plan.describe()}, {self._engine}"
        ingredients = {
            "of": [repr(self.blocks), self._engine],
            "asked": list(map(repr, (device, cluster, plan, *forwards))),
        }
        return stored_record(KIND, ingredients, about, TimedForwards, made).by_kind

    def _made(self, device: Device, plan: ParallelPlan, cluster: Cluster | None) -> StepTable:
        from llm_perf_opt.timing.kernel_rates import UNKNOWN_SPREAD
        from llm_perf_opt.timing.step.step_tables import step_table

        timer, known = self._timer(device, cluster), self._tables.setdefault(_place(device, cluster), {})
        table = step_table(self.blocks, timer, plan, known=known)
        if not timer.is_measured:
            low, high = UNKNOWN_SPREAD
            table = replace(table, low=low, high=high)
        if plan.pp > 1:
            table = table.corrected(decoding=1 / plan.pp, prompts=1 / plan.pp)  # each stage an equal share
        return table

    def _timer(self, device: Device, cluster: Cluster | None) -> EngineTimer:
        """The timer of a device; there is one for each, since it keeps what it has looked up."""
        from llm_perf_opt.timing.step.engine_time import EngineTimer, kept_kernels

        place = _place(device, cluster)
        if place not in self._timers:
            self._kept = kept_kernels() if self._kept is None else self._kept
            self._timers[place] = EngineTimer.of_any(device, self._engine, cluster, self._kept)
        return self._timers[place]


def _place(device: Device, cluster: Cluster | None) -> str:
    return f"{device.id} {cluster or ''}"

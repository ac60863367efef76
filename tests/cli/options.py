"""What the stand-in takes besides the common fields of a workload: found beside its adapter, as for any model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from llm_perf_opt.core.options import option
from llm_perf_opt.core.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class StandInWorkload(Workload):
    """How it goes wrong."""

    taken_by: ClassVar[str] = "The stand-in"

    mode: str | None = option(None, help="What goes wrong: odd, broken, broken-decode, miscounted.")


WORKLOAD = StandInWorkload

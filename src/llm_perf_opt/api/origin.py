"""What a trace was made from: a model with its workload and deployment, which can be run again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.protocols import ModelAdapter
from llm_perf_opt.core.run_lock import OneRun, RunWatch
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import Deployment, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a trace was made from, so that other sources can run the same model with the same workload."""

    name: str  # of the model, as it was given
    adapter: ModelAdapter
    workload: Workload
    deployment: Deployment = field(default_factory=Deployment)
    routing: str | None = None  # of this and the next, None is the tracer's own default
    torch_device: str | None = None
    plan: ParallelPlan = field(default_factory=ParallelPlan)  # of which the adapter runs one rank
    is_module: bool = False  # one that was built elsewhere, with weights of its own

    @property
    def model(self) -> str:
        """As a trace of it is named: a folder by the last part of its path."""
        return Path(self.name).resolve().name if Path(self.name).is_dir() else self.name

    def targets(self, **changed: Any) -> tuple[Target, ...]:
        """The phases of the workload, or of one that differs in some fields.

        A model whose inputs nobody declared is run to find them, which the limits of work hold for.
        """
        with OneRun(), RunWatch(f"{self.name}, looking for its inputs"):
            return self.adapter.targets(replace(self.workload, **changed) if changed else self.workload)

"""Which modules a real run records: all of them, or those that `--only` and `--stage` name.

The root and the modules that begin a stage are always recorded. The time and the ops of a module that is not recorded
count in the nearest recorded module around it, so that the sums of stages and of the whole run stay right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from llm_perf_opt.core.callgraph import Json
from llm_perf_opt.core.module_selection import (
    ONLY,
    ONLY_STAGES,
    ModuleSelection,
    recorded_paths,
    stage_list,
    unknown_terms,
)
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.units import format_count
from llm_perf_opt.harness.trace_header import constructor_params


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedModules:
    """What to watch, and what the trace says of it; `paths` of None are all modules."""

    paths: frozenset[str] | None = None
    settings: Mapping[str, Json] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class ModuleFilter:
    """The modules that were asked for, before a model is there to find them in."""

    def __init__(self, only: str | Sequence[str] | None = None, stage: str | Sequence[str] | None = None) -> None:
        self._only = None if only is None else ModuleSelection.parse(only)
        self._stage = stage

    def of(self, target: Target, model: torch.nn.Module) -> RecordedModules:
        """The modules to record in this phase; a term that names none is refused, before the run."""
        if self._only is None and self._stage is None:
            return RecordedModules()
        stages = stage_list(self._stage) if self._stage is not None else ()
        modules = [(path, type(module).__name__, constructor_params(module)) for path, module in model.named_modules()]
        if self._only is not None and (missing := self._only.terms_without(modules)):
            raise unknown_terms(missing, (class_name for _, class_name, _ in modules))
        claims = {path: stage.name for stage in target.stages for path in stage.paths}
        paths = recorded_paths(modules, claims, target.phase, self._only, stages)
        wanted = {ONLY: None if self._only is None else str(self._only), ONLY_STAGES: ", ".join(stages) or None}
        settings = {name: value for name, value in wanted.items() if value is not None}
        return RecordedModules(paths=paths, settings=settings, notes=(_note(settings, len(paths), len(modules)),))


def _note(settings: Mapping[str, Json], recorded: int, there: int) -> str:
    terms = "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())
    return (
        f"filtered ({terms}): {format_count(recorded)} of {format_count(there)} modules are recorded, always with the "
        f"root and the modules that begin a stage; time and ops of the other {format_count(there - recorded)} count in "
        "the recorded module around them"
    )

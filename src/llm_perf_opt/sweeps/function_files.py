"""Functions in files: saved where the model was traced, evaluated anywhere, without torch and without the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt import __version__
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.records import json_safe
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.options import OptionRecord
from llm_perf_opt.core.output_files import free_file
from llm_perf_opt.core.reading import naming_file
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.sweeps.function.files.function_file import SavedFunction, read_function, write_function
from llm_perf_opt.sweeps.function.files.layout import FUNCTION_FILE
from llm_perf_opt.sweeps.function.form import Point
from llm_perf_opt.sweeps.run_function import BATCH, CONTEXT, R, RunFunction, outside_cells
from llm_perf_opt.tracing.traced_run import TracedRun

FUNCTION_SUFFIX = ".function.json"


@dataclass(frozen=True, slots=True, eq=False)
class _SavedTraces:
    """A function out of a file has no model: what its cells do not prove cannot be traced."""

    saved: SavedFunction

    def origin_at(self, point: Point) -> None:
        """There is none."""

    def graph(self, phase: str, point: Point) -> CallGraph:
        """Refused, with the way to get it."""
        raise outside_cells(phase, point, has_model=False)


def save_function(function: RunFunction[TracedRun], path: Path, *, force: bool) -> Path:
    """Write the function; the name ends in `.function.json`."""
    if not path.name.endswith(FUNCTION_SUFFIX):
        raise UsageError(
            f"{path.name} is not the name of a function file.",
            why=f"its name ends in {FUNCTION_SUFFIX}",
            fix=f"call it {path.stem.removesuffix('.function')}{FUNCTION_SUFFIX}",
        )
    free_file(path, force=force)
    write_function(_saved(function), path)
    return path


def _saved(function: RunFunction[TracedRun]) -> SavedFunction:
    if function.origin is None and isinstance(function._traces, _SavedTraces):
        return function._traces.saved
    assert function.origin is not None, "a function is made from a model, or read from a file"
    return SavedFunction(
        name=function.name,
        tool_version=__version__,
        workload=_options(function.origin.workload),
        deployment=_options(function.origin.deployment),
        media_tokens=function.media_tokens,
        phases=function.phases,
        chunk=function.chunk,
    )


def _options(record: OptionRecord) -> Mapping[str, Any]:
    return {name: json_safe(getattr(record, name)) for name in record.options()}


def read_run_function(path: str | Path, kind: Callable[..., R]) -> RunFunction[R]:
    """A saved function with points that are runs of a `kind`; there is no model to trace a point outside its cells."""
    path = Path(path)
    saved = read_function(path)
    with naming_file(path):
        for phase in saved.phases:
            if phase.domain.keys() != {BATCH, CONTEXT}:
                raise FUNCTION_FILE.malformed("phases", f"a function of {BATCH} and {CONTEXT}", ", ".join(phase.domain))
        workload = Workload.make(
            **{name: saved.workload[name] for name in Workload.options() if name in saved.workload}
        )
    return RunFunction(
        name=saved.name,
        phases=saved.phases,
        workload=workload,
        origin=None,
        media_tokens=saved.media_tokens,
        chunk=saved.chunk,
        _run=kind(name=saved.name, graphs=()),
        _traces=_SavedTraces(saved),
    )

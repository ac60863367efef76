"""Traces made earlier: where they lie, the workload in their header, and what can no longer be asked of them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from llm_perf_opt.core.callgraph import CallGraph, read_callgraph
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.protocols import MODELS, Workload

_WHOLE_PAGE = [1, 1]


def workload_of(graph: CallGraph) -> Workload:
    """What was asked for, with the defaults that were filled in then; a page that was not cut has no crops to force."""
    told = {field.name: graph.workload[field.name] for field in fields(Workload) if field.name in graph.workload}
    crops = told.get("crops")
    told["crops"] = None if crops in (None, _WHOLE_PAGE) else tuple(crops)
    return Workload(**told)


TRACE_SUFFIX = ".callgraph.json"
PARTIAL = ".partial"  # before the suffix: the model raised in this phase
PHASE_ORDER = ("vision", "prefill", "decode")  # the order in which phases run; a phase of another name comes last


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """The files themselves, and of a folder every trace in it, in the order in which the phases run."""
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise _not_there(path)
        found = sorted(path.glob(f"*{TRACE_SUFFIX}"), key=_phase_rank) if path.is_dir() else [path]
        if not found:
            raise UsageError(
                f"There is no trace in {path}.",
                why=f"no file there ends in {TRACE_SUFFIX}",
                fix=f"make one: llm-perf-opt trace deepseek-ocr --out {path}",
            )
        files += found
    return files


def read_traces(paths: Sequence[Path]) -> tuple[CallGraph, ...]:
    """What lies there, in the order in which the phases run."""
    return tuple(read_callgraph(file) for file in trace_files(paths))


def read_whole_traces(paths: Sequence[Path]) -> tuple[CallGraph, ...]:
    """The same, of runs that came to their end: what stopped half-way is refused."""
    graphs = read_traces(paths)
    for graph in graphs:
        if graph.stopped_in is not None:
            raise PerfOptError(
                f"The {graph.phase} of this trace stopped half-way, in {graph.stopped_in or '(root)'}.",
                why="what follows is missing, so every figure would be too small",
                fix="trace it again; until then llm-perf-opt report shows what ran",
            )
    return graphs


def _not_there(path: Path) -> UsageError:
    """With the name beside it that comes nearest, if any does."""
    beside = [found.name for found in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, beside, n=1)
    return UsageError(
        f"There is no {path}.",
        why="a call-graph file or a folder of them was expected there",
        fix=f"did you mean {str(path.parent / close[0])!r}?" if close else "check the path, or trace the model first",
    )


def is_trace(model: str) -> bool:
    """Whether what was named is a trace made earlier: a file of that kind, or a folder that holds one."""
    path = Path(model)
    if model in MODELS.names():
        return False
    return path.name.endswith(TRACE_SUFFIX) or (path.is_dir() and any(path.glob(f"*{TRACE_SUFFIX}")))


def are_traces(names: Sequence[str]) -> bool:
    """Whether all of them are traces, or can only be meant as such: several, a file, a folder that holds no model."""
    first = Path(names[0])
    is_plain_folder = names[0] not in MODELS.names() and first.is_dir() and not (first / "config.json").exists()
    return all(map(is_trace, names)) or len(names) > 1 or first.is_file() or is_plain_folder


def _phase_rank(file: Path) -> tuple[int, str]:
    phase = file.name.removesuffix(TRACE_SUFFIX).removesuffix(PARTIAL)
    return (PHASE_ORDER.index(phase) if phase in PHASE_ORDER else len(PHASE_ORDER)), phase


def refuse_wishes(workload: Workload, **wishes: object) -> None:
    """Refuse every field of a workload that was set, and every other wish that is not empty.

    A wish that is silently ignored would be a wrong figure. Fields and wishes have the names of their options.
    """
    asked = [field.name for field in fields(Workload) if getattr(workload, field.name) != field.default]
    asked += [name for name, wish in wishes.items() if wish]
    if asked:
        raise UsageError(
            f"A trace made earlier has no use for {', '.join(map(_option, asked))}.",
            why="it brings the workload that it was made with, and nothing is run again",
            fix="leave it out, or name the model in place of its trace",
        )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"

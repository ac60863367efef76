"""Traces made earlier: where they lie, the workload in their header, and what can no longer be asked of them."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_perf_opt.core.callgraph import CallGraph, read_callgraph
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.parallel_plan import plan_in
from llm_perf_opt.core.plugins import MODELS, workload_type
from llm_perf_opt.core.workload import Workload

log = logging.getLogger(__name__)


def workload_of(graph: CallGraph) -> Workload:
    """The workload in the header of a trace, as its model declares it."""
    return workload_type(graph.model).from_header(graph.workload)


TRACE_SUFFIX = ".callgraph.json"
_RANK = "rank-"
PARTIAL = ".partial"  # before the suffix: the model raised in this phase
OLDER_NAMES = ("*call-graph*.json", "*callgraph*.json")  # files from before there was a suffix of their own
_BESIDE = ("grouped", "runtime")  # in the names of what older scripts wrote next to them
PHASE_ORDER = (
    "vision",
    "prefill",
    "chunk",
    "decode",
)  # the order of the phases; one of another name comes last


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """The files themselves, and of a folder every trace in it, in the order in which the phases run."""
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise _not_there(path)
        traces = _in_folder(path) if path.is_dir() else [path]
        if not traces:
            raise UsageError(
                f"There is no trace in {path}.",
                why=f"no file there ends in {TRACE_SUFFIX}",
                fix=f"make one: llm-perf-opt trace deepseek-ocr --out {path}",
            )
        files += traces
    return files


def rank_folder(folder: Path | None, rank: int, ranks: Sequence[int]) -> Path | None:
    """Where the trace of a rank lies: in the folder of the run, or below it where there are several."""
    return folder if folder is None or len(ranks) == 1 else folder / f"{_RANK}{rank}"


def rank_folders(folder: Path) -> list[Path]:
    """The folders of the ranks in the folder of a run, in order; none where the run is of one device or one rank."""
    folders = [path for path in folder.glob(f"{_RANK}*") if path.is_dir() and path.name.removeprefix(_RANK).isdigit()]
    return sorted(folders, key=lambda path: int(path.name.removeprefix(_RANK)))


def folder_of_rank(path: Path, rank: int | None) -> Path:
    """Where the trace of that rank lies, by default of the first; the path itself where it holds one rank."""
    folders = rank_folders(path)
    if not folders:
        return path
    by_rank = {int(folder.name.removeprefix(_RANK)): folder for folder in folders}
    if rank is None:
        log.info("Rank %d; --rank chooses another: %s", next(iter(by_rank)), ", ".join(map(str, by_rank)))
        return folders[0]
    if rank not in by_rank:
        raise UsageError(
            f"There is no rank {rank} in {path}.",
            why=f"it holds one rank of each kind: {', '.join(map(str, by_rank))}",
            fix=f"choose one of them, or trace it: llm-perf-opt trace MODEL ... --rank {rank}",
        )
    return by_rank[rank]


def require_rank(graph: CallGraph, rank: int | None) -> None:
    """Refuse the trace of another rank than the one that was asked for."""
    plan = plan_in(graph.deployment)
    held = 0 if plan is None else plan.rank or 0
    if rank is not None and rank != held:
        raise UsageError(
            f"This is not the trace of rank {rank}.",
            why=f"it is the trace of rank {held}" if plan is not None else "it was made on one device, without ranks",
            fix="leave --rank out, or name the folder of the whole run",
        )


def _in_folder(folder: Path) -> list[Path]:
    """The call graphs of a folder: this version's, or else what older scripts wrote."""
    traces = sorted(folder.glob(f"*{TRACE_SUFFIX}"), key=_phase_rank)
    if traces:
        return traces
    older = {file for pattern in OLDER_NAMES for file in folder.glob(pattern)}
    return sorted(file for file in older if not any(word in file.name for word in _BESIDE))


def read_traces(paths: Sequence[Path]) -> tuple[CallGraph, ...]:
    """What lies there, in the order in which the phases run."""
    runs = [(path, [read_callgraph(file) for file in trace_files([path])]) for path in paths]
    for path, graphs in runs:
        if path.is_dir():
            _require_one_run(path, graphs)
    return tuple(graph for _, graphs in runs for graph in graphs)


def _require_one_run(folder: Path, graphs: Sequence[CallGraph]) -> None:
    """A run that was killed while it overwrote another leaves files of both, each of them whole.

    A folder in which the model stopped half-way has no totals anyhow. What a phase adds to its header is not compared.
    """
    first = graphs[0]
    for graph in () if any(graph.stopped_in is not None for graph in graphs) else graphs:
        common = Workload.options().keys() & graph.workload.keys() & first.workload.keys()
        if graph.model != first.model or any(graph.workload[name] != first.workload[name] for name in common):
            raise PerfOptError(
                f"{folder} holds phases of two runs.",
                why=f"{graph.phase} was traced with another model or workload than {first.phase}",
                fix="trace into the folder again with --force, or name the files one by one",
            )


def read_phase(path: Path, phase: str | None = None) -> CallGraph:
    """One phase, by default the prefill or the first there is; of a run the file of that name alone is read."""
    files = {file.name.removesuffix(TRACE_SUFFIX): file for file in trace_files([path])}
    if len(files) == 1:
        graph = read_callgraph(*files.values())
        if phase in (None, graph.phase):
            return graph
        files = {graph.phase: path}
    wanted = phase or ("prefill" if "prefill" in files else next(iter(files)))
    if wanted not in files:
        raise UsageError(
            f"There is no phase {wanted!r} in {path}.", why=f"it holds: {', '.join(files)}", fix="choose one"
        )
    return read_callgraph(files[wanted])


def _not_there(path: Path) -> UsageError:
    """The error, with the nearest name in the same folder if there is one."""
    siblings = [path_of.name for path_of in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, siblings, n=1)
    return UsageError(
        f"There is no {path}.",
        why="a call-graph file or a folder of them was expected there",
        fix=f"did you mean {str(path.parent / close[0])!r}?" if close else "check the path, or trace the model first",
    )


def is_trace(model: str) -> bool:
    """Whether what was named is a trace made earlier: a file of that kind or any JSON file, or a folder of traces."""
    path = Path(model)
    if model in MODELS.names():
        return False
    if path.is_dir():
        return (
            any(path.glob(f"*{TRACE_SUFFIX}"))
            or bool(rank_folders(path))
            or (not (path / "config.json").exists() and bool(_in_folder(path)))
        )
    return path.name.endswith(TRACE_SUFFIX) or (path.suffix == ".json" and path.is_file())


def are_traces(names: Sequence[str]) -> bool:
    """Whether all of them are traces, or can only be meant as such: several, a file, a folder that holds no model."""
    first = Path(names[0])
    is_plain_folder = names[0] not in MODELS.names() and first.is_dir() and not (first / "config.json").exists()
    return all(map(is_trace, names)) or len(names) > 1 or first.is_file() or is_plain_folder


def _phase_rank(file: Path) -> tuple[int, str]:
    phase = file.name.removesuffix(TRACE_SUFFIX).removesuffix(PARTIAL)
    return (PHASE_ORDER.index(phase) if phase in PHASE_ORDER else len(PHASE_ORDER)), phase


def refuse_options(given: Mapping[str, object], **options: object) -> None:
    """Refuse options that a saved trace cannot follow: ignoring them would give a wrong figure."""
    useless = [*given, *(name for name, value in options.items() if value)]
    if useless:
        raise UsageError(
            f"A saved trace does not take {', '.join(map(_option, useless))}.",
            why="it keeps the workload that it was made with, and nothing is run again",
            fix="leave it out, or name the model instead of its trace",
        )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
